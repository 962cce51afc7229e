"""A column whose rows say to which record they belong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from imagenet_prep.core.world import World
from imagenet_prep.dataset import column
from imagenet_prep.dataset.column import Column
from imagenet_prep.read import ColumnWriter

NAME = "marks"
SHARD = "train-00001-of-00005"
NATIVE = {"backend": "native", "dtype": "uint8", "image_size": 16}


def mark(number: int) -> list[int]:
    """Returns the row of an example."""
    return [number, number * 7 % 100, 5]


def begin(root: Path, split: str = "train", **more: Any) -> ColumnWriter:
    settings: dict[str, Any] = {"batch_size": 8, "about": {"made": "in a test"}, "world": World()}
    settings["reader"] = NATIVE | {"fields": ("mask",)}
    return ColumnWriter(root, split, NAME, (3,), "int32", **settings | more)


def rows_of(batch: Any) -> Any:
    return np.array([mark(number) for number in batch["number"].tolist()], np.int32)


def write(root: Path, split: str = "train", **more: Any) -> int:
    """Writes the column; returns the number of records whose rows were computed."""
    computed = 0
    with begin(root, split, **more) as writer:
        for batch in writer:
            computed += int((batch["number"] >= 0).sum())
            writer.write(rows_of(batch))
    return computed


def record_of(root: Path) -> Column:
    path = root / column.record_name(NAME)
    return column.loads(path.read_bytes(), str(path), NAME)


def change(root: Path, new: Column) -> None:
    (root / column.record_name(NAME)).write_bytes(new.dumps())
