"""The dataset that is replicated. If it is replaced, its copies get no manifest."""

from __future__ import annotations

from pathlib import Path

import pytest

from imagenet_prep.core.errors import DataDamagedError, IncompleteError, UsageError
from imagenet_prep.dataset import schema
from imagenet_prep.dataset.manifest import DatasetFile
from imagenet_prep.distribute.send import Original
from tests.kit.messages import says
from tests.kit.replicas import make_dataset

SHARD = "train-00000-of-00002"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    make_dataset(tmp_path / "set", shards=2, shard_bytes=1000)
    return tmp_path / "set"


def opened(root: Path | str) -> Original:
    return Original(str(root), connections=1, timeout_s=1, retries=0, bytes_per_s=0)


@pytest.mark.parametrize("change", ["replaced", "damaged", "removed"])
def test_a_changed_manifest_ends_the_run(root: Path, tmp_path: Path, change: str) -> None:
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
    with pytest.raises(IncompleteError, match=says("dataset-column-changed-since-run")):
        source.require_unchanged()


def test_files_of_different_sizes_are_not_sent(root: Path) -> None:
    source = opened(root)
    size = (root / SHARD).stat().st_size
    assert b"".join(source.chunks(DatasetFile(SHARD, size, ""))) == (root / SHARD).read_bytes()
    for other in (size - 1, size + 1):
        with pytest.raises(
            DataDamagedError, match=says("bytes-expected-3", SHARD, "1,000", f"{other:,}", "Run")
        ):
            next(source.chunks(DatasetFile(SHARD, other, "")))


def test_a_folder_without_a_manifest_is_no_dataset(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=says("without-not-dataset-imagenet-prep-tfrecords", ..., "dataset.json")
    ):
        opened(tmp_path)


def test_a_bucket_without_manifest_may_lack_a_split(prefix: str) -> None:
    with pytest.raises(UsageError, match=says("train-validation-two-buckets-copy")):
        opened(prefix)


def test_shards_without_a_manifest_are_adopted_first(root: Path) -> None:
    (root / schema.MANIFEST).unlink()
    with pytest.raises(UsageError) as refused:
        opened(root)

    assert says("without-not-dataset-imagenet-prep-tfrecords", ..., ..., root).search(
        str(refused.value)
    )
    assert not says("train-validation-two-buckets-copy").search(str(refused.value))
