"""Groups of duplicates, the choice of the kept image, and the files of the result."""

from __future__ import annotations

import csv
import io
import itertools
import random
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st

from imagenet_prep.matching import find
from imagenet_prep.matching.find import (
    KINDS,
    NEARLY,
    SAME_BYTES,
    SAME_PIXELS,
    GroupImage,
    Union,
    contradicts,
    counts,
    crosses,
    divide,
    rank,
)


@given(
    num=st.integers(1, 40),
    pairs=st.lists(st.tuples(st.integers(0, 39), st.integers(0, 39)), max_size=60),
)
def test_groups_are_the_connected_components_of_pairs(
    num: int, pairs: list[tuple[int, int]]
) -> None:
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


def test_groups_do_not_depend_on_the_pairs_order() -> None:
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


def test_evaluation_splits_and_smaller_keys_are_kept_first() -> None:
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
    split: str, key: str, wnid: str = "n1", kind: str = NEARLY, *, kept: bool = False, **more: str
) -> GroupImage:
    return GroupImage(0, split, key, 3, wnid, kind, 7, kept, **more)


class Graph:
    """Proven pairs of some images, with distances; images of equal pixels have equal pairs."""

    def __init__(self, seed: int, num: int, share: float, *, across: bool) -> None:
        rng = random.Random(seed)
        self.splits = [rng.choice(["train", "train", "validation", "holdout"]) for _ in range(num)]
        if across:
            others = ["against:train", "against:test"]
            self.splits = [rng.choice([split, *others]) for split in self.splits]
        self.pixels = [rng.choice([number, rng.randrange(num)]) for number in range(num)]
        self.pixels = [self.pixels[number] if number else 0 for number in self.pixels]
        alike = {
            frozenset(pair): rng.randrange(1, 76)
            for pair in itertools.combinations(range(num), 2)
            if rng.random() < share
        }
        self.pairs: dict[frozenset[int], int] = {}
        for one, other in itertools.combinations(range(num), 2):
            sides = {self.splits[number].startswith("against:") for number in (one, other)}
            if across and len(sides) == 1:
                continue
            if self.pixels[one] == self.pixels[other]:
                self.pairs[frozenset((one, other))] = 0
                continue
            distance = alike.get(frozenset((self.pixels[one], self.pixels[other])))
            if distance is not None:
                self.pairs[frozenset((one, other))] = distance

    def nearest(self, number: int, others: Sequence[int]) -> int | None:
        near = [(self.pairs.get(frozenset((number, each)), 999), each) for each in others]
        distance, found = min(near, key=lambda each: each[0])
        return None if distance == 999 else found

    def kind(self, one: int, other: int) -> str:
        return SAME_PIXELS if self.pixels[one] == self.pixels[other] else NEARLY

    def distances(self, number: int, others: npt.NDArray[np.uint32]) -> npt.NDArray[np.int64]:
        return np.array([self.distance(number, other) for other in others.tolist()])

    def distance(self, one: int, other: int) -> int:
        return self.pairs[frozenset((one, other))]

    def connected(self) -> list[list[GroupImage]]:
        union = Union(len(self.splits))
        for pair in self.pairs:
            union.join(*pair)
        return [
            [GroupImage(n, self.splits[n], f"{n:03d}", n % 3, f"n{n % 3}") for n in group.tolist()]
            for group in union.groups()
        ]


class Renumbered:
    """The same pairs with different image numbers."""

    def __init__(self, graph: Graph, number_of: dict[int, int]) -> None:
        self.graph = graph
        self.old = {new: old for old, new in number_of.items()}

    def nearest(self, number: int, others: Sequence[int]) -> int | None:
        old = [self.old[each] for each in others]
        found = self.graph.nearest(self.old[number], old)
        return None if found is None else others[old.index(found)]

    def kind(self, one: int, other: int) -> str:
        return self.graph.kind(self.old[one], self.old[other])

    def distances(self, number: int, others: npt.NDArray[np.uint32]) -> npt.NDArray[np.int64]:
        old = np.array([self.old[other] for other in others.tolist()])
        return self.graph.distances(self.old[number], old)


def groups_of(graph: Graph) -> list[Any]:
    divided = (divide(connected, cast(Any, graph)) for connected in graph.connected())
    return [*itertools.chain.from_iterable(divided)]


@given(
    seed=st.integers(0, 1 << 30),
    num=st.integers(2, 30),
    share=st.sampled_from((0.03, 0.1, 0.3, 0.9)),
    across=st.booleans(),
)
def test_excluded_images_are_duplicates_of_kept_ones(
    seed: int, num: int, share: float, across: bool
) -> None:
    graph = Graph(seed, num, share, across=across)
    groups = groups_of(graph)
    rows = {row.line: row for row in itertools.chain.from_iterable(groups)}
    number_of = {row.line: row.number for row in rows.values()}
    assert len(rows) == sum(map(len, groups)), "an image is in one group"
    excluded = {row.number for row in rows.values() if not row.kept}
    kept = {*range(num)} - excluded

    for first, *others in groups:
        assert (first.kept, first.proven_against, first.distance) == (True, "", 0)
        assert first.kind == min((row.kind for row in others), key=KINDS.index)
        assert others == sorted(others, key=rank)
        for row in others:
            other = number_of[row.proven_against]
            assert frozenset((row.number, other)) in graph.pairs
            assert (row.kind, row.distance) == (
                graph.kind(row.number, other),
                graph.distance(row.number, other),
            )
            if row.kept:
                # Its duplicates are excluded, or belong to the other dataset.
                assert row.proven_against == row.elsewhere
                assert other in excluded
            else:
                assert other == first.number
                assert rank(first) < rank(row)
                # It is the nearest kept duplicate of the most preferred split.
                pairs = [
                    (rank(rows[line])[:2], graph.distance(row.number, number), line)
                    for line, number in number_of.items()
                    if number in kept and frozenset((row.number, number)) in graph.pairs
                    if rank(rows[line]) < rank(row)
                ]
                assert (rank(first)[:2], row.distance) == min(pairs)[:2]
    for one, other in map(tuple, graph.pairs):
        both_kept = one in kept and other in kept
        assert not both_kept, "no two kept images are duplicates"
        if graph.splits[one] != graph.splits[other]:
            for number in (one, other):
                line = f"{graph.splits[number]}:{number:03d}"
                assert rows[line].elsewhere, "an image in two splits is listed"
    for row in rows.values():
        if row.elsewhere:
            assert frozenset((row.number, number_of[row.elsewhere])) in graph.pairs
            assert rows[row.elsewhere].split != row.split
    against = [number for number in excluded if graph.splits[number].startswith("against:")]
    assert not against


@given(
    seed=st.integers(0, 1 << 30),
    num=st.integers(2, 30),
    share=st.sampled_from((0.03, 0.1, 0.3, 0.9)),
    across=st.booleans(),
)
def test_groups_do_not_depend_on_order_and_numbers(
    seed: int, num: int, share: float, across: bool
) -> None:
    graph = Graph(seed, num, share, across=across)
    numbers = list(range(num))
    random.Random(seed).shuffle(numbers)
    renumbered = dict(enumerate(numbers))
    again = Renumbered(graph, renumbered)
    found = []
    for of in graph.connected():
        members = [each._replace(number=renumbered[each.number]) for each in of]
        random.Random(seed).shuffle(members)
        found += divide(members, cast(Any, again))

    assert find.pairs(sorted(found, key=lambda group: rank(group[0]))) == find.pairs(
        sorted(groups_of(graph), key=lambda group: rank(group[0]))
    )


GROUPS = [
    [
        member("validation", "v1", "n1", SAME_BYTES, kept=True),
        member("train", 'a,"1', "n1", SAME_BYTES, proven_against="validation:v1"),
        member("train", "a2", "n2", NEARLY, elsewhere="validation:v1"),
        member("holdout", "a9", "n1", NEARLY, kept=True),
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


def test_files_have_the_documented_content() -> None:
    data = find.pairs(GROUPS)
    assert data.startswith(
        b"group,split,key,class_index,kind,distance,kept,proven_against,elsewhere\r\n"
    )
    rows = list(csv.DictReader(io.StringIO(data.decode())))
    assert [row["group"] for row in rows] == ["1", "1", "1", "1", "2", "2"]
    assert rows[1] == {
        "group": "1",
        "split": "train",
        "key": 'a,"1',
        "class_index": "3",
        "kind": "same bytes",
        "distance": "7",
        "kept": "no",
        "proven_against": "validation:v1",
        "elsewhere": "",
    }
    assert find.excluded(GROUPS, "train") == ['train:a,"1', "train:a2", "train:a3"]
    assert find.excluded(GROUPS, "validation") == []
