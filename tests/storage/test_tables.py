from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path

import pytest

from imagenet_prep.core.errors import DataDamagedError, StoreError
from imagenet_prep.dataset import naming
from imagenet_prep.dataset.manifest import Shard
from imagenet_prep.dataset.samples import HEADER
from imagenet_prep.storage import tables
from imagenet_prep.storage.folder import LocalStore
from tests.kit.samples import kept

ROWS = [kept("n/1"), kept("n/2"), kept("n/3")]
TABLE = b"".join([HEADER, *(row.line for row in ROWS)])
NAME = "train-00000-of-00001"
SHARD = Shard(NAME, 3, 999, "s", 9, "i", len(TABLE), hashlib.sha256(TABLE).hexdigest())


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    store = LocalStore(tmp_path)
    store.write(naming.samples_name(NAME), TABLE)
    return store


def test_a_table_is_read_in_the_order_of_the_records(store: LocalStore) -> None:
    assert list(tables.rows(store, SHARD)) == ROWS


@pytest.mark.parametrize(
    "data", [TABLE[:-1], TABLE + ROWS[0].line, TABLE.replace(b"n/2", b"n/4"), HEADER, b""]
)
def test_another_table_is_refused(data: bytes, store: LocalStore) -> None:
    store.write(naming.samples_name(NAME), data)
    with pytest.raises(DataDamagedError, match="train-00000-of-00001.csv"):
        list(tables.rows(store, SHARD))


def test_a_table_that_is_not_there_is_named(store: LocalStore) -> None:
    with pytest.raises(StoreError, match="train-00000-of-00002.csv: No such file"):
        list(tables.rows(store, dataclasses.replace(SHARD, name="train-00000-of-00002")))
