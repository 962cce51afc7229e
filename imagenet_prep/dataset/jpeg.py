"""What a JPEG would cost, from its markers alone: looked at before any decoder sees it.

A header of a few bytes can claim 4 billion pixels, and each scan of a progressive file makes a
decoder go through all coefficients again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple, NoReturn

from imagenet_prep.core.errors import BadImageError

# ImageNet's largest image is 5980 x 6430 = 38 MP (MLPerf's nvJPEG hints); beyond this a
# header claims more than any of them, and decoding would take > 192 MB.
MAX_PIXELS = 64_000_000
# Encoders make about ten. At 64 MP each takes libjpeg 50 ms, whatever it holds.
MAX_SCANS = 100
# Comments and metadata, in pieces of 64 kB, come before the first scan; tables before each.
_MAX_SEGMENTS = 10_000

SOI = b"\xff\xd8\xff"
_BITS = 8  # of a sample
# As libjpeg looks for the next marker: past fill bytes, stuffed zeros and what is left over.
# Restart markers have no content, and are many.
_MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")
_SOS, _EOI, _SOI_MARKER = 0xDA, 0xD9, 0xD8
# DHT, JPG and DAC lie between the frame headers. DHP is one for several frames.
_SOF0, _SOF3, _DHP = 0xC0, 0xC3, 0xDE
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC} | {_DHP}
_PROGRESSIVE = frozenset({0xC2, 0xC6, 0xCA, 0xCE})
# SOF0, SOF1 and SOF2: decoders make a smaller image of these, and only of these without doubt.
_SCALED = frozenset({0xC0, 0xC1, 0xC2})
# With SOF9 and SOF10, the same with arithmetic coding.
_DECODED = _SCALED | {_SOF3, 0xC9, 0xCA}
# Markers of a segment with a length.
_SEGMENTS = frozenset(range(0xC0, 0xFF)) - frozenset(range(0xD0, 0xDA))


class Frame(NamedTuple):
    """What a JPEG is, as its markers say.

    Attributes:
      height, width: pixels.
      coefficient_bytes: that a decoder holds at once, since several scans make them; 0 where one
        scan makes block after block.
      first_scan: where the first scan begins; what describes the image lies before it.
      marker: the second byte of the frame header's marker; 0 if there are several.
      bits: per sample.
      colorspace: libjpeg's name, where it was asked: "YCbCr", "RGB", "Gray", "CMYK", "YCCK".
      repair: why the file is not stored as it is: only Pillow decodes it; "" for most.
    """

    height: int
    width: int
    coefficient_bytes: int
    first_scan: int = 0
    marker: int = _SOF0
    bits: int = _BITS
    colorspace: str = ""
    repair: str = ""

    @property
    def can_be_scaled(self) -> bool:
        """Whether a decoder may be asked for a smaller image than the header's."""
        return self.marker in _SCALED and self.bits == _BITS

    @property
    def is_lossless(self) -> bool:
        """Whether it is a lossless JPEG, which neither TensorFlow nor DALI decodes."""
        return self.marker == _SOF3


def refuse_bombs(data: bytes, max_pixels: int = MAX_PIXELS) -> Frame | None:
    """Refuses a JPEG that cannot be decoded in seconds and megabytes.

    Only files with several scans are read to the end. Returns None for a file that is no JPEG, or
    states no size: that is left to its decoder.
    """
    if not data.startswith(SOI):
        return None
    position, scans, components, progressive, is_alone = 2, 0, 0, False, False
    header = height = width = first_scan = frame = 0
    try:
        for _ in range(_MAX_SEGMENTS):
            # Mostly it lies right here, and a search takes as long as all the rest.
            marker = data[position + 1] if data[position] == 0xFF else 0
            if marker in _SEGMENTS:
                position += 2
            else:
                found = _MARKER.search(data, position)
                if found is None:
                    break
                position = found.end()
                marker = data[position - 1]
            if marker == _EOI:
                break
            if marker < 0xC0 or marker == _SOI_MARKER:
                # Without content, or reserved: then libjpeg may go on right behind it, too.
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
                if is_alone:  # one scan is all
                    break
                if scans > MAX_SCANS:
                    _refuse_scans()
            position += data[position] << 8 | data[position + 1]
        else:
            _refuse_scans()
    except IndexError:
        pass  # it ends where a marker should be
    if not header:
        return None
    coefficient_bytes = 0 if is_alone else _coefficient_bytes(data, header, height * width)
    bits = data[header + 2]
    return Frame(height, width, coefficient_bytes, first_scan or len(data), frame, bits)


def refuse_unknown(frame: Frame) -> None:
    """Raises BadImageError, "undecodable", for a kind of JPEG that no decoder here reads."""
    if frame.marker not in _DECODED or frame.bits != _BITS:
        kind = f"SOF{frame.marker - _SOF0}" if frame.marker else "several frame headers"
        said = f"{kind}, {frame.bits} bits per sample: no decoder here reads such a JPEG"
        raise BadImageError("undecodable", said)


def refuse_pixels(height: int, width: int, most: int) -> None:
    """Raises BadImageError, "too_many_pixels", for an image of more than `most`."""
    if height * width > most:
        raise BadImageError("too_many_pixels", f"{width} x {height}, at most {most:,} pixels")


def segments(data: bytes, wanted: int, stop: int) -> Iterator[tuple[int, int]]:
    """Yields begin and end of each segment with this second byte of its marker, before a scan."""
    position = 2
    while (found := _MARKER.search(data, position, stop)) is not None:
        marker, position = data[found.end() - 1], found.end()
        if marker in (_SOS, _EOI):
            return
        if marker in _SEGMENTS:
            size = int.from_bytes(data[position : position + 2], "big")
            if marker == wanted:
                yield position + 2, min(position + size, len(data))
            position += size


def _coefficient_bytes(data: bytes, header: int, pixels: int) -> int:
    """Returns what all coefficients take: two bytes for each sample of each component."""
    factors = data[header + 9 : header + 8 + 3 * data[header + 7] : 3]
    sides = [(factor >> 4, factor & 15) for factor in factors]
    most = max((h for h, _ in sides), default=1) * max((v for _, v in sides), default=1)
    return 2 * pixels * sum(h * v for h, v in sides) // max(most, 1)


def _refuse_scans() -> NoReturn:
    raise BadImageError(
        "too_many_scans", f"more than {MAX_SCANS} scans or {_MAX_SEGMENTS:,} segments"
    )
