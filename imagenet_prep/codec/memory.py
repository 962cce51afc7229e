"""Estimates, from an image's size, the memory that decoding it needs.

Images that need more than cage.LIGHT_BYTES are decoded one at a time (`core/turns`). So a command
on two cores needs about 1.2 GB: 150 MB for itself, and memory for one light and one heavy image.
The estimates are peak values of `prepare`, measured with images of 64 MP, which is the limit:

    JPEG        7 bytes per decoded pixel (decoding may downscale): 3 for planes or RGB, and the
                resized copy. With several scans, also 2 bytes per coefficient
    WebP, HEIF  12 bytes per pixel: two canvases of libwebp, or planes, RGB, and a copy
    other       8 bytes per pixel: 4 for Pillow, 3 for RGB, and the current rows

They only decide which images wait. The cage limits the memory for all images that decoder.c does
not take.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from typing import TYPE_CHECKING

from imagenet_prep.codec import cage, planes
from imagenet_prep.core import turns
from imagenet_prep.dataset.jpeg import Frame

if TYPE_CHECKING:
    from PIL import Image

# bytes per pixel
_JPEG = 7
_LARGE = 12
_OTHER = 8
_LARGE_FORMATS = ("WEBP", "AVIF", "HEIF")


def of_jpeg(frame: Frame, decoded: int) -> int:
    """Estimates the memory for decoding a JPEG, downscaled to `decoded` pixels if possible."""
    pixels = frame.height * frame.width
    pixels = min(decoded, pixels) if frame.can_be_scaled else pixels
    return frame.coefficient_bytes + _JPEG * pixels


def of_opened(opened: Image.Image, frame: Frame | None) -> int:
    """Estimates the memory for decoding a file that Pillow has opened."""
    coefficient_bytes = 0 if frame is None else frame.coefficient_bytes
    per_pixel = _LARGE if opened.format in _LARGE_FORMATS else _OTHER
    return coefficient_bytes + per_pixel * opened.width * opened.height


@contextlib.contextmanager
def room(estimate: int) -> Iterator[None]:
    """Waits until the `with` block may decode an image that needs `estimate` bytes."""
    if estimate <= cage.LIGHT_BYTES:
        yield
        return
    with turns.turn():
        try:
            yield
        finally:
            release()


def release() -> None:
    """Gives memory back to the system that this thread needed for a large image."""
    planes.forget()
    # glibc keeps hundreds of megabytes that Pillow frees in blocks of 16 MB.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
