"""EXIF orientation: a tag that tells decoders to turn the pixels.

Pillow and TensorFlow ignore the tag; OpenCV, TorchCodec and browsers obey it. So programs show an
image differently if its tag is not 1. This module finds orientation tags in the bytes of a file,
sets them to 1 in place, and turns pixels and boxes.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from imagenet_prep.core.errors import BadImageError
from imagenet_prep.dataset import jpeg
from imagenet_prep.dataset.member import Boxes

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

# Rules for a tag that is not 1: turn the pixels; only set the tag to 1; do nothing.
APPLY = "apply"
NEUTRAL = "neutral"
KEEP = "keep"
RULES = (APPLY, NEUTRAL, KEEP)
REASON = "orientation"
UPRIGHT = 1

_APP1 = 0xE1
_APP1_MARKER = b"\xff\xe1"
# "Exif" and two zeros. OpenCV skips them without a check, so any six bytes are accepted.
_PREFIX_BYTES = 6
_ORIENTATION = 0x0112
_ENTRY_BYTES = 12
# A photograph has one orientation, and perhaps one more for its thumbnail.
_MOST_ENTRIES = 10_000
_SHORT = 3
_TEXT = 2
# EXIF's types as `struct` formats: integers, fractions of two integers, floats.
_TYPES = {1: "B", 3: "H", 4: "I", 5: "2I", 6: "b", 7: "B", 8: "h", 9: "i", 10: "2i"}
_TYPES |= {11: "f", 12: "d", 13: "I"}

_Order = Literal["little", "big"]
_ORDERS: dict[bytes, _Order] = {b"II": "little", b"MM": "big"}
_SIGNS = {"little": "<", "big": ">"}

# Tag values that swap the axes, and values that afterwards mirror an axis.
_TRANSPOSED = frozenset({5, 6, 7, 8})
_LEFT_IS_RIGHT = frozenset({2, 3, 6, 7})
_TOP_IS_BOTTOM = frozenset({3, 4, 7, 8})
_TURNS = frozenset(range(2, 9))


class _Entry(NamedTuple):
    """An orientation entry in the file, with its byte order and value."""

    offset: int
    order: _Order
    value: int


class Tags(NamedTuple):
    """The orientation tags of a file, at least one of which is not 1.

    `value` is the number in the first tag, or 0 if the tag has no number. `entries` has the tags
    that are not 1.
    """

    value: int
    entries: tuple[_Entry, ...]

    @property
    def turn(self) -> int:
        """The orientation to apply, from 1 to 8; 1 if the value is invalid."""
        return self.value if self.value in _TURNS else UPRIGHT


def of_jpeg(data: bytes, frame: jpeg.Frame | None) -> Tags | None:
    """Returns a JPEG's tags, or None if all are 1; `frame` is from `jpeg.refuse_bombs`."""
    stop = frame.first_scan if frame else len(data)
    # Most images have no APP1 segment; this search takes a tenth of the time of `jpeg.segments`.
    if data.find(_APP1_MARKER, 2, stop) < 0:
        return None
    directories = (
        _entries(data, start + _PREFIX_BYTES, end)
        for start, end in jpeg.segments(data, _APP1, stop)
    )
    return _tags(itertools.chain.from_iterable(directories))


def of_exif(exif: bytes) -> Tags | None:
    """Returns the tags of an EXIF block from a PNG or WebP, or None if all are 1."""
    start = _PREFIX_BYTES if exif.startswith(b"Exif\0\0") else 0
    return _tags(_entries(exif, start, len(exif)))


def _tags(entries: Iterator[_Entry]) -> Tags | None:
    tags = [*itertools.islice(entries, _MOST_ENTRIES + 1)]
    if len(tags) > _MOST_ENTRIES:
        raise BadImageError("undecodable", f"more than {_MOST_ENTRIES:,} EXIF orientations")
    others = tuple(tag for tag in tags if tag.value != UPRIGHT)
    return Tags(tags[0].value, others) if others else None


def _entries(data: bytes, start: int, stop: int) -> Iterator[_Entry]:
    """Yields the orientation entries in the first directory of the TIFF header at `start`.

    If the directory extends beyond `stop`, its entries before `stop` are used, as in some decoders.
    """
    order = _ORDERS.get(data[start : start + 2])
    if order is None:
        return

    def number(at: int, size: int) -> int:
        return int.from_bytes(data[at : min(at + size, stop)], order)

    directory = start + number(start + 4, 4)
    first = directory + 2
    last = min(first + number(directory, 2) * _ENTRY_BYTES, stop)
    tag = _ORIENTATION.to_bytes(2, order)
    at = data.find(tag, first, last)
    while at >= 0:
        surplus = (at - first) % _ENTRY_BYTES
        if not surplus and at + _ENTRY_BYTES <= last:
            yield _Entry(at, order, _value(data, at, start, stop, _SIGNS[order]))
        # Continue at the next entry, since a bomb may have the tag in every second byte.
        at = data.find(tag, at - surplus + _ENTRY_BYTES, last)


def _value(data: bytes, at: int, start: int, stop: int, sign: str) -> int:
    """Returns an entry's number, of any type that exiftool accepts; 0 if it is not a number."""
    kind, count, place = struct.unpack_from(f"{sign}HII", data, at + 2)
    form = f"{count}s" if kind == _TEXT else sign + _TYPES.get(kind, "") * (count == 1)
    size = struct.calcsize(form)
    place = at + 8 if size <= 4 else start + place
    if form == sign or place + size > stop:
        return 0
    first, *below = struct.unpack_from(form, data, place)
    if kind == _TEXT:
        first, _, _ = first.partition(b"\0")
        return int(first) if len(first) == 1 and first.isdigit() else 0
    if below:
        first = first / below[0] if below[0] else 0
    return int(first) if float(first).is_integer() else 0


def changed(data: bytes, tags: Tags, value: int = UPRIGHT) -> bytes:
    """Returns the bytes of a file with these tags set to a value; the length is unchanged."""
    out = bytearray(data)
    for offset, order, _ in tags.entries:
        # Type, count and value: one SHORT, as in the standard.
        struct.pack_into(f"{_SIGNS[order]}HIH", out, offset + 2, _SHORT, 1, value)
    return bytes(out)


def turned_size(height: int, width: int, turn: int) -> tuple[int, int]:
    """Returns (height, width) of an image after it is turned by the orientation `turn`."""
    return (width, height) if turn in _TRANSPOSED else (height, width)


def turned(pixels: npt.NDArray[np.uint8], turn: int) -> npt.NDArray[Any]:
    """Returns pixels [height, width, 3] turned by the orientation `turn`; a view, not a copy."""
    if turn in _TRANSPOSED:
        pixels = pixels.swapaxes(0, 1)
    if turn in _TOP_IS_BOTTOM:
        pixels = pixels[::-1]
    return pixels[:, ::-1] if turn in _LEFT_IS_RIGHT else pixels


def turned_boxes(boxes: Boxes, turn: int) -> Boxes:
    """Returns relative bounding boxes turned by the orientation `turn`."""
    xmin, xmax, ymin, ymax = boxes
    if turn in _TRANSPOSED:
        xmin, xmax, ymin, ymax = ymin, ymax, xmin, xmax
    if turn in _TOP_IS_BOTTOM:
        ymin, ymax = _mirrored(ymax), _mirrored(ymin)
    if turn in _LEFT_IS_RIGHT:
        xmin, xmax = _mirrored(xmax), _mirrored(xmin)
    return Boxes(xmin, xmax, ymin, ymax)


def _mirrored(side: Any) -> tuple[float, ...]:
    return tuple(1.0 - value for value in side)
