"""Says what image bytes are, from the bytes and never from the name."""

from __future__ import annotations

from typing import NamedTuple

import simplejpeg

from imagenet_prep.core.errors import BadImageError
from imagenet_prep.dataset import jpeg

_SOI = b"\xff\xd8\xff"
_EOI = b"\xff\xd9"


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

    A thumbnail inside EXIF has scans and end markers of its own, before the first scan. Bytes
    behind the end marker are allowed.
    """
    frame = jpeg.refuse_bombs(data)
    return frame is not None and data.rfind(_EOI) > frame.first_scan
