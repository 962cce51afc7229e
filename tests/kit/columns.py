"""Columns for tests: written by the writer with rows that name their record, or directly."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from imagenet_prep.core.world import World
from imagenet_prep.dataset import column
from imagenet_prep.dataset.column import Column, ColumnFile
from imagenet_prep.dataset.manifest import Shard
from imagenet_prep.read import ColumnWriter
from imagenet_prep.storage.dataset_store import open_dataset
from tests.kit import amended

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
    """Writes the column; returns the number of records with computed rows."""
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


def make_column(
    root: Path,
    name: str = "latents",
    *,
    seed: int = 0,
    about: str = "made",
    shape: tuple[int, ...] = (2,),
) -> Column:
    """Writes and returns a complete column of random float32 for each record of all splits."""
    rng = np.random.default_rng(seed)
    return _make(
        root,
        Column(name, "float32", shape, about),
        lambda shard: rng.random((shard.examples, *shape), np.float32),
    )


def make_column_of_images(
    root: Path, name: str = "sums", *, made_from: str = column.OF_IMAGE
) -> Column:
    """Writes a column of 8 bytes of each image's sha256, and optionally its class."""
    made = Column(name, "uint8", (9,), made_from=made_from)

    def of_shard(shard: Shard) -> np.ndarray:
        table = amended.rows(root, shard.name).values()
        return np.array([row_of(line, made_from) for line in table], np.uint8)

    return _make(root, made, of_shard)


def complete_column_of_images(root: Path, made: Column) -> list[str]:
    """Completes this column by its writer; returns the keys of the computed rows."""
    computed = []
    for split in ("train", "validation"):
        table = [*amended.rows(root, split).values()]
        fields = ("key",) if made.made_from == column.OF_CLASS else ("mask",)
        with ColumnWriter(
            root, split, made.name, made.shape, made.dtype, made.about,
            batch_size=2, reader=NATIVE | {"fields": fields}, world=World(),
        ) as writer:  # fmt: skip
            for batch in writer:
                lines = [table[number] for number in batch["number"].tolist() if number >= 0]
                computed += [line[0] for line in lines]
                writer.write(np.array([row_of(line, made.made_from) for line in lines], np.uint8))
        assert writer.is_complete
    return computed


def row_of(line: list[str], made_from: str) -> list[int]:
    """Returns the row of a record in `make_column_of_images`, by its line in the table."""
    return [*bytes.fromhex(line[5])[:8], int(line[1]) % 256 if made_from == column.OF_CLASS else 0]


def _make(root: Path, made: Column, rows_of_shard: Callable[[Shard], np.ndarray]) -> Column:
    (root / column.folder_name(made.name)).mkdir(parents=True, exist_ok=True)
    for split, of_split in open_dataset(str(root)).manifest.splits.items():
        files = []
        for shard in of_split.shards:
            rows = rows_of_shard(shard)
            table = shard.samples_sha256
            data = made.header(len(rows)) + rows.tobytes()
            (root / column.file_name(made.name, shard.name)).write_bytes(data)
            sha256 = hashlib.sha256(data).hexdigest()
            files.append(ColumnFile(shard.name, len(rows), len(data), sha256, table))
        made = made.with_files(split, files)
    (root / column.record_name(made.name)).write_bytes(made.dumps())
    return made
