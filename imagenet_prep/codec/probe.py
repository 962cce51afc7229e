"""Says what image bytes are, from the bytes and never from the name."""

from __future__ import annotations

from typing import NamedTuple

import simplejpeg

from imagenet_prep.core.errors import BadImageError

JPEG = "jpeg"
OTHER = "other"

_SOI = b"\xff\xd8\xff"
_SOS = b"\xff\xda"
_EOI = b"\xff\xd9"


class Probe(NamedTuple):
    """What a header says.

    Attributes:
      format: "jpeg", or "other" for whatever the general decoder may know.
      height, width: pixels, 0 for "other".
      colorspace: libjpeg's name: "YCbCr", "RGB", "Gray", "CMYK", "YCCK"; "" for "other".
    """

    format: str
    height: int
    width: int
    colorspace: str


def probe(data: bytes) -> Probe:
    """Returns what the header of `data` says.

    Raises:
      BadImageError: "empty", or "undecodable" where a JPEG's header is broken.
    """
    if not data:
        raise BadImageError("empty", "zero bytes")
    if not data.startswith(_SOI):
        return Probe(OTHER, 0, 0, "")
    try:
        height, width, colorspace, _ = simplejpeg.decode_jpeg_header(data, strict=False)
    except (ValueError, KeyError) as error:
        # KeyError: simplejpeg looks up colour spaces that a damaged header makes up.
        raise BadImageError("undecodable", f"JPEG header: {error}") from error
    return Probe(JPEG, height, width, colorspace)


def is_complete(data: bytes) -> bool:
    """Returns whether a JPEG's last scan is followed by its end marker.

    A thumbnail inside EXIF has markers of its own, so the end must lie behind the last
    start of scan. Bytes behind the end marker are allowed.
    """
    return data.rfind(_EOI) > data.rfind(_SOS) > 0
