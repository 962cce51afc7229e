"""The groups of equal images, and the image of each that is kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from imagenet_prep.dataset import schema

if TYPE_CHECKING:
    import numpy.typing as npt

SAME_BYTES, SAME_PIXELS, NEARLY = "same bytes", "same pixels", "nearly the same"
KINDS = (SAME_BYTES, SAME_PIXELS, NEARLY)
# Prefix of the splits of the other dataset.
AGAINST = "against:"
# Evaluation first: a network must not be trained on an image that tests it.
_FIRST = (schema.TEST, schema.VALIDATION, schema.HOLDOUT, schema.TRAIN)


class Union:
    """Disjoint sets of images: each image points to the first of its group."""

    def __init__(self, num: int) -> None:
        self._first = np.arange(num, dtype=np.uint32)

    def first(self, numbers: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
        """Returns the first picture of the group of each."""
        found = self._first[numbers]
        while not np.array_equal(further := self._first[found], found):
            found = further
        self._first[numbers] = found
        return found

    def joined(self) -> npt.NDArray[np.uint32]:
        """Returns the first of its group for every picture."""
        return self.first(np.arange(len(self._first), dtype=np.uint32))

    def join(self, left: int, right: int) -> None:
        """Makes one group of two."""
        one, other = self.first(np.array([left, right], np.uint32)).tolist()
        self._first[max(one, other)] = min(one, other)

    def groups(self) -> list[npt.NDArray[np.uint32]]:
        """Returns the groups of more than one, each sorted, in the order of their first."""
        every = self.joined()
        order = np.argsort(every, kind="stable").astype(np.uint32)
        parts = np.split(order, np.flatnonzero(np.diff(every[order])) + 1)
        return [part for part in parts if len(part) > 1]


class Member(NamedTuple):
    """An image of a group, as in `pairs.csv`.

    Attributes:
      split: that of another dataset is called against:NAME.
      wnid: compares classes of two datasets.
      kind: how it equals the kept image; for the kept image, how its nearest duplicate does.
      distance: bits of 256 in which it differs from the kept image.
    """

    number: int
    split: str
    key: str
    class_index: int
    wnid: str
    kind: str = NEARLY
    distance: int = 0
    kept: bool = True


Group = Sequence[Member]
"""Duplicates, sorted by `rank`: the first is kept."""


def rank(member: Member) -> tuple[bool, int, bytes]:
    """Returns the sort key of a group: the smallest member is kept."""
    split = member.split.removeprefix(AGAINST)
    return split == member.split, _FIRST.index(split), member.key.encode()


def contradicts(group: Group) -> bool:
    """Returns whether its images have different labels."""
    return len({each.wnid for each in group}) > 1


def crosses(group: Group) -> bool:
    """Returns whether its images are of different splits or datasets."""
    return len({each.split for each in group}) > 1


def counts(groups: Sequence[Group]) -> dict[tuple[str, str, str], list[int]]:
    """Returns pairs with the kept image, and those of other labels, by both splits and kind."""
    found: dict[tuple[str, str, str], list[int]] = {}
    for kept, *others in groups:
        for each in others:
            pair = found.setdefault((kept.split, each.split, each.kind), [0, 0])
            pair[0] += 1
            pair[1] += each.wnid != kept.wnid
    return dict(sorted(found.items(), key=lambda item: (item[0][:2], KINDS.index(item[0][2]))))
