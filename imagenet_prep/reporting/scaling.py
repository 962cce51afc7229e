"""Reads the figures of `bench-train`, and formats them as table cells.

`bench-train` also runs without Matplotlib, so this module does not import `plots`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from imagenet_prep.core import small_files, strict_json
from imagenet_prep.core.errors import UsageError
from imagenet_prep.storage.local_file import storage_errors


@dataclass(frozen=True)
class RankFigures:
    """The figures for `ranks` ranks: measured speed, shares of time, forecast for 90 epochs."""

    ranks: int
    hosts: int
    images_per_s: float
    images_per_s_without_input: float
    efficiency: float
    input_share: float | None  # None without a dataset
    communication_share: float
    start_up_s: float
    hours: float
    dollars: float | None  # None without a price


_COLUMNS: dict[str, Callable[[RankFigures], str]] = {
    "ranks": lambda row: f"{row.ranks:,}",
    "hosts": lambda row: f"{row.hosts:,}",
    "images/s": lambda row: f"{row.images_per_s:,.1f}",
    "without input": lambda row: f"{row.images_per_s_without_input:,.1f}",
    "efficiency": lambda row: f"{row.efficiency:.0%}",
    "input": lambda row: "-" if row.input_share is None else f"{row.input_share:.0%}",
    "communication": lambda row: f"{row.communication_share:.0%}",
    "start-up": lambda row: f"{row.start_up_s:,.1f} s",
    "90 epochs": lambda row: f"{row.hours:,.1f} h",
    "dollars": lambda row: "-" if row.dollars is None else f"{row.dollars:,.0f}",
}
HEADER = tuple(_COLUMNS)
# Larger files are refused; a row has 400 bytes.
_MOST_BYTES = 1 << 20


def load(path: Path) -> list[RankFigures]:
    """Returns the rows of a bench-train.json."""
    with storage_errors("read", path):
        content = small_files.read(path, _MOST_BYTES)
    try:
        figures = strict_json.parse(dict[str, Any], strict_json.loads(content))
        rows = strict_json.parse(list[RankFigures], figures.get("rows"))
        if not rows:
            raise ValueError("it has no rows")
        for row in rows:
            if min(row.ranks, row.images_per_s, row.images_per_s_without_input) <= 0:
                raise ValueError("a number of ranks or a speed is 0 or negative")
    except ValueError as error:
        raise UsageError(
            f"{path}: not a bench-train.json written by `imagenet-prep bench-train`: {error}"
        ) from None
    return rows


def cells(rows: Sequence[RankFigures]) -> list[list[str]]:
    """Returns the table cells of each row, in the order of `HEADER`."""
    return [[text_of(row) for text_of in _COLUMNS.values()] for row in rows]
