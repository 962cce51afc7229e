from __future__ import annotations

import hashlib
import itertools
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagenet_prep.dataset import naming, schema
from imagenet_prep.dataset.member import Member, parse_members
from imagenet_prep.shards import plan, runs
from tests.kit.lengths import examples

Classes = list[list[Member]]


def classes_of(counts: list[int]) -> Classes:
    return [
        [
            Member(f"n{index:08d}/{place}.JPEG", "a.tar", place * 512, 100 + place, index)
            for place in range(n)
        ]
        for index, n in enumerate(counts)
    ]


def deal(
    classes: Iterable[list[Member]], num_shards: int, seed: int
) -> Iterator[tuple[int, Member]]:
    first = 0
    for members in classes:
        yield from plan.deal_class(members, first, num_shards, seed)
        first += len(members)


def dealt(classes: Classes, num_shards: int, seed: int) -> list[list[Member]]:
    shards: list[list[Member]] = [[] for _ in range(num_shards)]
    for shard, member in deal(classes, num_shards, seed):
        shards[shard].append(member)
    return shards


def write(folder: Path, classes: Classes, num_shards: int, seed: int) -> tuple[list[str], str]:
    """Writes the plan files; returns the names of the shards, and the digest."""
    entries = (plan.entry(shard, m, seed) for shard, m in deal(classes, num_shards, seed))
    files = runs.write(folder, "train", entries)
    # In two ranges, as two tasks would.
    for start, stop in ((0, 1), (1, num_shards)):
        of_range = runs.read(files, start, stop)
        for _, name, data in plan.files("train", num_shards, of_range):
            (folder / name).write_bytes(data)
    for file in files:
        file.unlink()
    names = [naming.shard_name("train", shard, num_shards) for shard in range(num_shards)]
    contents = ((folder / plan.file_name(name)).read_bytes() for name in names)
    return names, plan.digest(contents)


def order_in_shard(members: list[Member], seed: int) -> list[Member]:
    return sorted(members, key=lambda member: plan.entry(0, member, seed))


splits = st.lists(st.integers(0, 40), min_size=1, max_size=12).filter(any).map(classes_of)
num_shards = st.integers(1, 17)
seeds = st.integers(-(2**63), 2**63 - 1)


@given(splits, num_shards, seeds)
def test_every_member_is_in_exactly_one_shard(classes: Classes, num: int, seed: int) -> None:
    found = [member for shard in dealt(classes, num, seed) for member in shard]

    assert sorted(found) == sorted(member for members in classes for member in members)


@given(splits, num_shards, seeds)
def test_shard_sizes_differ_by_at_most_one(classes: Classes, num: int, seed: int) -> None:
    sizes = [len(shard) for shard in dealt(classes, num, seed)]

    assert max(sizes) - min(sizes) <= 1


@given(splits, num_shards, seeds)
def test_every_class_is_spread_evenly(classes: Classes, num: int, seed: int) -> None:
    shards = dealt(classes, num, seed)

    for index in range(len(classes)):
        counts = [sum(member.class_index == index for member in shard) for shard in shards]
        assert max(counts) - min(counts) <= 1


@given(splits, num_shards, seeds, st.randoms(use_true_random=False))
def test_the_order_of_the_archive_does_not_matter(
    classes: Classes, num: int, seed: int, rng: random.Random
) -> None:
    expected = dealt(classes, num, seed)
    for members in classes:
        rng.shuffle(members)

    assert dealt(classes, num, seed) == expected


@given(splits, num_shards, seeds)
def test_keys_are_all_that_matters(classes: Classes, num: int, seed: int) -> None:
    moved = [[m._replace(archive="b", offset=7, size=1) for m in members] for members in classes]

    def keys(shards: list[list[Member]]) -> list[list[str]]:
        return [[m.key for m in order_in_shard(shard, seed)] for shard in shards]

    assert keys(dealt(moved, num, seed)) == keys(dealt(classes, num, seed))


@given(splits, seeds, st.randoms(use_true_random=False))
def test_the_order_in_a_shard_is_a_permutation_that_depends_on_keys_alone(
    classes: Classes, seed: int, rng: random.Random
) -> None:
    members = [member for each in classes for member in each]
    expected = order_in_shard(members, seed)
    rng.shuffle(members)

    assert order_in_shard(members, seed) == expected
    assert sorted(expected) == sorted(members)


def test_another_seed_is_another_plan() -> None:
    classes = classes_of([50, 50])
    plans = [tuple(map(tuple, dealt(classes, 4, seed))) for seed in (-1, 0, 1, 2, 42, 2**63 - 1)]
    orders = [tuple(order_in_shard(classes[0], seed)) for seed in (-1, 0, 1, 2, 42)]

    assert len(set(plans)) == len(plans)
    assert len(set(orders)) == len(orders)


def test_a_member_more_moves_few_others() -> None:
    # Hash order: whoever adds an image to a class shifts positions, not the order.
    before = [m.key for m in plan.permute(classes_of([50])[0], 0)]
    after = [m.key for m in plan.permute(classes_of([51])[0], 0)]

    assert [key for key in after if key in before] == before


def test_neither_dealing_nor_writing_follows_the_key_or_the_class() -> None:
    classes = classes_of([100] * 4)
    (shard,) = dealt(classes, 1, 0)
    written = order_in_shard(shard, 0)

    assert [m.key for m in plan.permute(classes[0], 0)] != sorted(m.key for m in classes[0])
    assert [m.class_index for m in shard] == sorted(m.class_index for m in shard)
    # In random order neighbours are of one class in 1 of 4 cases.
    same = sum(a.class_index == b.class_index for a, b in itertools.pairwise(written))
    assert 60 < same < 140


def test_hash_parts_are_kept_apart() -> None:
    assert plan.keyed_hash(0, "ab", "c") != plan.keyed_hash(0, "a", "bc")
    assert 0 <= plan.keyed_hash(-1, "a") < 2**64


@pytest.fixture(scope="module")
def imagenet_counts() -> list[int]:
    """1000 counts in the range of ImageNet's and with its sum."""
    rng = random.Random(0)
    counts = [1300] * 895 + [rng.randint(732, 1299) for _ in range(105)]
    missing = schema.OFFICIAL_NUM_EXAMPLES["train"] - sum(counts)
    for place in range(895, 1000):
        step = max(732 - counts[place], min(1300 - counts[place], missing))
        counts[place] += step
        missing -= step
    assert sum(counts) == 1_281_167
    return counts


# In short: the validation split, below.
@pytest.mark.long
def test_imagenets_train_split_fills_1024_shards_evenly(imagenet_counts: list[int]) -> None:
    members = (
        [Member(f"n{index:08d}/n{index:08d}_{n}.JPEG", "a", 0, 1, index) for n in range(count)]
        for index, count in enumerate(imagenet_counts)
    )
    sizes: Counter[int] = Counter()
    spread: Counter[tuple[int, int]] = Counter()
    for shard, member in deal(members, 1024, 0):
        sizes[shard] += 1
        spread[shard, member.class_index] += 1

    assert Counter(sizes.values()) == {1251: 1024 - 143, 1252: 143}
    assert sum(sizes.values()) == 1_281_167
    assert set(spread.values()) <= {1, 2}


def test_imagenets_validation_split_fills_128_shards_evenly() -> None:
    members = (
        [Member(f"ILSVRC2012_val_{50 * i + n + 1:08d}.JPEG", "a", 0, 1, i) for n in range(50)]
        for i in range(1000)
    )
    sizes = Counter(shard for shard, _ in deal(members, 128, 0))

    assert Counter(sizes.values()) == {390: 128 - 80, 391: 80}


def test_plan_files_hold_the_plan(tmp_path: Path) -> None:
    classes = classes_of([5, 0, 8])
    names, digest = write(tmp_path, classes, num_shards=4, seed=7)
    files = [(tmp_path / plan.file_name(name)).read_bytes() for name in names]

    assert names == [f"train-0000{i}-of-00004" for i in range(4)]
    assert [parse_members(file) for file in files] == [
        order_in_shard(shard, 7) for shard in dealt(classes, 4, 7)
    ]
    assert digest == hashlib.sha256(b"".join(files)).hexdigest()
    assert len(list(tmp_path.iterdir())) == 4


@pytest.mark.parametrize(
    "change",
    [{"key": "n00000000/x.JPEG"}, {"archive": "b.tar"}, {"offset": 1}, {"size": 1}],
    ids=lambda change: next(iter(change)),
)
def test_the_digest_of_a_plan_covers_every_member(
    tmp_path: Path, change: dict[str, object]
) -> None:
    classes = classes_of([5, 8])
    _, before = write(tmp_path, classes, 4, 7)
    classes[0][2] = classes[0][2]._replace(**change)

    assert write(tmp_path, classes, 4, 7)[1] != before


def test_the_digest_depends_on_seed_and_shards_and_on_nothing_else(tmp_path: Path) -> None:
    def digest(num: int, seed: int, counts: list[int]) -> str:
        return write(tmp_path, classes_of(counts), num, seed)[1]

    assert digest(4, 7, [5, 8]) == digest(4, 7, [5, 8])
    assert len({digest(4, 7, [5, 8]), digest(4, 8, [5, 8]), digest(5, 7, [5, 8])}) == 3


@examples(50)
@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20))
def test_keys_of_any_script_survive_the_plan_file(tmp_path_factory: object, key: str) -> None:
    folder = tmp_path_factory.mktemp("plan")
    member = Member(key, "é.tar", 1, 2, 0)
    (name,), _ = write(folder, [[member]], 1, 0)

    assert parse_members((folder / plan.file_name(name)).read_bytes()) == [member]
