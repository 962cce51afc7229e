"""JPEGs of RGB pixels; and their pixels, decoded by Pillow as an independent decoder."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

from imagenet_prep.codec import planes


def encode(pixels: np.ndarray, quality: int, sampling: str) -> bytes:
    """Returns RGB pixels [height, width, 3] as a JPEG; `sampling` is a key of planes.SAMPLINGS."""
    return planes.workspace().encode(pixels, quality, sampling)


def decode(data: bytes) -> np.ndarray:
    """Returns the RGB pixels [height, width, 3] of a JPEG."""
    with Image.open(io.BytesIO(data), formats=("JPEG",)) as image:
        return np.asarray(image.convert("RGB"))


def grey(data: bytes) -> np.ndarray:
    """Returns the luma [height, width] of a JPEG."""
    with Image.open(io.BytesIO(data), formats=("JPEG",)) as image:
        image.draft("L", image.size)
        return np.asarray(image)


def size(data: bytes) -> tuple[int, int]:
    """Returns (height, width) of a JPEG."""
    with Image.open(io.BytesIO(data), formats=("JPEG",)) as image:
        return image.height, image.width


def decode_strictly(data: bytes) -> np.ndarray:
    """Returns the RGB pixels [height, width, 3] of a JPEG; ValueError if libjpeg warns."""
    header = planes.workspace().header(data)
    if header is None:
        raise ValueError("a header that libjpeg refuses, or that has no name")
    height, width, _ = header
    return planes.workspace().pixels(data, height, width, 8, strict=True)
