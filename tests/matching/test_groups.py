"""Groups, who is kept, and the files that say so."""

from __future__ import annotations

import csv
import io

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from imagenet_prep.matching import output
from imagenet_prep.matching.groups import (
    NEARLY,
    SAME_BYTES,
    SAME_PIXELS,
    Member,
    Union,
    contradicts,
    counts,
    crosses,
    rank,
)


@given(
    num=st.integers(1, 40),
    pairs=st.lists(st.tuples(st.integers(0, 39), st.integers(0, 39)), max_size=60),
)
def test_groups_are_what_pairs_connect(num: int, pairs: list[tuple[int, int]]) -> None:
    pairs = [(a % num, b % num) for a, b in pairs]
    union = Union(num)
    group = list(range(num))
    for a, b in pairs:
        union.join(a, b)
        group = [min(group[a], group[b]) if g in (group[a], group[b]) else g for g in group]
    expected = {g: [i for i in range(num) if group[i] == g] for g in group}
    expected_groups = sorted(each for each in expected.values() if len(each) > 1)
    assert [each.tolist() for each in union.groups()] == expected_groups
    assert union.joined().tolist() == [min(expected[group[i]]) for i in range(num)]


def test_the_groups_do_not_depend_on_the_order_of_pairs() -> None:
    rng = np.random.default_rng(1)
    pairs = rng.integers(0, 200, (150, 2)).tolist()
    found = []
    for _ in range(3):
        rng.shuffle(pairs)
        union = Union(200)
        for a, b in pairs:
            union.join(b, a)
        found.append([each.tolist() for each in union.groups()])
    assert found[0] == found[1] == found[2]


def test_evaluation_is_kept_before_training_and_then_the_smaller_key() -> None:
    members = [
        member("against:train", "z"),
        member("validation", "b"),
        member("validation", "ä"),
        member("holdout", "a"),
        member("train", "A"),
        member("train", "a"),
    ]
    assert members == sorted(members, key=rank)


def member(
    split: str, key: str, wnid: str = "n1", kind: str = NEARLY, *, kept: bool = False
) -> Member:
    return Member(0, split, key, 3, wnid, kind, 7, kept)


GROUPS = [
    [
        member("validation", "v1", "n1", SAME_BYTES, kept=True),
        member("train", 'a,"1', "n1", SAME_BYTES),
        member("train", "a2", "n2", NEARLY),
    ],
    [
        member("train", "a0", "n1", SAME_PIXELS, kept=True),
        member("train", "a3", "n1", SAME_PIXELS),
    ],
]


def test_pairs_are_counted_by_splits_and_kind() -> None:
    assert counts(GROUPS) == {
        ("train", "train", SAME_PIXELS): [1, 0],
        ("validation", "train", SAME_BYTES): [1, 0],
        ("validation", "train", NEARLY): [1, 1],
    }
    assert [(contradicts(each), crosses(each)) for each in GROUPS] == [(True, True), (False, False)]


def test_files_are_what_was_promised() -> None:
    data = output.pairs(GROUPS)
    assert data.startswith(b"group,split,key,class_index,kind,distance,kept\r\n")
    rows = list(csv.DictReader(io.StringIO(data.decode())))
    assert [row["group"] for row in rows] == ["1", "1", "1", "2", "2"]
    assert rows[1] == {
        "group": "1",
        "split": "train",
        "key": 'a,"1',
        "class_index": "3",
        "kind": "same bytes",
        "distance": "7",
        "kept": "no",
    }
    assert output.excluded(GROUPS, "train") == ['a,"1', "a2", "a3"]
    assert output.excluded(GROUPS, "validation") == []
