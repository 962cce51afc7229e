"""Columns as the writer leaves them, made at once."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from imagenet_prep.dataset import column
from imagenet_prep.dataset.column import Column, ColumnFile
from imagenet_prep.storage.opened import open_dataset
from tests.kit import amended


def make_column(
    root: Path,
    name: str = "latents",
    *,
    seed: int = 0,
    about: str = "made",
    shape: tuple[int, ...] = (2,),
) -> Column:
    """Writes and returns a finished column of float32 for each record of all splits."""
    made = Column(name, "float32", shape, about)
    rng = np.random.default_rng(seed)
    (root / column.folder_name(name)).mkdir(parents=True)
    for split, of_split in open_dataset(str(root)).manifest.splits.items():
        rows = [rng.random((shard.examples, *shape), np.float32) for shard in of_split.shards]
        made = made.with_files(
            split,
            [
                write_rows(root, made, shard.name, of_shard, shard.samples_sha256)
                for shard, of_shard in zip(of_split.shards, rows, strict=True)
            ],
        )
    (root / column.record_name(name)).write_bytes(made.dumps())
    return made


def make_column_of_images(
    root: Path, name: str = "sums", *, made_from: str = column.OF_IMAGE
) -> Column:
    """Writes a column of 8 bytes of each image's sha256, and perhaps its class."""
    made = Column(name, "uint8", (9,), made_from=made_from)
    (root / column.folder_name(name)).mkdir(parents=True, exist_ok=True)
    for split, of_split in open_dataset(str(root)).manifest.splits.items():
        files = []
        for shard in of_split.shards:
            table = list(amended.rows(root, shard.name).values())
            rows = np.array([row_of(line, made_from) for line in table], np.uint8)
            files.append(write_rows(root, made, shard.name, rows, shard.samples_sha256))
        made = made.with_files(split, files)
    (root / column.record_name(name)).write_bytes(made.dumps())
    return made


def row_of(line: list[str], made_from: str) -> list[int]:
    """Returns the row of a record in `make_column_of_images`, by its line in the table."""
    return [*bytes.fromhex(line[5])[:8], int(line[1]) % 256 if made_from == column.OF_CLASS else 0]


def write_rows(root: Path, made: Column, shard: str, rows: np.ndarray, table: str) -> ColumnFile:
    """Writes the rows of a shard."""
    data = made.header(len(rows)) + rows.tobytes()
    (root / column.file_name(made.name, shard)).write_bytes(data)
    return ColumnFile(shard, len(rows), len(data), hashlib.sha256(data).hexdigest(), table)
