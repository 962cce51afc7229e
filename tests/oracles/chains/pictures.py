"""Pictures that show their number, so that an image is known again after any new encoding."""

from __future__ import annotations

import hashlib
import io
import itertools
import random
from typing import NamedTuple

import numpy as np
from PIL import Image

from tests.kit.photographs import tagged

# Grey levels of the four corner cells of the 4 x 4 grid. They show the orientation of the picture.
_CORNERS = {(0, 0): 40, (0, 3): 110, (3, 0): 180, (3, 3): 250}
# The other cells are the binary digits of the number.
_DIGITS = [cell for cell in itertools.product(range(4), repeat=2) if cell not in _CORNERS]
_DARK = 20
_BRIGHT = 230
_MIDDLE = 125
MOST = 1 << len(_DIGITS)
# Kinds of files with an image; "turned" has an EXIF orientation.
SOUND = ("jpeg", "jpeg", "jpeg", "jpeg", "grey", "cmyk", "png", "gif", "webp", "turned")
DAMAGED = ("truncated", "empty", "text")
_FORMATS = {"png": "PNG", "gif": "GIF", "webp": "WEBP"}
_TURNED = 6


class Picture(NamedTuple):
    """An image file; `number` is shown by its pixels."""

    number: int
    kind: str
    data: bytes

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    @property
    def is_sound(self) -> bool:
        return self.kind not in DAMAGED


def draw(rng: random.Random, number: int, kind: str) -> Picture:
    """Returns a picture of a kind, of random size."""
    height = rng.randint(32, 96)
    width = rng.randint(32, 96)
    grid = np.zeros((4, 4), np.uint8)
    for cell, level in _CORNERS.items():
        grid[cell] = level
    for place, cell in enumerate(_DIGITS):
        grid[cell] = _BRIGHT if number >> place & 1 else _DARK
    image = Image.fromarray(grid).resize((width, height), Image.Resampling.NEAREST).convert("RGB")
    if kind == "grey":
        image = image.convert("L")
    if kind == "cmyk":
        image = image.convert("CMYK")
    buffer = io.BytesIO()
    name = _FORMATS.get(kind, "JPEG")
    options = {"quality": 92} if name == "JPEG" else {}
    image.save(buffer, name, **options)
    data = buffer.getvalue()
    if kind == "turned":
        data = tagged(data, _TURNED)
    if kind == "truncated":
        data = data[: len(data) // 2]
    if kind == "empty":
        data = b""
    if kind == "text":
        data = b"%d is no picture" % number
    return Picture(number, kind, data)


def number_of(encoded: bytes) -> int:
    """Returns the number that an image shows, whichever way up it is."""
    with Image.open(io.BytesIO(encoded)) as image:
        pixels = np.asarray(image.convert("L"), float)
    height, width = pixels.shape
    grid = np.zeros((4, 4))
    for row, column in itertools.product(range(4), repeat=2):
        # The middle of a cell, without the edges, which resizing blurs.
        rows = slice(height * (4 * row + 1) // 16, height * (4 * row + 3) // 16 + 1)
        columns = slice(width * (4 * column + 1) // 16, width * (4 * column + 3) // 16 + 1)
        grid[row, column] = pixels[rows, columns].mean()
    turned = [np.rot90(grid, quarter) for quarter in range(4)]
    upright = min(turned, key=_distance)
    return sum(int(upright[cell] > _MIDDLE) << place for place, cell in enumerate(_DIGITS))


def _distance(grid: np.ndarray) -> float:
    """Returns how far the corners are from those of an upright picture."""
    return sum(abs(float(grid[cell]) - level) for cell, level in _CORNERS.items())
