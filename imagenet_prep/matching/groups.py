"""Groups of duplicate images, and the image that is kept in each group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from imagenet_prep.dataset import schema
from imagenet_prep.dataset.keys import with_split

if TYPE_CHECKING:
    import numpy.typing as npt

    from imagenet_prep.matching.find import Found

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


def rank(member: Member) -> tuple[bool, int, bytes]:
    """Returns the sort key of an image; images with smaller keys are kept first."""
    split = member.split.removeprefix(AGAINST)
    return split == member.split, _FIRST.index(split), member.key.encode()


def divide(connected: Sequence[Member], found: Found) -> list[Group]:
    """Divides images, which chains of proven pairs connect, into groups of proven duplicates.

    In the order of `rank`, an image is kept unless it is proven against an image that is already
    kept. So each excluded image has a kept duplicate, and no two kept images are duplicates.
    """
    members = {member.number: member for member in sorted(connected, key=rank)}
    kept_of = _covered(members, found)
    elsewhere = _elsewhere(members, found)
    members_of: dict[int, list[Member]] = {kept: [] for kept in kept_of.values()}
    for number, member in members.items():
        other = kept_of.get(number, elsewhere.get(number))
        changes: dict[str, Any] = {"kept": number not in kept_of}
        if number in elsewhere:
            changes["elsewhere"] = members[elsewhere[number]].line
        if number not in members_of and other is not None:
            changes["kind"] = found.kind(number, other)
            changes["distance"] = int(found.distances(number, np.array([other], np.uint32))[0])
            changes["proven_against"] = members[other].line
            home = kept_of.get(other, other)
            members_of.setdefault(home, []).append(member._replace(**changes))
        members[number] = member._replace(**changes)
    groups: list[Group] = []
    for kept, others in members_of.items():
        nearest = min((member.kind for member in others), key=KINDS.index)
        groups.append([members[kept]._replace(kind=nearest), *others])
    return groups


def _covered(members: Mapping[int, Member], found: Found) -> dict[int, int]:
    """Returns the kept duplicate of each excluded image; `members` are in the order of `rank`."""
    kept: dict[str, list[int]] = {}
    kept_of: dict[int, int] = {}
    for number, member in members.items():
        other = None
        if not member.split.startswith(AGAINST):
            # First compare with the kept images of the most preferred split.
            tries = (found.nearest(number, of_split) for of_split in kept.values())
            other = next((each for each in tries if each is not None), None)
        if other is None:
            kept.setdefault(member.split, []).append(number)
        else:
            kept_of[number] = other
    return kept_of


def _elsewhere(members: Mapping[int, Member], found: Found) -> dict[int, int]:
    """Returns, for each image with a duplicate in a different split, the nearest of these."""
    elsewhere: dict[int, int] = {}
    for split in {member.split for member in members.values()}:
        others = [number for number, member in members.items() if member.split != split]
        for number, member in members.items():
            if others and member.split == split:
                other = found.nearest(number, others)
                if other is not None:
                    elsewhere[number] = other
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
