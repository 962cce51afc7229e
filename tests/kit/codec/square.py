"""The square crop of image generators, made by Pillow."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from PIL import Image


def pillows(data: bytes, side: int) -> Any:
    """Returns center_crop_arr of guided-diffusion."""
    with Image.open(io.BytesIO(data)) as opened:
        image = opened.convert("RGB")
    while min(*image.size) >= 2 * side:
        image = image.resize((image.width // 2, image.height // 2), Image.Resampling.BOX)
    scale = side / min(*image.size)
    size = round(image.width * scale), round(image.height * scale)
    pixels = np.array(image.resize(size, Image.Resampling.BICUBIC))
    top = (pixels.shape[0] - side) // 2
    left = (pixels.shape[1] - side) // 2
    return pixels[top : top + side, left : left + side]
