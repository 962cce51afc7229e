"""Reads and writes the records of TFRecord files, and the lines of DALI's index.

A record is the length, its masked CRC32C, the payload and its masked CRC32C, as in
tensorflow/core/lib/io/record_writer.h. Compressed files are not supported: readers of ImageNet
expect uncompressed files, and compression would not make JPEGs smaller.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from typing import BinaryIO, NamedTuple, TypeVar

import crc32c

from imagenet_prep.core.errors import BadImageError, DataDamagedError

T = TypeVar("T")
_INDEX_LINE = re.compile(r"[0-9]{1,20} [0-9]{1,20}\s*", re.ASCII)
_LENGTH = struct.Struct("<Q")
_CRC = struct.Struct("<I")
_HEAD = struct.Struct("<QI")
FRAMING_BYTES = 16
# Bytes before a payload: the length and its CRC.
HEAD_BYTES = _HEAD.size
# Larger than any accepted image with its boxes. A larger length is damaged, so the payload is not
# read.
MAX_PAYLOAD_BYTES = 256 << 20


class Record(NamedTuple):
    """One record: its number in the shard, the byte offset of its frame, and the payload."""

    number: int
    offset: int
    payload: bytes


def masked_crc(*parts: bytes | memoryview) -> int:
    """Returns TensorFlow's masked CRC32C (crc32c.h: rotate right by 15, add a constant)."""
    crc = 0
    for part in parts:
        crc = crc32c.crc32c(part, crc)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def frame_parts(parts: tuple[bytes, bytes, bytes]) -> tuple[bytes, bytes, bytes]:
    """Adds the TFRecord frame to a payload in three parts; does not copy the second part."""
    first, second, third = parts
    length = _LENGTH.pack(len(first) + len(second) + len(third))
    head = length + _CRC.pack(masked_crc(length)) + first
    return head, second, third + _CRC.pack(masked_crc(first, second, third))


def index_line(offset: int, size: int) -> str:
    """Returns DALI's index line for a record; `size` includes the framing, as in tfrecord2idx."""
    return f"{offset} {size}\n"


def index_numbers(line: str) -> tuple[int, int]:
    """Returns the offset and the size, including framing, in a line of DALI's index."""
    if not _INDEX_LINE.fullmatch(line):
        raise DataDamagedError("its line in the index is not two numbers")
    offset, size = map(int, line.split())
    return offset, size


def unframe(data: bytes, size: int) -> memoryview:
    """Returns the payload of a record of `size` bytes after checking both CRCs; a view, not a copy.

    Callers must check that `size` is at least FRAMING_BYTES.
    """
    if len(data) < size:
        raise DataDamagedError(f"the file ends after {len(data):,} of the record's {size:,} bytes")
    length, length_crc = _HEAD.unpack_from(data)
    _prove("length", data[: _LENGTH.size], length_crc)
    if length + FRAMING_BYTES != size:
        raise DataDamagedError(f"has {length:,} bytes, but its index says {size - FRAMING_BYTES:,}")
    payload = memoryview(data)[_HEAD.size : -_CRC.size]
    _prove("data", payload, *_CRC.unpack_from(data, size - _CRC.size))
    return payload


def _prove(name: str, data: bytes | memoryview, crc: int) -> None:
    expected = masked_crc(data)
    if crc != expected:
        raise DataDamagedError(f"{name} CRC {crc:#010x}, expected {expected:#010x}")


def read_records(
    stream: BinaryIO,
    name: str,
    on_damage: Callable[[DataDamagedError], None] | None = None,
) -> Iterator[Record]:
    """Yields every record of an open shard after checking both of its CRCs.

    Args:
      stream: open for reading at the start of the shard.
      name: the shard's name in error messages.
      on_damage: called with the error if only the payload of a record is damaged; the record is
        then skipped. Without `on_damage`, the error is raised.
    """
    offset = number = 0
    while head := stream.read(_HEAD.size):
        where = f"{name}: record {number} at byte {offset:,}"
        if len(head) < _HEAD.size:
            raise DataDamagedError(f"{where}: the file ends inside the header")
        length, length_crc = _HEAD.unpack(head)
        _prove(f"{where}: length", head[: _LENGTH.size], length_crc)
        if length > MAX_PAYLOAD_BYTES:
            raise DataDamagedError(
                f"{where}: claims {length:,} bytes, expected at most {MAX_PAYLOAD_BYTES:,}"
            )
        payload = stream.read(length)
        tail = stream.read(_CRC.size)
        if len(payload) < length or len(tail) < _CRC.size:
            size = len(payload) + len(tail)
            expected = length + _CRC.size
            raise DataDamagedError(
                f"{where}: the file ends inside the record: {size:,} bytes, expected {expected:,}"
            )
        try:
            _prove(f"{where}: data", payload, *_CRC.unpack(tail))
        except DataDamagedError as error:
            if on_damage is None:
                raise
            on_damage(error)
        else:
            yield Record(number, offset, payload)
        offset += length + FRAMING_BYTES
        number += 1


def check_records(
    stream: BinaryIO,
    name: str,
    look: Callable[[Record], T],
    on_damage: Callable[[DataDamagedError], None],
    *,
    after_damage: bool,
) -> Iterator[tuple[Record, T | None]]:
    """Yields each record of an open shard with the result of `look`, or with None if it is damaged.

    Args:
      look: called with each record; raises DataDamagedError or BadImageError if it is damaged.
      on_damage: called with the error, which names shard, record and byte offset.
      after_damage: whether to continue after a wrong payload CRC instead of raising the error.
    """
    for record in read_records(stream, name, on_damage if after_damage else None):
        result = None
        try:
            result = look(record)
        except (BadImageError, DataDamagedError) as error:
            where = f"{name}: record {record.number} at byte {record.offset:,}"
            on_damage(DataDamagedError(f"{where}: {error}"))
        yield record, result
