"""Properties of plans, on plans that `planning` makes of lists of images."""

from __future__ import annotations

import itertools
import random
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagenet_prep.dataset.class_list import ClassList
from imagenet_prep.dataset.member import Member, parse_members
from imagenet_prep.engine import Workers
from imagenet_prep.preparation.planning import take_inventory
from imagenet_prep.preparation.tasks import plan_name
from imagenet_prep.shards import plan
from imagenet_prep.sources.source import IndexTask, SourcePart
from imagenet_prep.storage.folder import LocalStore
from tests.kit.lengths import examples
from tests.kit.listed import selection
from tests.kit.plan_model import RandomSource

Classes = list[list[Member]]
WORKERS = Workers(1, "threads")


def classes_of(counts: list[int]) -> Classes:
    return [
        [
            Member(f"n{index:08d}/{place}.JPEG", "a.tar", place * 512, 100 + place, index)
            for place in range(n)
        ]
        for index, n in enumerate(counts)
    ]


def planned(classes: Sequence[Sequence[Member]], num: int, seed: int) -> tuple[Classes, str]:
    """Returns the images of each shard, and the digest of the plan."""
    members = tuple(itertools.chain.from_iterable(classes))
    wnids = tuple(f"n{index:08d}" for index in range(len(classes)))
    names = ClassList(wnids, wnids)
    source = RandomSource(names, (SourcePart("a.tar", 1, 1),))
    source = replace(source, lists=((IndexTask("train", "train", "a.tar"), members),))
    chosen = selection(
        source=source,
        classes=frozenset(range(len(classes))),
        num_shards={"train": min(num, len(members))},
        seed=seed,
    )
    with tempfile.TemporaryDirectory() as folder:
        store = LocalStore(Path(folder))
        (split,) = take_inventory(chosen, store, WORKERS, quiet=True).plans
        data = [store.read(plan_name(name)) for name in split.shard_names]
    return [parse_members(lines) for lines in data], split.digest


splits = st.lists(st.integers(0, 40), min_size=1, max_size=12).filter(any).map(classes_of)
num_shards = st.integers(1, 17)
seeds = st.integers(-(2**63), 2**63 - 1)


@examples(50)
@given(splits, num_shards, seeds)
def test_plan_has_each_image_once_with_balanced_classes(
    classes: Classes, num: int, seed: int
) -> None:
    shards, _ = planned(classes, num, seed)

    members = itertools.chain.from_iterable(classes)
    assert sorted(itertools.chain.from_iterable(shards)) == sorted(members)
    sizes = [len(shard) for shard in shards]
    assert max(sizes) - min(sizes) <= 1
    for index in range(len(classes)):
        counts = [sum(member.class_index == index for member in shard) for shard in shards]
        assert max(counts) - min(counts) <= 1


@examples(30)
@given(splits, num_shards, seeds, st.randoms(use_true_random=False))
def test_plan_depends_only_on_keys(
    classes: Classes, num: int, seed: int, chance: random.Random
) -> None:
    expected, digest = planned(classes, num, seed)
    moved = [[m._replace(archive="b", offset=7, size=1) for m in members] for members in classes]
    for members in (*classes, *moved):
        chance.shuffle(members)

    assert planned(classes, num, seed) == (expected, digest)
    found, _ = planned(moved, num, seed)
    assert [[m.key for m in shard] for shard in found] == [
        [m.key for m in shard] for shard in expected
    ]


def test_different_seed_gives_a_different_plan() -> None:
    classes = classes_of([50, 50])
    plans = [planned(classes, 4, seed)[1] for seed in (-1, 0, 1, 2, 42, 2**63 - 1)]

    assert len(set(plans)) == len(plans)


def test_additional_image_keeps_the_order_of_others() -> None:
    (before,), _ = planned(classes_of([50]), 1, 0)
    (after,), _ = planned(classes_of([51]), 1, 0)

    assert [m.key for m in after if m.key in {m.key for m in before}] == [m.key for m in before]


def test_records_follow_neither_the_key_nor_the_class() -> None:
    (shard,), _ = planned(classes_of([100] * 4), 1, 0)

    # In random order, neighbours are of one class in 1 of 4 cases.
    same = sum(a.class_index == b.class_index for a, b in itertools.pairwise(shard))
    assert 60 < same < 140
    keys = [member.key for member in shard]
    assert keys != sorted(keys)


def test_parts_of_a_hash_are_separated() -> None:
    assert plan.keyed_hash(0, "ab", "c") != plan.keyed_hash(0, "a", "bc")
    assert 0 <= plan.keyed_hash(-1, "a") < 2**64
    assert plan.hashes(3, ["x", "y"], "order").tolist() == [
        plan.keyed_hash(3, "order", "x"),
        plan.keyed_hash(3, "order", "y"),
    ]


@pytest.mark.parametrize("ranked", [False, True])
def test_image_takes_few_bytes_in_memory(ranked: bool) -> None:
    members = classes_of([3, 2])[1]
    entries = plan.entries(members, [50, 60], 7, ranked=ranked)

    assert entries.nbytes == len(members) * (36 if ranked else 28)
    assert entries["line_bytes"].tolist() == [50, 60]
    assert entries["size"].tolist() == [100, 101]
    assert entries["class_index"].tolist() == [1, 1]
    assert entries["hash"].tolist() == [plan.keyed_hash(7, m.key) for m in members]
    assert entries["order"].tolist() == [plan.keyed_hash(7, "order", m.key) for m in members]
    if ranked:
        ranks = [plan.keyed_hash(7, "holdout", member.key) for member in members]
        assert entries["rank"].tolist() == ranks


def test_keys_are_read_only_if_hashes_are_equal() -> None:
    def keys_of(rows: np.ndarray) -> list[str]:
        asked.append(rows.tolist())
        return [f"key {9 - row}" for row in rows]

    asked: list[list[int]] = []
    classes = np.array([1, 0, 1, 2, 2, 0])
    hashes = np.array([5, 3, 5, 4, 4, 1], np.uint64)
    rows = plan.first_of_each_class(classes, hashes, [2, 1, 0], keys_of)

    assert rows.tolist() == [5, 1, 2]
    assert asked == [[0, 2]]


@pytest.mark.parametrize(
    "change",
    [{"key": "n00000000/x.JPEG"}, {"archive": "b.tar"}, {"offset": 1}, {"size": 1}],
    ids=lambda change: next(iter(change)),
)
def test_digest_of_a_plan_covers_every_member(change: dict[str, object]) -> None:
    classes = classes_of([5, 8])
    _, before = planned(classes, 4, 7)
    classes[0][2] = classes[0][2]._replace(**change)  # type: ignore[arg-type]

    assert planned(classes, 4, 7)[1] != before


def test_digest_depends_on_seed_and_shards() -> None:
    digests = [planned(classes_of([5, 8]), *how)[1] for how in ((4, 7), (4, 8), (5, 7))]
    assert len({*digests}) == 3


@examples(50)
@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20))
def test_keys_of_any_script_survive_the_plan_file(key: str) -> None:
    member = Member(key, "é.tar", 1, 2, 0)
    ((found,),), _ = planned([[member]], 1, 0)

    assert found == member
