"""The figures of `bench-train`: read again from their file, and as cells of a table."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from imagenet_prep.core import canonical, regular_file
from imagenet_prep.core.errors import UsageError
from imagenet_prep.storage.os_errors import storage_errors

# The columns of the table: what is above each, and what it shows of a row.
_COLUMNS: dict[str, Callable[[Any], str]] = {
    "ranks": lambda row: f"{row['ranks']:,}",
    "hosts": lambda row: f"{row['hosts']:,}",
    "images/s": lambda row: f"{row['images_per_s']:,.1f}",
    "without input": lambda row: f"{row['images_per_s_without_input']:,.1f}",
    "efficiency": lambda row: f"{row['efficiency']:.0%}",
    "input": lambda row: "-" if row["input_share"] is None else f"{row['input_share']:.0%}",
    "communication": lambda row: f"{row['communication_share']:.0%}",
    "start-up": lambda row: f"{row['start_up_s']:,.1f} s",
    "90 epochs": lambda row: f"{row['hours']:,.1f} h",
    "dollars": lambda row: "-" if row["dollars"] is None else f"{row['dollars']:,.0f}",
}
HEADER = tuple(_COLUMNS)
_PERHAPS = (float, type(None))
# A row has 400 bytes; bench-train measures a few numbers of ranks.
_MOST_BYTES = 1 << 20
_ROW = {
    **dict.fromkeys(("ranks", "hosts"), int),
    **dict.fromkeys(("images_per_s", "images_per_s_without_input", "efficiency"), float),
    **dict.fromkeys(("communication_share", "start_up_s", "hours"), float),
    **dict.fromkeys(("input_share", "dollars"), _PERHAPS),
}
_POSITIVE = ("ranks", "images_per_s", "images_per_s_without_input")


def load(path: Path) -> list[Any]:
    """Returns the rows of a figures file.

    Raises:
      UsageError: the file is not one that `bench-train` wrote.
      StoreError: it cannot be read.
      DataDamagedError: it is no regular file, or too large.
    """
    with storage_errors("read", path):
        content = regular_file.read(path, _MOST_BYTES)
    try:
        found = canonical.loads(content)
        if not canonical.fits(found, {"rows": [_ROW]}) or not found["rows"]:
            raise ValueError("there are no rows of figures in it")
        numbers = [row[name] for row in found["rows"] for name in _POSITIVE]
        if not all(number > 0 and math.isfinite(number) for number in numbers):
            raise ValueError("a number of ranks or a speed in it is not above 0")
    except ValueError as error:
        raise UsageError(
            f"{path}: expected figures that `imagenet-prep bench-train` wrote: {error}"
        ) from None
    rows: list[Any] = found["rows"]
    return rows


def cells(rows: Sequence[Any]) -> list[list[str]]:
    """Returns a line below `HEADER` for each row."""
    return [[shown(row) for shown in _COLUMNS.values()] for row in rows]
