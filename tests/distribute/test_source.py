"""The dataset that is replicated: replaced meanwhile, no manifest is put next to its copies."""

from __future__ import annotations

from pathlib import Path

import pytest

from imagenet_prep.core.errors import DataDamagedError, IncompleteError, UsageError
from imagenet_prep.dataset import schema
from imagenet_prep.dataset.manifest import DatasetFile
from imagenet_prep.distribute.send import Original
from tests.kit.replicas import make_dataset

SHARD = "train-00000-of-00002"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    make_dataset(tmp_path / "set", shards=2, shard_bytes=1000)
    return tmp_path / "set"


def opened(root: Path) -> Original:
    return Original(str(root), connections=1, timeout_s=1, retries=0, bytes_per_s=0)


@pytest.mark.parametrize("change", ["replaced", "damaged", "removed"])
def test_a_manifest_that_is_not_the_one_of_the_beginning_ends_the_run(
    root: Path, tmp_path: Path, change: str
) -> None:
    source = opened(root)
    path = root / schema.MANIFEST
    source.require_unchanged()
    assert source.data == path.read_bytes()
    if change == "replaced":
        make_dataset(tmp_path / "other", shards=2, shard_bytes=1000, seed=1)
        path.write_bytes((tmp_path / "other" / schema.MANIFEST).read_bytes())
    elif change == "damaged":
        path.write_bytes(source.data[:-1])
    else:
        path.unlink()
    with pytest.raises(
        IncompleteError, match="has changed since this run started, so the copies have no"
    ):
        source.require_unchanged()


def test_a_file_of_a_different_size_is_not_sent(root: Path) -> None:
    source = opened(root)
    size = (root / SHARD).stat().st_size
    assert b"".join(source.chunks(DatasetFile(SHARD, size, ""))) == (root / SHARD).read_bytes()
    for other in (size - 1, size + 1):
        with pytest.raises(
            DataDamagedError, match=f"{SHARD}: 1,000 bytes, expected {other:,}. Run"
        ):
            next(source.chunks(DatasetFile(SHARD, other, "")))


def test_a_folder_without_a_manifest_is_no_dataset(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"Without dataset\.json, it is not a dataset"):
        opened(tmp_path)


def test_shards_without_a_manifest_are_adopted_first(root: Path) -> None:
    (root / schema.MANIFEST).unlink()
    with pytest.raises(UsageError) as refused:
        opened(root)

    assert f"first run imagenet-prep adopt {root}" in str(refused.value)
    assert "in two buckets" in str(refused.value)
