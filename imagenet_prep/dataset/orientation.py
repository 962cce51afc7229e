"""EXIF orientation: how a camera was held, as a tag beside the pixels that some decoders obey.

Pillow and TensorFlow show the pixels as they lie; OpenCV, TorchCodec and browsers turn them as the
tag says. So an image with a tag other than 1 is shown in two ways. This module finds such tags in
the bytes of a file, sets them to 1 in place, and turns pixels and boxes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from imagenet_prep.dataset import jpeg
from imagenet_prep.dataset.member import Boxes

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

# The rules for an image whose tag is not 1: its pixels are turned; the tag is set to 1 and the
# pixels stay; nothing is done.
APPLY, NEUTRAL, KEEP = "apply", "neutral", "keep"
RULES = (APPLY, NEUTRAL, KEEP)
# The reason of a repair.
REASON = "orientation"
UPRIGHT = 1

_APP1 = 0xE1
_APP1_MARKER = b"\xff\xe1"
# "Exif" and two zeros. OpenCV looks behind them only, so whatever they are is let pass.
_PREFIX_BYTES = 6
_ORIENTATION = 0x0112
_ENTRY_BYTES = 12
_SHORT, _TEXT = 3, 2
# The types of EXIF: integers, fractions of two, floating-point numbers.
_TYPES = {1: "B", 3: "H", 4: "I", 5: "2I", 6: "b", 7: "B", 8: "h", 9: "i", 10: "2i"}
_TYPES |= {11: "f", 12: "d", 13: "I"}

_Order = Literal["little", "big"]
_ORDERS: dict[bytes, _Order] = {b"II": "little", b"MM": "big"}
_SIGNS = {"little": "<", "big": ">"}

# Values of the tag for which the axes are swapped, and for which each is mirrored afterwards.
_TRANSPOSED = frozenset({5, 6, 7, 8})
_LEFT_IS_RIGHT = frozenset({2, 3, 6, 7})
_TOP_IS_BOTTOM = frozenset({3, 4, 7, 8})
_TURNS = frozenset(range(2, 9))


class _Entry(NamedTuple):
    """An entry of the tag: its first byte in the file, the order of its bytes, its value."""

    offset: int
    order: _Order
    value: int


class Tags(NamedTuple):
    """The orientation tags of a file, at least one of which is not 1.

    Attributes:
      value: what the first of them says; 0 if it is no number.
      entries: those that are not 1.
    """

    value: int
    entries: tuple[_Entry, ...]

    @property
    def turn(self) -> int:
        """How the pixels are to be turned, 1 ... 8; 1 also for values that mean nothing."""
        return self.value if self.value in _TURNS else UPRIGHT


def of_jpeg(data: bytes, frame: jpeg.Frame | None) -> Tags | None:
    """Returns the tags of a JPEG, None where it has none or all are 1.

    Args:
      data: the file.
      frame: what `jpeg.refuse_bombs` returned of it.
    """
    stop = frame.first_scan if frame else len(data)
    # Most images have no such segment, and looking for its marker takes a tenth of a walk.
    if data.find(_APP1_MARKER, 2, stop) < 0:
        return None
    segments = jpeg.segments(data, _APP1, stop)
    return _tags(
        entry for start, end in segments for entry in _entries(data, start + _PREFIX_BYTES, end)
    )


def of_exif(exif: bytes) -> Tags | None:
    """Returns the tags of an EXIF block as PNG and WebP have it, None where all are 1."""
    start = _PREFIX_BYTES if exif.startswith(b"Exif\0\0") else 0
    return _tags(_entries(exif, start, len(exif)))


def _tags(entries: Iterator[_Entry]) -> Tags | None:
    found = [*entries]
    others = tuple(entry for entry in found if entry.value != UPRIGHT)
    return Tags(found[0].value, others) if others else None


def _entries(data: bytes, start: int, stop: int) -> Iterator[_Entry]:
    """Yields the entries of the tag in the first directory of a TIFF header at `start`.

    As far as the directory lies in the block: decoders differ in where they give up.
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
        if (at - first) % _ENTRY_BYTES == 0 and at + _ENTRY_BYTES <= last:
            yield _Entry(at, order, _value(data, at, start, stop, _SIGNS[order]))
        at = data.find(tag, at + 1, last)


def _value(data: bytes, at: int, start: int, stop: int, sign: str) -> int:
    """Returns the number in an entry as exiftool reads it, of any type; 0 if it is not one."""
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
    """Returns the same file, of the same length, with each of these tags set to a value."""
    made = bytearray(data)
    for offset, order, _ in tags.entries:
        # Type, number of values and value: one SHORT, as the standard has it.
        for at, size, number in ((2, 2, _SHORT), (4, 4, 1), (8, 2, value)):
            made[offset + at : offset + at + size] = number.to_bytes(size, order)
    return bytes(made)


def turned_size(height: int, width: int, turn: int) -> tuple[int, int]:
    """Returns (height, width) of pixels after a turn."""
    return (width, height) if turn in _TRANSPOSED else (height, width)


def turned(pixels: npt.NDArray[np.uint8], turn: int) -> npt.NDArray[Any]:
    """Returns pixels [height, width, 3] as a tag of this value says: a view of the same memory."""
    if turn in _TRANSPOSED:
        pixels = pixels.swapaxes(0, 1)
    if turn in _TOP_IS_BOTTOM:
        pixels = pixels[::-1]
    return pixels[:, ::-1] if turn in _LEFT_IS_RIGHT else pixels


def turned_boxes(boxes: Boxes, turn: int) -> Boxes:
    """Returns bounding boxes, relative to the sides, as a tag of this value turns their image."""
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
