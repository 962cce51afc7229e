"""Tables of samples: read in order, prefetched, and refused if they differ."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from pathlib import Path

import pytest

from imagenet_prep.core.errors import DataDamagedError, StoreError
from imagenet_prep.dataset import samples, schema
from imagenet_prep.dataset.manifest import Shard
from imagenet_prep.dataset.samples import HEADER
from imagenet_prep.storage import dataset_store
from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.storage.remote import PREFETCHED
from tests.kit.limits import Limits
from tests.kit.samples import kept, write_tables
from tests.kit.slow_store import SlowStore

ROWS = [kept("n/1"), kept("n/2"), kept("n/3")]
TABLE = b"".join([HEADER, *(row.line for row in ROWS)])
NAME = "train-00000-of-00001"
SHARD = Shard(NAME, 3, 999, "s", 9, "i", len(TABLE), hashlib.sha256(TABLE).hexdigest())


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    store = LocalStore(tmp_path)
    store.write(schema.samples_name(NAME), TABLE)
    return store


def test_table_is_read_in_record_order(store: LocalStore) -> None:
    assert list(dataset_store.sample_rows(store, SHARD)) == ROWS


@pytest.mark.parametrize(
    "data", [TABLE[:-1], TABLE + ROWS[0].line, TABLE.replace(b"n/2", b"n/4"), HEADER, b""]
)
def test_different_table_is_refused(data: bytes, store: LocalStore) -> None:
    store.write(schema.samples_name(NAME), data)
    with pytest.raises(DataDamagedError, match="train-00000-of-00001.csv"):
        list(dataset_store.sample_rows(store, SHARD))


def test_missing_table_is_named(store: LocalStore) -> None:
    with pytest.raises(StoreError, match="train-00000-of-00002.csv: No such file"):
        list(
            dataset_store.sample_rows(
                store, dataclasses.replace(SHARD, name="train-00000-of-00002")
            )
        )


def keys_of(store: LocalStore, shards: list[Shard]) -> list[str]:
    tables = dataset_store.each_table(samples.parse, store, shards)
    return [row.key for row in itertools.chain.from_iterable(tables)]


def test_tables_are_prefetched_and_returned_in_order(tmp_path: Path) -> None:
    shards = write_tables(tmp_path, 2 * PREFETCHED)
    store = SlowStore(tmp_path, PREFETCHED)
    assert keys_of(store, shards) == [f"n/{number}" for number in range(2 * PREFETCHED)]


def test_large_table_is_only_opened_on_use(tmp_path: Path, limits: Limits) -> None:
    limits(table_ahead_bytes=9)
    shards = write_tables(tmp_path, 3)
    store = SlowStore(tmp_path, 1)
    each = dataset_store.each_table(samples.parse, store, shards)
    first = next(each)
    assert store.asked == []
    assert [row.key for row in first] == ["n/0"]
    assert len(store.asked) == 1
    assert [row.key for row in itertools.chain.from_iterable(each)] == ["n/1", "n/2"]


def test_damaged_table_does_not_affect_other_tables(tmp_path: Path) -> None:
    shards = write_tables(tmp_path, 4)
    store = LocalStore(tmp_path)
    (tmp_path / schema.samples_name(shards[1].name)).unlink()
    store.write(schema.samples_name(shards[2].name), HEADER)
    found: list[object] = []
    for rows in dataset_store.each_table(samples.parse, store, shards):
        try:
            found += [row.key for row in rows]
        except (StoreError, DataDamagedError) as error:
            found.append(type(error))
    assert found == ["n/0", StoreError, DataDamagedError, "n/3"]
