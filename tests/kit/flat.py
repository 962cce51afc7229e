"""Images of one colour, which encodes their class, so their pixels prove the label.

Programs in other environments import this too, so it only imports NumPy and Pillow.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

CLASSES = 1000
# Ten levels per channel, far enough apart that JPEG and resizing cannot confuse them.
_LOWEST = 20
_STEP = 24
_LEVELS = 10


def colour(class_index: int) -> tuple[int, int, int]:
    """Returns the colour of a class."""
    digits = (class_index // 100, class_index // 10 % 10, class_index % 10)
    red, green, blue = (_LOWEST + _STEP * digit for digit in digits)
    return red, green, blue


def class_of(image: Any) -> int:
    """Returns the class of one image; [height, width, 3], 0 ... 255.

    Raises:
      ValueError: no class has this colour.
    """
    mean = np.asarray(image, np.float64).reshape(-1, 3).mean(axis=0)
    levels = (mean - _LOWEST) / _STEP
    digits = np.rint(levels)
    if np.abs(levels - digits).max() > 0.3 or not ((digits >= 0) & (digits < _LEVELS)).all():
        raise ValueError(f"no class has the colour {mean}")
    return int(digits @ [100, 10, 1])


def jpeg(class_index: int, side: int) -> bytes:
    """Returns a square image of a class."""
    buffer = io.BytesIO()
    image = Image.new("RGB", (side, side), colour(class_index))
    image.save(buffer, "JPEG", quality=95, subsampling=0)
    return buffer.getvalue()


def write(root: Path, wnids: list[str], *, side: int = 64, in_train: int = 2) -> None:
    """Writes train/ and val/ with a folder for each class, and one image per class in val/."""
    for class_index, wnid in enumerate(wnids):
        data = jpeg(class_index, side)
        for split, count in (("train", in_train), ("val", 1)):
            folder = root / split / wnid
            folder.mkdir(parents=True)
            for number in range(count):
                (folder / f"{wnid}_{split}_{number}.JPEG").write_bytes(data)
