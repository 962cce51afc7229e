"""The groups that equal pictures make, and which one of each is kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from imagenet_prep.dataset import schema

if TYPE_CHECKING:
    import numpy.typing as npt

SAME_BYTES, SAME_PIXELS, NEARLY = "same bytes", "same pixels", "nearly the same"
KINDS = (SAME_BYTES, SAME_PIXELS, NEARLY)
# Evaluation comes before training: who has tested on a picture may not have trained on it.
_FIRST = (schema.TEST, schema.VALIDATION, schema.HOLDOUT, schema.TRAIN)


class Union:
    """Pictures that are known to be one: each points to the first of its group."""

    def __init__(self, num: int) -> None:
        self._first = np.arange(num, dtype=np.uint32)

    def first(self, numbers: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
        """Returns the first picture of the group of each."""
        found = self._first[numbers]
        while (further := self._first[found]).tolist() != found.tolist():
            found = further
        self._first[numbers] = found
        return found

    def join(self, left: int, right: int) -> None:
        """Makes one group of two."""
        one, other = self.first(np.array([left, right], np.uint32)).tolist()
        self._first[max(one, other)] = min(one, other)

    def groups(self) -> list[npt.NDArray[np.uint32]]:
        """Returns the groups of more than one, each sorted, in the order of their first."""
        every = self.first(np.arange(len(self._first), dtype=np.uint32))
        order = np.argsort(every, kind="stable").astype(np.uint32)
        parts = np.split(order, np.flatnonzero(np.diff(every[order])) + 1)
        return [part for part in parts if len(part) > 1]

    def joined(self) -> npt.NDArray[np.uint32]:
        """Returns the first of its group for every picture."""
        return self.first(np.arange(len(self._first), dtype=np.uint32))


class Member(NamedTuple):
    """A picture of a group, as `pairs.csv` says it.

    Attributes:
      number: of the picture.
      split, key, class_index: of it; the split of another set is called OTHER:NAME.
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
    kind: str
    distance: int
    kept: bool

    @property
    def base_split(self) -> str:
        """The split, whosever it is."""
        return self.split.rpartition(":")[2]


class Group(NamedTuple):
    """Pictures that are one, the kept one first.

    Attributes:
      members: sorted by split and key.
    """

    members: Sequence[Member]

    @property
    def kept(self) -> Member:
        """The picture that stays."""
        return self.members[0]

    @property
    def contradicts(self) -> bool:
        """Whether its pictures have more than one label."""
        return len({each.wnid for each in self.members}) > 1

    @property
    def crosses(self) -> bool:
        """Whether its pictures are of more than one split, or of two sets."""
        return len({each.split for each in self.members}) > 1


def rank(other: bool, split: str, key: str) -> tuple[bool, int, bytes]:
    """Returns what decides who is kept: the smallest."""
    return not other, _FIRST.index(split), key.encode()


def counts(groups: Sequence[Group]) -> dict[tuple[str, str, str], list[int]]:
    """Returns pairs with the kept picture, and of these contradictions, by both splits and kind."""
    found: dict[tuple[str, str, str], list[int]] = {}
    for group in groups:
        for each in group.members[1:]:
            pair = found.setdefault((group.kept.split, each.split, each.kind), [0, 0])
            pair[0] += 1
            pair[1] += each.wnid != group.kept.wnid
    return dict(sorted(found.items(), key=lambda item: (item[0][:2], KINDS.index(item[0][2]))))


def excluded(groups: Sequence[Group], split: str) -> Iterator[str]:
    """Yields the keys of a split that are not kept, in order."""
    yield from sorted(
        each.key
        for group in groups
        for each in group.members
        if each.split == split and not each.kept
    )
