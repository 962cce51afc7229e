"""The Merkle root of a split, computed from its tables of samples."""

from __future__ import annotations

import hashlib
import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagenet_prep.core.errors import DataDamagedError
from imagenet_prep.dataset import schema
from imagenet_prep.dataset.manifest import Split
from imagenet_prep.dataset.samples import Sample
from imagenet_prep.shards import difference as roots_of
from imagenet_prep.shards.difference import root_of, wrong_roots
from imagenet_prep.storage import scratch
from imagenet_prep.storage.dataset_store import Dataset
from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.storage.remote import PREFETCHED
from tests.kit.limits import Limits
from tests.kit.messages import says
from tests.kit.samples import add_tables, kept, samples, tree_hash, write_tables
from tests.kit.slow_store import SlowStore
from tests.kit.tfrecords import picture, plain, write_dataset


def samples_root(rows: list[Sample]) -> str:
    return roots_of.samples_root((row.head for row in rows), LocalStore(Path()), [])


def expected(rows: list[Sample]) -> str:
    ordered = sorted(rows, key=lambda row: (row.key.encode(), row))
    leaves = [[row.key, row.class_index, row.sha256] for row in ordered]
    dumped = [json.dumps(leaf, ensure_ascii=False, separators=(",", ":")) for leaf in leaves]
    return tree_hash([leaf.encode() for leaf in dumped]).hex()


@given(rows=st.lists(samples(), unique_by=lambda row: row.key, max_size=9))
def test_root_follows_the_samples_sorted_by_key(
    rows: list[Sample],
) -> None:
    assert samples_root(rows) == expected(rows)


@pytest.mark.parametrize("num", [0, 1, 4, 5, 500])
def test_root_is_independent_of_order_and_runs(
    num: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: Limits
) -> None:
    monkeypatch.setattr(scratch, "process_folder", lambda: tmp_path)
    rows = [kept(f"{number % 7}/{'ab!~ü'[number % 5]}{number}") for number in range(num)]
    roots = {expected(rows)}
    for size in (3, 5, 1000):
        limits(sorted_run_entries=size)
        random.Random(size).shuffle(rows)
        roots.add(samples_root(rows))
    assert len(roots) == 1
    assert list(tmp_path.iterdir()) == []


def test_changed_image_or_label_changes_the_root() -> None:
    rows = [kept(f"n/{number}", number % 3) for number in range(9)]
    other = hashlib.sha256(b"other").hexdigest()
    changed = [
        [*rows[:4], rows[4]._replace(**change), *rows[5:]]
        for change in ({"key": "n/x"}, {"class_index": 2}, {"sha256": other})
    ]
    roots = [samples_root(each) for each in (rows, rows[1:], *changed)]
    assert len(set(roots)) == 5


def test_tables_of_a_slow_store_are_prefetched(tmp_path: Path) -> None:
    shards = write_tables(tmp_path, PREFETCHED)
    split = Split(PREFETCHED, 0, [], 0, 0, 0, shards)
    rows = [kept(f"n/{number}") for number in range(PREFETCHED)]
    assert root_of(SlowStore(tmp_path, PREFETCHED), split) == samples_root(rows)


def test_two_records_of_a_key_are_named(tmp_path: Path) -> None:
    shards = write_tables(tmp_path, 3)
    split = Split(5, 0, [], 0, 0, 0, [*shards, shards[0], shards[0]])
    name = shards[0].name
    sentence = (
        f"two records have the same key 'n/0': record 0 of {name} and record 0 of {name}. Every"
    )
    with pytest.raises(DataDamagedError, match=sentence):
        root_of(LocalStore(tmp_path), split)


def test_wrong_root_is_a_problem_of_its_split(tmp_path: Path) -> None:
    images = [picture(number % 2, plain(number)) for number in range(4)]
    write_dataset(tmp_path, {"train": [images[:2]], "validation": [images[2:]]}, num_classes=2)
    made = add_tables(tmp_path)
    assert wrong_roots(Dataset.at(LocalStore(tmp_path))) == []

    train = replace(made.splits["train"], samples_root=made.splits["validation"].samples_root)
    changed = replace(made, splits={**made.splits, "train": train})
    (tmp_path / schema.MANIFEST).write_bytes(changed.dumps())
    (problem,) = wrong_roots(Dataset.at(LocalStore(tmp_path)))
    assert made.splits["train"].samples_root in problem
    assert problem.startswith("train: ")
    assert says("root-tables-samples-expected-manifest", ..., ..., train.samples_root).search(
        problem
    )
