"""Small pictures as data URIs, and the PSNR of two pictures."""

from __future__ import annotations

import base64
import io
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageOps

from imagenet_prep.codec import decoding
from imagenet_prep.core.errors import BadImageError

if TYPE_CHECKING:
    import numpy.typing as npt

    Pixels = npt.NDArray[np.uint8]

_LANCZOS = Image.Resampling.LANCZOS
# Side in pixels and WebP quality of pictures in lists.
_SIDE = 176
_QUALITY = 72
_BAND_PIXELS = 1 << 20


def decode(data: bytes, smallest: int | None = None) -> Image.Image | None:
    """Returns an RGB image, even if the data is truncated; None if the data cannot be decoded.

    A JPEG may be decoded at a reduced size, with sides of at least `smallest` pixels.
    """
    try:
        pixels = decoding.pixels(data, smallest=smallest, damaged=True, truncated=True)
        return Image.fromarray(pixels)
    except BadImageError:
        return None


def thumbnail(data: bytes, side: int = _SIDE, quality: int = _QUALITY) -> str | None:
    """Returns the square centre of an image as a data URI; None if it cannot be decoded."""
    image = decode(data, 2 * side)
    return data_uri(ImageOps.fit(image, (side, side), _LANCZOS), quality) if image else None


def data_uri(image: Image.Image, quality: int) -> str:
    """Returns an image as a WebP data URI."""
    buffer = io.BytesIO()
    image.save(buffer, "WEBP", quality=quality, method=4)
    return "data:image/webp;base64," + base64.b64encode(buffer.getvalue()).decode()


def shrunk(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    """Returns an image resized to (width, height) with Lanczos."""
    return image if image.size == size else image.resize(size, _LANCZOS)


def middle(image: Image.Image, width: int, height: int) -> Image.Image:
    """Returns the centre of an image, at most `width` x `height` pixels."""
    width = min(width, image.width)
    height = min(height, image.height)
    left = (image.width - width) // 2
    top = (image.height - height) // 2
    return image.crop((left, top, left + width, top + height))


def psnr(one: Image.Image, other: Image.Image) -> float | None:
    """Returns the PSNR in dB of two RGB images of the same size; None if they are equal."""
    total = 0
    rows = max(1, _BAND_PIXELS // one.width)
    for top in range(0, one.height, rows):
        box = (0, top, one.width, min(top + rows, one.height))
        bands = (np.asarray(picture.crop(box)).astype(np.int32) for picture in (one, other))
        total += int(((next(bands) - next(bands)) ** 2).sum(dtype=np.int64))
    error = total / (3 * one.width * one.height)
    return None if error == 0 else float(10 * np.log10(255.0**2 / error))
