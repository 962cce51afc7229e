"""About 250 images that may need far more time or memory than their size suggests.

Each module has a table for one format. A row names a structure of the format that repeats, nests,
loops, claims a size or unpacks; the function that makes it; and magnitudes, from small to 30 MB.
Most of these magnitudes are numbers of repetitions; some are pixels per side.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

from tests.kit.hostile.bombs import bmp, gif, heif, jpeg, other, png, tiff, webp

Make = Callable[[int], bytes]
Table = Mapping[str, tuple[Make, tuple[int, ...]]]

TABLES: dict[str, Table] = {
    "JPEG": jpeg.TABLE,
    "PNG": png.TABLE,
    "GIF": gif.TABLE,
    "BMP": bmp.TABLE,
    "TIFF": tiff.TABLE,
    "WebP": webp.TABLE,
    "AVIF": heif.TABLE,
    "HEIC": heif.TABLE_OF_HEIC,
    "other": other.TABLE,
}


def _bombs() -> dict[str, Callable[[], bytes]]:
    found: dict[str, Callable[[], bytes]] = {}
    for name, table in TABLES.items():
        for structure, (make, magnitudes) in table.items():
            for magnitude in magnitudes:
                found[f"{name}: {structure} x {magnitude:,}"] = functools.partial(make, magnitude)
    return found


def _smallest() -> list[str]:
    found = []
    for name, table in TABLES.items():
        for structure, (_, magnitudes) in table.items():
            found.append(f"{name}: {structure} x {magnitudes[0]:,}")
    return found


# By name: "PNG: private chunks x 100".
BOMBS = _bombs()
# The names of those with the smallest magnitude of each structure.
SMALLEST = _smallest()
