"""JPEG files of all common kinds, to compare our decoder with libjpeg."""

from __future__ import annotations

import io
import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from PIL import Image, ImageFile

from tests.kit.codec import corpus, jpegs

_NUM_PHOTOGRAPHS = 24
# Pillow's names; the others are those of planes.SAMPLINGS.
_PILLOW_SAMPLINGS = ("4:4:4", "4:2:2", "4:2:0")
_SIMPLE_SAMPLINGS = ("440", "411")
_QUALITIES = (1, 5, 20, 50, 70, 75, 80, 85, 90, 92, 95, 98, 100)


def photographs() -> list[np.ndarray]:
    """Returns images [height, width, 3] uint8 from which files are cut."""
    made = corpus.photographs(_NUM_PHOTOGRAPHS)
    return [jpegs.decode(data) for data in made]


def files(
    count: int, seed: int = 0, sources: Sequence[np.ndarray] | None = None
) -> Iterator[bytes]:
    """Yields JPEG files of all samplings, qualities, tables, restarts and sizes; some are odd.

    Args:
      count: number of files.
      seed: the same files for the same seed and sources.
      sources: images [height, width, 3] uint8 from which they are cut; those of the tests if None.
    """
    rng = random.Random(seed)
    pictures = photographs() if sources is None else sources
    for _ in range(count):
        pixels = _cut(rng.choice(pictures), rng)
        if rng.random() < 0.15:
            quality = rng.choice(_QUALITIES)
            sampling = rng.choice(_SIMPLE_SAMPLINGS)
            yield jpegs.encode(pixels, quality, sampling)
        else:
            yield _encoded(pixels, rng)


def _cut(picture: np.ndarray, rng: random.Random) -> np.ndarray:
    """Returns a part of an image, of any size and shape, perhaps downscaled, perhaps with grain."""
    height, width = picture.shape[:2]
    most = rng.choice((16, 64, 200, 500, max(height, width)))
    high, wide = (rng.randint(1, min(most, side)) for side in (height, width))
    top = rng.randint(0, height - high)
    left = rng.randint(0, width - wide)
    part = picture[top : top + high, left : left + wide]
    if rng.random() < 0.3:
        grain = np.random.default_rng(rng.getrandbits(32)).normal(
            0, rng.choice((3, 20)), part.shape
        )
        part = np.clip(part + grain, 0, 255).astype(np.uint8)
    return np.ascontiguousarray(part)


def _encoded(pixels: np.ndarray, rng: random.Random) -> bytes:
    options: dict[str, Any] = {
        "quality": rng.choice(_QUALITIES),
        "subsampling": rng.choice(_PILLOW_SAMPLINGS),
        "optimize": rng.random() < 0.5,
    }
    if rng.random() < 0.1:
        options["qtables"] = [[rng.randint(1, 255) for _ in range(64)] for _ in range(2)]
    if rng.random() < 0.25:
        options["restart_marker_blocks"] = rng.choice((1, 2, 3, 7, 50, 1000))
    elif rng.random() < 0.1:
        options["restart_marker_rows"] = rng.randint(1, 3)
    if rng.random() < 0.1:
        options["comment"] = b"\xff\xd9 \xff\xda \xff"
    mode = rng.choices(("RGB", "L", "CMYK"), (0.83, 0.15, 0.02))[0]
    if rng.random() < 0.03:
        options["progressive"] = True
    buffer = io.BytesIO()
    room = ImageFile.MAXBLOCK
    # Pillow writes optimised files in one piece, and its buffer is too small for tables of small
    # numbers.
    ImageFile.MAXBLOCK = 8 * pixels.size + 100_000
    try:
        Image.fromarray(pixels).convert(mode).save(buffer, "JPEG", **options)
    finally:
        ImageFile.MAXBLOCK = room
    return buffer.getvalue()
