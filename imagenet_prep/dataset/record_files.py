"""Reads and writes the records of TFRecord and RecordIO files.

A TFRecord record is the length, its masked CRC32C, the payload and its masked CRC32C, as in
tensorflow/core/lib/io/record_writer.h. Compressed files are not supported: readers of ImageNet
expect uncompressed files, and compression would not make JPEGs smaller.

MXNet's RecordIO files (`.rec`) contain images with their labels. Each record is framed as in
dmlc-core's recordio.h: a magic number, four bytes with kind and length, the payload, and zeros up
to a multiple of four bytes. If the payload contains the magic number at an offset divisible by
four, the payload is split there, and the next part's frame starts with these bytes. So every magic
number at such an offset starts a frame. The payload is MXNet's header (python/mxnet/recordio.py)
and the image. It has no checksum.
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


_MAGIC = struct.pack("<I", 0xCED7230A)
# The magic number; then three bits for the kind, and 29 bits for the bytes of the part.
_FRAME = struct.Struct("<4sI")
_LENGTH_BITS = 29
_WHOLE, _FIRST, _MIDDLE, _LAST = range(4)
# The length of the label array after the header, or 0; the label if there is no array; two ids.
_HEADER = struct.Struct("<IfQQ")
_LABEL = struct.Struct("<f")
_ALIGNMENT = 4
_CHUNK_BYTES = 1 << 20


class ImageRecord(NamedTuple):
    """A record: its number, its first label, and the byte range to pass to `image`."""

    number: int
    label: float
    offset: int
    size: int


def frame(number: int, class_index: int, image: bytes) -> bytes:
    """Returns the bytes of one record; `number` must be unique in the file."""
    payload = _HEADER.pack(0, class_index, number, 0) + image
    # The bytes after the last multiple of four are too few for a magic number.
    whole = len(payload) // _ALIGNMENT * _ALIGNMENT
    cuts = list(_aligned_magics(payload[:whole]))
    starts = [0, *(cut + len(_MAGIC) for cut in cuts)]
    kinds = [_FIRST, *[_MIDDLE] * (len(cuts) - 1), _LAST] if cuts else [_WHOLE]
    out = []
    for kind, start, stop in zip(kinds, starts, [*cuts, len(payload)], strict=True):
        out.append(_FRAME.pack(_MAGIC, kind << _LENGTH_BITS | stop - start))
        out.append(payload[start:stop])
    out.append(bytes(-len(payload) % _ALIGNMENT))
    return b"".join(out)


def image(stored: bytes) -> bytes:
    """Returns an image from the bytes of its range; removes the frames that split the image."""
    parts = []
    start = 0
    for magic in _aligned_magics(stored):
        # The magic number belongs to the image, the length after it to the frame.
        stop = magic + len(_MAGIC)
        parts.append(stored[start:stop])
        start = magic + _FRAME.size
    return b"".join([*parts, stored[start:]]) if parts else stored


def scan(file: BinaryIO, start: int, stop: int, size: int) -> Iterator[ImageRecord]:
    """Yields the records of a `.rec` file that begin in [start, stop); reads only their headers.

    `start` need not be the beginning of a record. `size` is the size of the file.
    """
    at = _next_record(file, start, size) if start else 0
    while at < stop:
        begin = at
        kind, length = _part(file, at, size)
        if kind not in (_WHOLE, _FIRST):
            raise DataDamagedError(f"byte {at:,}: the beginning of this record is missing")
        first = at + _FRAME.size
        number, label, before = _header(file, first, length)
        end = first + length
        while kind in (_FIRST, _MIDDLE):
            at = end
            kind, length = _part(file, at, size)
            if kind not in (_MIDDLE, _LAST):
                raise DataDamagedError(
                    f"byte {at:,}: a new record begins before the record at byte {begin:,} ends"
                )
            end = at + _FRAME.size + length
        yield ImageRecord(number, label, first + before, end - first - before)
        at = end + -end % _ALIGNMENT
        if at >= size:
            return


def _part(file: BinaryIO, at: int, size: int) -> tuple[int, int]:
    file.seek(at)
    head = file.read(_FRAME.size)
    if len(head) < _FRAME.size:
        raise DataDamagedError(f"byte {at:,}: the file ends inside the frame of a record")
    magic, word = _FRAME.unpack(head)
    kind = word >> _LENGTH_BITS
    length = word & (1 << _LENGTH_BITS) - 1
    if magic != _MAGIC or kind > _LAST:
        raise DataDamagedError(
            f"byte {at:,}: {head.hex(' ')}, expected the frame of a record: {_MAGIC.hex(' ')} ..."
        )
    # A payload is only split at multiples of four.
    if kind in (_FIRST, _MIDDLE) and length % _ALIGNMENT:
        raise DataDamagedError(f"byte {at:,}: a part has size {length:,}, not a multiple of four")
    if at + _FRAME.size + length > size:
        raise DataDamagedError(
            f"byte {at:,}: a record of {length:,} bytes, but the file ends at byte {size:,}"
        )
    return kind, length


def _header(file: BinaryIO, at: int, length: int) -> tuple[int, float, int]:
    """Returns the number and the label of a record, and the size of its header."""
    head = file.read(_HEADER.size + _LABEL.size)
    if length < _HEADER.size:
        raise DataDamagedError(f"byte {at:,}: {length} bytes, too few for MXNet's header")
    num_labels, label, number, _ = _HEADER.unpack_from(head)
    before = _HEADER.size + num_labels * _LABEL.size
    if before > length:
        raise DataDamagedError(f"byte {at:,}: {num_labels:,} labels do not fit in {length:,} bytes")
    if num_labels:
        (label,) = _LABEL.unpack_from(head, _HEADER.size)
    return number, label, before


def _next_record(file: BinaryIO, start: int, size: int) -> int:
    """Returns the offset of the first record at or after `start`, or `size` if there is none."""
    at = start + -start % _ALIGNMENT
    while at < size:
        file.seek(at)
        chunk = file.read(_CHUNK_BYTES)
        for magic in _aligned_magics(chunk):
            if _part(file, at + magic, size)[0] in (_WHOLE, _FIRST):
                return at + magic
        at += _CHUNK_BYTES
    return size


def _aligned_magics(data: bytes) -> Iterator[int]:
    at = data.find(_MAGIC)
    while at >= 0:
        aligned = at % _ALIGNMENT == 0
        if aligned:
            yield at
        at = data.find(_MAGIC, at + (len(_MAGIC) if aligned else 1))
