"""Reads a JPEG's markers: refuses images that are too expensive, and turns by EXIF orientation.

A header of a few bytes can claim 4 billion pixels. In a progressive file, a decoder processes all
coefficients again for each scan.

Pillow and TensorFlow ignore the orientation tag; OpenCV, TorchCodec and browsers obey it. So
programs show an image differently if its tag is not 1. This module finds orientation tags in the
bytes of a file, sets them to 1 in place, and turns pixels and boxes.
"""

from __future__ import annotations

import itertools
import re
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn

from imagenet_prep.core.errors import BadImageError
from imagenet_prep.dataset.member import Boxes

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


# ImageNet's largest image has 5980 x 6430 pixels (MLPerf's nvJPEG hints). Decoding an image of this
# limit takes 192 MB.
MAX_PIXELS = 64_000_000
# Encoders write about ten scans. At 64 million pixels, even an empty scan takes libjpeg 50 ms.
MAX_SCANS = 100
# Comments and metadata have one segment per 64 kB; each scan has a few segments for its tables.
_MAX_SEGMENTS = 10_000

SOI = b"\xff\xd8\xff"
EOI = b"\xff\xd9"
_BITS = 8
# Finds the next marker as libjpeg does: skips fill bytes, stuffed zeros, surplus bytes, and restart
# markers, which have no content.
_MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")
_SOS = 0xDA
_EOI = 0xD9
_SOI_MARKER = 0xD8
# SOF0 to SOF15, without the markers DHT, JPG and DAC in between, and DHP (for several frames).
_SOF0 = 0xC0
_SOF3 = 0xC3
_DHP = 0xDE
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC} | {_DHP}
_PROGRESSIVE = frozenset({0xC2, 0xC6, 0xCA, 0xCE})
# SOF0, SOF1 and SOF2: the only frames that decoders can reliably downscale while decoding.
_SCALED = frozenset({0xC0, 0xC1, 0xC2})
# Also SOF3 (lossless), and SOF9 and SOF10 (arithmetic coding).
_DECODED = _SCALED | {_SOF3, 0xC9, 0xCA}
_SEGMENTS = frozenset(range(0xC0, 0xFF)) - frozenset(range(0xD0, 0xDA))
_BARE_MARKER = re.compile(rb"\xff[\x01\xd0-\xd7]")  # TEM and restart markers
_LENGTH_BYTES = 2  # a segment's length includes its own two bytes


class JpegFrame(NamedTuple):
    """The properties of a JPEG according to its markers."""

    height: int
    width: int
    # Memory for the coefficients if there are several scans; 0 for a single scan, which is decoded
    # block by block.
    coefficient_bytes: int
    first_scan: int = 0  # offset of the first scan; the headers are before it
    # Second byte of the frame header's marker; 0 if there are several frame headers.
    marker: int = _SOF0
    bits: int = _BITS  # bits per sample
    colorspace: str = ""  # libjpeg's name, e.g. "YCbCr", "Gray" or "CMYK"; "" if it is not known
    repair: str = ""  # reason why the file must be re-encoded with Pillow; "" for most
    # Whether the header has a marker without content, or a length below 2, which Pillow or DALI
    # refuses. libjpeg skips both.
    has_odd_marker: bool = False

    @property
    def can_be_scaled(self) -> bool:
        """Whether a decoder can downscale the image while it decodes."""
        return self.marker in _SCALED and self.bits == _BITS

    @property
    def is_lossless(self) -> bool:
        """Whether it is a lossless JPEG, which TensorFlow and DALI cannot decode."""
        return self.marker == _SOF3


def refuse_bombs(data: bytes, max_pixels: int = MAX_PIXELS) -> JpegFrame | None:
    """Returns a JPEG's frame; raises BadImageError if decoding needs too much time or memory.

    Only files with several scans are read to the end. Returns None if the file is not a JPEG or
    has no frame header; the decoder then reports the error.
    """
    if not data.startswith(SOI):
        return None
    position = 2
    scans = 0
    components = 0
    progressive = False
    is_alone = False
    header = height = width = first_scan = frame = 0
    is_odd = False
    try:
        for _ in range(_MAX_SEGMENTS):
            # The marker is usually at this position, and a search would double the time.
            marker = data[position + 1] if data[position] == 0xFF else 0
            if marker in _SEGMENTS:
                position += 2
            else:
                start = position
                position = _after_marker(data, start)
                marker = data[position - 1] if position else _EOI
                if position and not first_scan:
                    is_odd |= _BARE_MARKER.search(data, start, position) is not None
            if marker == _EOI:
                break
            if marker < 0xC0 or marker == _SOI_MARKER:
                # The marker has no content, or it is reserved, and libjpeg may continue after it.
                continue
            if marker in _FRAMES:
                height = int.from_bytes(data[position + 3 : position + 5], "big")
                width = int.from_bytes(data[position + 5 : position + 7], "big")
                refuse_pixels(height, width, max_pixels)
                # Files with several frame headers have no type that a decoder supports.
                frame = 0 if header else marker
                components, header = data[position + 7], position
                progressive = marker in _PROGRESSIVE
            elif marker == _SOS:
                scans += 1
                first_scan = first_scan or position
                is_alone = scans == 1 and not progressive and data[position + 2] >= components
                if is_alone:
                    break
                if scans > MAX_SCANS:
                    _refuse_scans()
            length = data[position] << 8 | data[position + 1]
            is_odd |= length < _LENGTH_BYTES and not first_scan
            position += length
        else:
            _refuse_scans()
    except IndexError:
        pass  # The file ends at a marker.
    if not header:
        return None
    coefficient_bytes = 0 if is_alone else _coefficient_bytes(data, header, height * width)
    bits = data[header + 2]
    first_scan = first_scan or len(data)
    return JpegFrame(
        height, width, coefficient_bytes, first_scan, frame, bits, has_odd_marker=is_odd
    )


def _after_marker(data: bytes, position: int) -> int:
    """Returns the end of the next marker at or after a position; 0 if there is none."""
    match = _MARKER.search(data, position)
    return match.end() if match else 0


def refuse_unknown(frame: JpegFrame) -> None:
    """Raises BadImageError ("undecodable") for a JPEG type that no decoder here supports."""
    if frame.marker not in _DECODED or frame.bits != _BITS:
        kind = f"SOF{frame.marker - _SOF0}" if frame.marker else "several frame headers"
        text = f"{kind}, {frame.bits} bits per sample: no decoder here reads this type of JPEG"
        raise BadImageError("undecodable", text)


def refuse_pixels(height: int, width: int, most: int) -> None:
    """Raises BadImageError ("too_many_pixels") for an image with more than `most` pixels."""
    if height * width > most:
        raise BadImageError("too_many_pixels", f"{width} x {height}, at most {most:,} pixels")


def marker_segments(data: bytes, kind: int, stop: int) -> Iterator[tuple[int, int]]:
    """Yields (start, end) of each segment before the first scan whose marker is FF and `kind`."""
    position = 2
    while (match := _MARKER.search(data, position, stop)) is not None:
        marker = data[match.end() - 1]
        position = match.end()
        if marker in (_SOS, _EOI):
            return
        if marker in _SEGMENTS:
            size = int.from_bytes(data[position : position + 2], "big")
            if marker == kind:
                yield position + 2, min(position + size, len(data))
            position += size


def _coefficient_bytes(data: bytes, header: int, pixels: int) -> int:
    """Returns the size of all coefficients: two bytes per sample of each component."""
    factors = data[header + 9 : header + 8 + 3 * data[header + 7] : 3]
    sides = [(factor >> 4, factor & 15) for factor in factors]
    most = max((h for h, _ in sides), default=1) * max((v for _, v in sides), default=1)
    return 2 * pixels * sum(h * v for h, v in sides) // max(most, 1)


def _refuse_scans() -> NoReturn:
    raise BadImageError(
        "too_many_scans", f"more than {MAX_SCANS} scans or {_MAX_SEGMENTS:,} segments"
    )


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


def of_jpeg(data: bytes, frame: JpegFrame | None) -> Tags | None:
    """Returns a JPEG's tags, or None if all are 1; `frame` is from `refuse_bombs`."""
    stop = frame.first_scan if frame else len(data)
    # Most images have no APP1 segment; this search takes a tenth of the time of `marker_segments`.
    if data.find(_APP1_MARKER, 2, stop) < 0:
        return None
    directories = (
        _entries(data, start + _PREFIX_BYTES, end)
        for start, end in marker_segments(data, _APP1, stop)
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
    if kind == _TEXT:
        form = f"{count}s"
    elif kind in _TYPES and count == 1:
        form = sign + _TYPES[kind]
    else:
        return 0
    size = struct.calcsize(form)
    # A value of up to four bytes is in the entry itself.
    place = at + 8 if size <= 4 else start + place
    if place + size > stop:
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
