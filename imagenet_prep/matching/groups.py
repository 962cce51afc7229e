"""The groups that equal pictures make, and which one of each is kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from imagenet_prep.dataset import schema

if TYPE_CHECKING:
    import numpy.typing as npt

SAME_BYTES, SAME_PIXELS, NEARLY = "same bytes", "same pixels", "nearly the same"
KINDS = (SAME_BYTES, SAME_PIXELS, NEARLY)
# The split of a picture of the other set begins with this.
AGAINST = "against:"
# Evaluation comes before training: who has tested on a picture may not have trained on it.
_FIRST = (schema.TEST, schema.VALIDATION, schema.HOLDOUT, schema.TRAIN)


class Union:
    """Pictures that are known to be one: each points to the first of its group."""

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
    """A picture of a group, as `pairs.csv` says it.

    Attributes:
      number: of the picture.
      split, key, class_index: of it; the split of another set is called against:NAME.
      wnid: of the class, by which classes of two sets are compared.
      kind: how it is the same as the one that is kept, or of that one, as its nearest.
      distance: bits of 256 in which it differs from the one that is kept.
      kept: whether it stays.
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
"""Pictures that are one, sorted by `rank`: the first is kept."""


def rank(member: Member) -> tuple[bool, int, bytes]:
    """Returns what decides who is kept: the smallest."""
    split = member.split.removeprefix(AGAINST)
    return split == member.split, _FIRST.index(split), member.key.encode()


def contradicts(group: Group) -> bool:
    """Returns whether its pictures have more than one label."""
    return len({each.wnid for each in group}) > 1


def crosses(group: Group) -> bool:
    """Returns whether its pictures are of more than one split, or of two sets."""
    return len({each.split for each in group}) > 1


def counts(groups: Sequence[Group]) -> dict[tuple[str, str, str], list[int]]:
    """Returns pairs with the kept picture, and of these contradictions, by both splits and kind."""
    found: dict[tuple[str, str, str], list[int]] = {}
    for kept, *others in groups:
        for each in others:
            pair = found.setdefault((kept.split, each.split, each.kind), [0, 0])
            pair[0] += 1
            pair[1] += each.wnid != kept.wnid
    return dict(sorted(found.items(), key=lambda item: (item[0][:2], KINDS.index(item[0][2]))))
