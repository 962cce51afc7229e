"""The files in the cache of a node: the oldest are removed, failed ones are fetched again."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from imagenet_prep.read.cache import NodeCache
from imagenet_prep.storage.dataset_store import open_dataset
from imagenet_prep.storage.folder import TEMPORARY
from tests.kit.command import wait_until


@pytest.mark.parametrize(("reserved_bytes", "removed"), [(0, [3]), (1, [3, 1])])
def test_only_the_oldest_shards_are_removed(
    colours: Path, tmp_path: Path, reserved_bytes: int, removed: list[int]
) -> None:
    """The files that other ranks are fetching count, too."""
    dataset = open_dataset(str(colours))
    shards = dataset.shards("train")
    cache = NodeCache(dataset, tmp_path, None)
    cache.follow([shards])
    for shard in shards:
        cache.need(shard)
    cache.close()
    for age, number in enumerate((3, 1, 4, 2, 0)):
        os.utime(cache.root / shards[number].name, (1_000_000_000 + age,) * 2)
    total = sum(shard.index_bytes + shard.num_bytes for shard in shards)
    (cache.root / shards[0].name).unlink()
    cache.root.joinpath(TEMPORARY, "of-another-rank").write_bytes(bytes(reserved_bytes))

    limit = total - shards[3].index_bytes - shards[3].num_bytes
    second = NodeCache(dataset, tmp_path, limit)
    second.follow([shards[:1]])
    second.need(shards[0])
    second.close()
    absent = [n for n, shard in enumerate(shards) if not (cache.root / shard.name).exists()]
    assert absent == sorted(removed)


def test_failed_fetch_is_repeated_in_the_next_epoch(colours: Path, tmp_path: Path) -> None:
    """A file that was fetched in advance may fail although no batch needs it."""
    source = Path(shutil.copytree(colours, tmp_path / "set"))
    dataset = open_dataset(str(source))
    first, second = dataset.shards("train")[:2]
    (source / second.name).rename(tmp_path / "away")
    cache = NodeCache(dataset, tmp_path / "cache", None)
    cache.follow([[first], [second]])
    cache.need(first)
    wait_until(cache._files[second.name].done, "the second file has failed")
    (tmp_path / "away").rename(source / second.name)
    cache.follow([[second]])
    cache.need(second)
    cache.close()
    assert (cache.root / second.name).read_bytes() == (source / second.name).read_bytes()
