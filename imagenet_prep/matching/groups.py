"""Groups of duplicate images, and the image that is kept in each group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from imagenet_prep.dataset import schema
from imagenet_prep.dataset.keys import with_split

if TYPE_CHECKING:
    import numpy.typing as npt

SAME_BYTES = "same bytes"
SAME_PIXELS = "same pixels"
NEARLY = "nearly the same"
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
        # Follow the chains of all images together, then shorten them.
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
        # The smaller number leads, so the groups do not depend on the order of the pairs.
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
