"""Groups of duplicate images, and the image that is kept in each group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from imagenet_prep.dataset import schema
from imagenet_prep.dataset.keys import with_split

if TYPE_CHECKING:
    import numpy.typing as npt

SAME_BYTES, SAME_PIXELS, NEARLY = "same bytes", "same pixels", "nearly the same"
KINDS = (SAME_BYTES, SAME_PIXELS, NEARLY)
# Prefix of split names of the dataset given by --against.
AGAINST = "against:"
# Evaluation splits first: a model must not be trained on an image that tests it.
_FIRST = (schema.TEST, schema.VALIDATION, schema.HOLDOUT, schema.TRAIN)


class Union:
    """Disjoint sets of images (union-find): each image points to the first of its group."""

    def __init__(self, num: int) -> None:
        self._first = np.arange(num, dtype=np.uint32)

    def first(self, numbers: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
        """Returns, for each of these images, the first image of its group."""
        first = self._first[numbers]
        while not np.array_equal(further := self._first[first], first):
            first = further
        self._first[numbers] = first
        return first

    def joined(self) -> npt.NDArray[np.uint32]:
        """Returns, for every image, the first image of its group."""
        return self.first(np.arange(len(self._first), dtype=np.uint32))

    def join(self, left: int, right: int) -> None:
        """Merges the groups of two images."""
        one, other = self.first(np.array([left, right], np.uint32)).tolist()
        self._first[max(one, other)] = min(one, other)

    def groups(self) -> list[npt.NDArray[np.uint32]]:
        """Returns the groups of two or more images, sorted by first image; each group is sorted."""
        every = self.joined()
        order = np.argsort(every, kind="stable").astype(np.uint32)
        parts = np.split(order, np.flatnonzero(np.diff(every[order])) + 1)
        return [part for part in parts if len(part) > 1]


class Member(NamedTuple):
    """An image of a group, as in a line of `pairs.csv`."""

    number: int
    split: str  # against:NAME for splits of the second dataset
    key: str
    class_index: int
    wnid: str  # class ID, comparable between two datasets
    kind: str = NEARLY  # relation to `proven_against`; without it, to the nearest of the group
    distance: int = 0  # differing bits of 256
    kept: bool = True
    # Duplicates of the image, as SPLIT:KEY; "" for none.
    proven_against: str = ""  # the kept image; of a kept image that is not the first, `elsewhere`
    elsewhere: str = ""  # an image of a different split or dataset

    @property
    def line(self) -> str:
        """The line of a list that names the image."""
        return with_split(self.split, self.key)


Group = Sequence[Member]
"""Duplicates: a kept image, then the images that are proven against it, sorted by `rank`.

A kept image whose only duplicates are excluded images of other splits is in the group of one of
them.
"""


class Matches(Protocol):
    """The proven pairs of images."""

    def nearest(self, number: int, others: Sequence[int]) -> int | None:
        """Returns the nearest of `others` that is proven to be a duplicate, or None."""

    def kind(self, one: int, other: int) -> str:
        """Returns the kind of two duplicates."""

    def distance(self, one: int, other: int) -> int:
        """Returns the distance of two duplicates."""


def rank(member: Member) -> tuple[bool, int, bytes]:
    """Returns the sort key of an image; images with smaller keys are kept first."""
    split = member.split.removeprefix(AGAINST)
    return split == member.split, _FIRST.index(split), member.key.encode()


def divide(connected: Sequence[Member], matches: Matches) -> list[Group]:
    """Divides images, which chains of proven pairs connect, into groups of proven duplicates.

    In the order of `rank`, an image is kept unless it is proven against an image that is already
    kept. So each excluded image has a kept duplicate, and no two kept images are duplicates.
    """
    members = {member.number: member for member in sorted(connected, key=rank)}
    kept_of = _covered(members, matches)
    elsewhere = _elsewhere(members, kept_of, matches)
    numbers_of: dict[int, list[int]] = {}
    for number, kept in kept_of.items():
        numbers_of.setdefault(kept, []).append(number)
    for number, other in elsewhere.items():
        if number not in kept_of and number not in numbers_of:
            numbers_of.setdefault(kept_of.get(other, other), []).append(number)

    def described(number: int, other: int | None) -> Member:
        member = members[number]._replace(kept=number not in kept_of)
        if number in elsewhere:
            member = member._replace(elsewhere=members[elsewhere[number]].line)
        if other is None:
            return member
        return member._replace(
            kind=matches.kind(number, other),
            distance=matches.distance(number, other),
            proven_against=members[other].line,
        )

    groups: list[Group] = []
    for kept, numbers in numbers_of.items():
        others = [described(n, kept_of.get(n, elsewhere.get(n))) for n in numbers]
        nearest = min((member.kind for member in others), key=KINDS.index)
        first = described(kept, None)._replace(kind=nearest)
        groups.append([first, *sorted(others, key=rank)])
    return groups


def _covered(members: Mapping[int, Member], matches: Matches) -> dict[int, int]:
    """Returns the kept duplicate of each excluded image; `members` are in the order of `rank`."""
    kept: dict[str, list[int]] = {}
    kept_of: dict[int, int] = {}
    for number, member in members.items():
        found = None
        if not member.split.startswith(AGAINST):
            # First compare with the kept images of the most preferred split.
            tries = (matches.nearest(number, of_split) for of_split in kept.values())
            found = next((each for each in tries if each is not None), None)
        if found is None:
            kept.setdefault(member.split, []).append(number)
        else:
            kept_of[number] = found
    return kept_of


def _elsewhere(
    members: Mapping[int, Member], kept_of: Mapping[int, int], matches: Matches
) -> dict[int, int]:
    """Returns, for each image with a duplicate in a different split, one such duplicate."""
    elsewhere: dict[int, int] = {}
    for number, kept in kept_of.items():
        if members[number].split != members[kept].split:
            elsewhere[number] = kept
            elsewhere.setdefault(kept, number)
    by_split: dict[str, list[int]] = {}
    for number, member in members.items():
        by_split.setdefault(member.split, []).append(number)
    for split, numbers in by_split.items():
        others = [number for number, member in members.items() if member.split != split]
        for number in numbers:
            found = None
            if others and number not in elsewhere:
                found = matches.nearest(number, others)
            if found is not None:
                elsewhere[number] = found
                elsewhere.setdefault(found, number)
    return elsewhere


def contradicts(group: Group) -> bool:
    """Returns whether the images of a group have different labels."""
    return len({member.wnid for member in group}) > 1


def crosses(group: Group) -> bool:
    """Returns whether an image of a group has a duplicate in a different split or dataset."""
    return any(member.elsewhere for member in group)


def counts(groups: Sequence[Group]) -> dict[tuple[str, str, str], list[int]]:
    """Counts pairs of a kept and an excluded image, and those with different labels.

    The keys are the two splits and the kind.
    """
    numbers: dict[tuple[str, str, str], list[int]] = {}
    for first, *others in groups:
        for member in others:
            if member.kept:
                continue
            pair = numbers.setdefault((first.split, member.split, member.kind), [0, 0])
            pair[0] += 1
            pair[1] += member.wnid != first.wnid
    return dict(sorted(numbers.items(), key=lambda item: (item[0][:2], KINDS.index(item[0][2]))))
