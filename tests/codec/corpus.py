"""JPEGs of every kind that the planes codec knows: samplings, sizes, scans; and its digest."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cache

import numpy as np
import simplejpeg
from PIL import Image

from imagenet_prep.codec.policy import Policy
from imagenet_prep.codec.transform import transform
from tests.codec import mutations

SAMPLINGS = ("420", "422", "444", "440", "411")
SIZES = ((1, 1), (1, 70), (70, 1), (2, 3), (17, 33), (96, 128), (97, 131), (400, 300), (40, 1500))
TARGETS = (1, 7, 16, 31, 64)


def photograph(height: int, width: int) -> np.ndarray:
    """Returns [height, width, 3] uint8: shapes of all sizes and some grain."""
    rng = np.random.default_rng(height * 10_000 + width)
    small = rng.integers(0, 256, (9, 11, 3), dtype=np.uint8)
    smooth = Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)
    grain = rng.normal(0, 8, (height, width, 3))
    return np.clip(np.asarray(smooth) + grain, 0, 255).astype(np.uint8)


@cache
def files() -> dict[str, bytes]:
    """Returns the JPEGs by name."""
    found = {f"mutations {name}": data for name, data in mutations.sources().items()}
    for height, width in SIZES:
        pixels = photograph(height, width)
        for sampling in SAMPLINGS:
            name = f"{height}x{width} {sampling}"
            found[name] = simplejpeg.encode_jpeg(pixels, 92, "RGB", sampling)
    return found


def outputs(codec: str) -> Iterator[bytes]:
    """Yields what a codec makes of all files."""
    for data in files().values():
        for side in TARGETS:
            yield transform(data, Policy(side, codec=codec)).encoded
        yield transform(data, Policy(50, 70, stretch=True, codec=codec)).encoded


def digest(codec: str) -> str:
    """Returns the sha256 of everything that a codec makes of all files."""
    total = hashlib.sha256()
    for encoded in outputs(codec):
        total.update(encoded)
    return total.hexdigest()
