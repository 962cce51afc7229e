"""Says what image bytes are, from the bytes and never from the name."""

from __future__ import annotations

from typing import NamedTuple

import simplejpeg

from imagenet_prep.core.errors import BadImageError

_SOI = b"\xff\xd8\xff"
_EOI = b"\xff\xd9"
_SOS = 0xDA
# Markers without a length: TEM, RST0...RST7, SOI (ITU T.81, B.1.1.3).
_STANDALONE = frozenset({0x01, *range(0xD0, 0xD9)})


class Probe(NamedTuple):
    """The facts in a JPEG's header.

    Attributes:
      height, width: pixels.
      colorspace: libjpeg's name: "YCbCr", "RGB", "Gray", "CMYK", "YCCK".
    """

    height: int
    width: int
    colorspace: str


def probe(data: bytes) -> Probe | None:
    """Returns what the header of a JPEG says, None for anything else.

    Raises:
      BadImageError: "empty", or "undecodable" where a JPEG's header is broken.
    """
    if not data:
        raise BadImageError("empty", "zero bytes")
    if not data.startswith(_SOI):
        return None
    try:
        height, width, colorspace, _ = simplejpeg.decode_jpeg_header(data, strict=False)
    except (ValueError, KeyError) as error:
        # KeyError: simplejpeg looks up colour spaces that a damaged header makes up.
        raise BadImageError("undecodable", f"JPEG header: {error}") from error
    return Probe(height, width, colorspace)


def is_complete(data: bytes) -> bool:
    """Returns whether a JPEG's first scan is followed by an end marker.

    The scan is found by walking the segments: a thumbnail inside EXIF has scans and end
    markers of its own. Bytes behind the end marker are allowed.
    """
    return data.rfind(_EOI) > _start_of_scan(data) > 0


def _start_of_scan(data: bytes) -> int:
    """Returns the offset of the first SOS marker outside other segments, -1 without one."""
    position, last = 2, len(data) - 4
    while position <= last and data[position] == 0xFF:
        marker = data[position + 1]
        if marker == _SOS:
            return position
        if marker == 0xFF:  # padding before a marker
            position += 1
        elif marker in _STANDALONE:
            position += 2
        else:
            position += 2 + (data[position + 2] << 8 | data[position + 3])
    return -1
