"""JPEGs of every kind: samplings, sizes, scans, photographs; and digests of their results."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image

from imagenet_prep.codec.planes import BICUBIC, BYTES, Look
from imagenet_prep.codec.policy import PLANES, PORTABLE, Policy
from imagenet_prep.codec.transform import transform
from imagenet_prep.testing.photographs import FAMILIES, IMAGENET_SIZE, Camera
from tests.kit.codec import jpegs, mutations

SAMPLINGS = ("420", "422", "444", "440", "411")
SIZES = ((1, 1), (1, 70), (70, 1), (2, 3), (17, 33), (96, 128), (97, 131), (400, 300), (40, 1500))
TARGETS = (1, 7, 16, 31, 64)
PHOTOGRAPH_SIDE = 256
# A few in `make test`; all in `make test-long`.
FEW = 20
ALL = 300
GOLDEN = Path(__file__).parents[2] / "golden" / "codec.json"


def photograph(height: int, width: int) -> np.ndarray:
    """Returns [height, width, 3] uint8: shapes of all sizes and some grain."""
    rng = np.random.default_rng(height * 10_000 + width)
    small = rng.integers(0, 256, (9, 11, 3), dtype=np.uint8)
    rows = Image.fromarray(small).resize((width, 9), Image.Resampling.BICUBIC)
    smooth = rows.resize((width, height), Image.Resampling.BICUBIC)
    grain = rng.normal(0, 8, (height, width, 3))
    return np.clip(np.asarray(smooth) + grain, 0, 255).astype(np.uint8)


def decoded(
    data: bytes, height: int, width: int, window: Sequence[int] | None = None
) -> np.ndarray | None:
    """Returns [height, width, 3] of a JPEG, or of a window of it; None if planes declines."""
    pixels = np.empty((height, width, 3), np.uint8)
    made = Look(height, width, BYTES, BICUBIC).decode(data, window, pixels)
    return pixels if made else None


@cache
def files() -> dict[str, bytes]:
    """Returns the JPEGs by name."""
    found = {f"mutations {name}": data for name, data in mutations.sources().items()}
    for height, width in SIZES:
        pixels = photograph(height, width)
        for sampling in SAMPLINGS:
            name = f"{height}x{width} {sampling}"
            found[name] = jpegs.encode(pixels, 92, sampling)
    return found


@cache
def photographs(count: int) -> list[bytes]:
    """Returns images of the benchmarks' corpus, of about 500 x 375 pixels; few of them are large.

    A digest of their results needs the same bytes on every machine. They are: integers from NumPy's
    generator, Pillow's integer filters and libjpeg-turbo's encoder.
    """
    camera = Camera(IMAGENET_SIZE, 0)
    families = sorted(FAMILIES)
    found = []
    for i in range(count):
        ordinal, place = divmod(i, len(families))
        rng = np.random.default_rng((0, False, place, ordinal))
        found.append(camera.shoot(families[place], "plain", rng)[-1])
    return found


def jobs(num_photographs: int) -> Iterator[tuple[bytes, Policy]]:
    """Yields the content of a digest: images and their transformations."""
    for data in files().values():
        for side in TARGETS:
            yield data, Policy(side)
        yield data, Policy(50, 70, stretch=True)
    for data in photographs(num_photographs):
        yield data, Policy(PHOTOGRAPH_SIDE)


def digest(codec: str, num_photographs: int) -> str:
    """Returns the sha256 of a codec's results for the odd files and photographs."""
    return _sha256(
        transform(data, replace(policy, codec=codec)).encoded
        for data, policy in jobs(num_photographs)
    )


def digests(num_photographs: int) -> dict[str, str]:
    """Returns the content of tests/golden/codec.json: by codec, and of the sources themselves."""
    found = {codec: digest(codec, num_photographs) for codec in (PLANES, PORTABLE)}
    return {"sources": _sha256(data for data, _ in jobs(num_photographs)), **found}


def golden(num_photographs: int) -> dict[str, str]:
    """Returns the expected digests."""
    found: dict[str, dict[str, str]] = json.loads(GOLDEN.read_text())
    return found[str(num_photographs)]


def _sha256(parts: Iterable[bytes]) -> str:
    total = hashlib.sha256()
    for part in parts:
        total.update(part)
    return total.hexdigest()
