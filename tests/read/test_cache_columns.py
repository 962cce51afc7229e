"""Columns of remote datasets in the cache of a node: fetched, bounded and verified."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep.core.errors import (
    DataDamagedError,
    UsageError,
)
from imagenet_prep.dataset import schema
from imagenet_prep.read import make_dataset
from tests.kit.columns import make_column
from tests.kit.dataset import all_files
from tests.kit.http_server import serve
from tests.kit.messages import says
from tests.kit.reading import TRAIN

pytestmark = pytest.mark.slow  # servers or processes in each test


SHARDS = [schema.shard_name("train", i, len(TRAIN)) for i in range(len(TRAIN))]


@pytest.fixture
def with_column(colours: Path, tmp_path: Path) -> Path:
    """The dataset with a column of 8 kB per record, so that its files are larger than shards."""
    root = Path(shutil.copytree(colours, tmp_path / "with-column"))
    make_column(root, shape=(2048,))
    return root


COLUMN = "column:latents"


def rows_of(address: str, **options: Any) -> dict[int, tuple[int, bytes]]:
    """Returns the class and the row of each example of an epoch, by its number."""
    options = {"batch_size": 4, "seed": 3, "shuffle_window": 1, "backend": "native", **options}
    options.setdefault("fields", ("class_index", "number", COLUMN))
    with contextlib.closing(make_dataset(address, "train", **options)) as reader:
        rows: dict[int, tuple[int, bytes]] = {}
        for batch in reader:
            numbers = batch["number"].tolist()
            indices = batch["class_index"].tolist()
            contents = [row.tobytes() for row in batch[COLUMN]]
            rows |= zip(numbers, zip(indices, contents, strict=True), strict=True)
        return rows


@pytest.mark.parametrize("images", [True, False])
def test_columns_are_fetched_only_for_shards_being_read(
    with_column: Path, tmp_path: Path, images: bool
) -> None:
    fields = ("class_index", "number", COLUMN, *(["images"] if images else []))
    expected = rows_of(str(with_column), fields=fields)
    with serve(all_files(with_column)) as running:
        found = rows_of(running.url, fields=fields, cache_dir=tmp_path / "cache")
        assert found == expected
        for name in SHARDS:
            assert len(running.reads(f"/columns/latents/{name}.npy")) == 1
            # Without a field that needs them, no record is fetched.
            assert bool(running.reads(f"/{name}")) == images
        running.requests.clear()
        assert rows_of(running.url, fields=fields, cache_dir=tmp_path / "cache") == expected
        assert not any(running.reads(f"/columns/latents/{name}.npy") for name in SHARDS)


def test_limit_of_the_cache_includes_columns(with_column: Path, tmp_path: Path) -> None:
    files = [*(with_column / "columns/latents").glob("train-*.npy")]
    sizes = sorted(path.stat().st_size for path in files)
    limit = sum(sizes[-2:])
    too_little = sum(sizes[:2]) - 1
    with serve(all_files(with_column)) as running:
        for seed in range(3):
            rows_of(running.url, cache_dir=tmp_path / "cache", cache_gb=limit / 1e9, seed=seed)
            there = [*(tmp_path / "cache").rglob("columns/latents/*.npy")]
            assert 0 < sum(path.stat().st_size for path in there) <= limit
        with pytest.raises(UsageError, match=says("cache-limited-gb-reading-one")):
            rows_of(running.url, cache_dir=tmp_path / "cache", cache_gb=too_little / 1e9)
        # The column of a different reader makes space for shards.
        rows_of(
            running.url,
            cache_dir=tmp_path / "cache",
            cache_gb=2 * limit / 1e9,
            fields=("images", "class_index", "number", COLUMN),
        )


def test_damaged_row_is_never_read_through_the_cache(with_column: Path, tmp_path: Path) -> None:
    name = f"columns/latents/{SHARDS[0]}.npy"
    files = all_files(with_column)
    files[name] = files[name][:-1] + bytes([files[name][-1] ^ 1])
    with (
        serve(files) as running,
        pytest.raises(DataDamagedError, match=f"{name}.*sha256"),
    ):
        rows_of(running.url, cache_dir=tmp_path / "cache")


@pytest.mark.parametrize("said", [b"{}", b"[" * 100_000, b'{"name":"../../x"}'])
def test_hostile_column_on_a_server_is_damage(
    with_column: Path, tmp_path: Path, said: bytes
) -> None:
    files = {**all_files(with_column), "columns/latents/column.json": said}
    with serve(files) as running, pytest.raises(DataDamagedError, match=r"column\.json: damaged"):
        rows_of(running.url, cache_dir=tmp_path / "cache")
