"""Reads a JPEG's markers and refuses images that are too expensive to decode.

A header of a few bytes can claim 4 billion pixels. In a progressive file, a decoder processes all
coefficients again for each scan.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple, NoReturn

from imagenet_prep.core.errors import BadImageError

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


class Frame(NamedTuple):
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


def refuse_bombs(data: bytes, max_pixels: int = MAX_PIXELS) -> Frame | None:
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
                match = _MARKER.search(data, position)
                if match is None:
                    break
                if not first_scan:
                    is_odd |= _BARE_MARKER.search(data, position, match.end()) is not None
                position = match.end()
                marker = data[position - 1]
            if marker == _EOI:
                break
            if marker < 0xC0 or marker == _SOI_MARKER:
                # The marker has no content, or it is reserved, and libjpeg may continue after it.
                continue
            if marker in _FRAMES:
                height = int.from_bytes(data[position + 3 : position + 5], "big")
                width = int.from_bytes(data[position + 5 : position + 7], "big")
                refuse_pixels(height, width, max_pixels)
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
    return Frame(height, width, coefficient_bytes, first_scan, frame, bits, has_odd_marker=is_odd)


def refuse_unknown(frame: Frame) -> None:
    """Raises BadImageError ("undecodable") for a JPEG type that no decoder here supports."""
    if frame.marker not in _DECODED or frame.bits != _BITS:
        kind = f"SOF{frame.marker - _SOF0}" if frame.marker else "several frame headers"
        text = f"{kind}, {frame.bits} bits per sample: no decoder here reads this type of JPEG"
        raise BadImageError("undecodable", text)


def refuse_pixels(height: int, width: int, most: int) -> None:
    """Raises BadImageError ("too_many_pixels") for an image with more than `most` pixels."""
    if height * width > most:
        raise BadImageError("too_many_pixels", f"{width} x {height}, at most {most:,} pixels")


def segments(data: bytes, kind: int, stop: int) -> Iterator[tuple[int, int]]:
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
