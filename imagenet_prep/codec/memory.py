"""Estimates, from an image's header, the memory that decoding it needs.

Images that need more than LIGHT_BYTES are decoded one at a time (`core/turns`). So a command on two
cores needs less than a gigabyte: 100 MB for itself, and memory for one light and one heavy image.
The estimates are peak values of `prepare`, measured with images of 64 MP, which is the limit:

    JPEG    7 bytes per decoded pixel (decoding may downscale): 3 for planes or RGB, and the resized
            copy; 8 bytes if Pillow decodes it. With several scans, also 2 bytes per coefficient
    WebP    12 bytes per pixel: two canvases of libwebp, and the image
    AVIF    12 bytes per pixel, also for HEIC: planes, RGB, and a copy
    TIFF    8 bytes per pixel, or 4 plus one complete tile or strip, which may exceed the image
    other   8 bytes per pixel: 4 for Pillow, 3 for RGB, and the current rows
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator

from PIL import Image
from PIL.TiffImagePlugin import BITSPERSAMPLE, TILELENGTH, TILEWIDTH, TiffImageFile

from imagenet_prep.codec import planes
from imagenet_prep.core import turns
from imagenet_prep.core.errors import BadImageError
from imagenet_prep.dataset.jpeg import Frame

LIGHT_BYTES = 128 << 20
# A WebP of 64 MP needs 768,000,000.
MOST_BYTES = 800_000_000

_JPEG, _LARGE, _OTHER, _PILLOW = 7, 12, 8, 4  # bytes per pixel


def of_jpeg(frame: Frame, decoded: int) -> int:
    """Estimates the memory for decoding a JPEG, downscaled to `decoded` pixels if possible."""
    pixels = frame.height * frame.width
    pixels = min(decoded, pixels) if frame.can_be_scaled else pixels
    return frame.coefficient_bytes + _JPEG * pixels


def of_opened(opened: Image.Image, frame: Frame | None) -> int:
    """Estimates the memory for decoding a file that Pillow has opened; rejects huge TIFF tiles."""
    pixels = opened.width * opened.height
    estimate = (_LARGE if opened.format in ("WEBP", "AVIF", "HEIF") else _OTHER) * pixels
    if frame is not None:
        return frame.coefficient_bytes + estimate
    if isinstance(opened, TiffImageFile):
        estimate = max(estimate, _PILLOW * pixels + _tile_bytes(opened))
    if estimate > MOST_BYTES:
        raise BadImageError("too_many_pixels", f"its tiles need {estimate:,} bytes to be decoded")
    return estimate


def _tile_bytes(opened: TiffImageFile) -> int:
    tags = opened.tag_v2
    width, height = tags.get(TILEWIDTH, opened.width), tags.get(TILELENGTH, opened.height)
    return int(width * height * sum(tags.get(BITSPERSAMPLE, (1,))) // 8)


@contextlib.contextmanager
def room(estimate: int) -> Iterator[None]:
    """Waits until the `with` block may decode an image that needs `estimate` bytes."""
    if estimate <= LIGHT_BYTES:
        yield
        return
    with turns.turn():
        try:
            yield
        finally:
            planes.forget()
            # glibc keeps hundreds of megabytes that Pillow frees in blocks of 16 MB.
            trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
            if trim is not None:
                trim(0)
