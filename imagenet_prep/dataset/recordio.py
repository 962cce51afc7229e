"""Reads and writes the records of MXNet's RecordIO files (`.rec`): images with their labels.

Each record is framed as in dmlc-core's recordio.h: a magic number, four bytes with kind and length,
the payload, and zeros up to a multiple of four bytes. If the payload contains the magic number at
an offset divisible by four, the payload is split there, and the next part's frame starts with these
bytes. So every magic number at such an offset starts a frame. The payload is MXNet's header
(python/mxnet/recordio.py) and the image. It has no checksum.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from imagenet_prep.core.errors import DataDamagedError

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
