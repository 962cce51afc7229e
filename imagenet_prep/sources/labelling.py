"""Finds the class list and the first label (0 or 1) of an existing dataset."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from imagenet_prep.core.errors import DataDamagedError
from imagenet_prep.dataset.class_list import ClassList
from imagenet_prep.dataset.keys import WNID
from imagenet_prep.sources.labels import official_classes

_MAX_EXAMPLES_IN_MESSAGE = 5


class LabelUse(NamedTuple):
    """A class and a label that occur together in the records of a shard."""

    name: str
    text: str
    label: int
    examples: int  # number of records with this class and label
    where: str  # the first of these records


@dataclass(frozen=True)
class Labelling:
    """A dataset's class list, and the `offset` of its labels: label = class index + offset."""

    classes: ClassList
    offset: int

    def class_index(self, name: str, label: int) -> int:
        """Returns the class index of a record; raises DataDamagedError if its label is wrong."""
        if not name:
            index = label - self.offset
            if not 0 <= index < len(self.classes.wnids):
                last = len(self.classes.wnids) - 1 + self.offset
                raise DataDamagedError(f"label {label}, expected {self.offset} to {last}")
            return index
        index = self.classes.index.get(name, -1)
        if index < 0:
            count = len(self.classes.wnids)
            raise DataDamagedError(f"class {name!r} is not one of the dataset's {count} classes")
        if label - index != self.offset:
            raise DataDamagedError(f"label {label}, expected {index + self.offset} for {name}")
        return index


def labelling_of(uses: Iterable[LabelUse], known: ClassList | None = None) -> Labelling:
    """Returns the class list (preferably `known`) and the offset (0 or 1) that match all labels."""
    uses = list(uses)
    official = official_classes()
    lists = [_own_classes(uses, official)]
    for classes in (official, known):
        if classes and all(use.name in classes.index for use in uses if use.name):
            # The preferred list comes first: of equal counts, `min` returns the first.
            lists.insert(0, classes)
    # Only TFDS records have no class name; TFDS labels start at 0.
    offsets = (1, 0) if all(use.name for use in uses) else (0,)
    candidates = [*itertools.starmap(Labelling, itertools.product(lists, offsets))]
    strays_of = [[use for use in uses if _problem(use, c)] for c in candidates]
    counts = [sum(use.examples for use in strays) for strays in strays_of]
    count, strays, best = min(zip(counts, strays_of, candidates, strict=True), key=lambda c: c[0])
    if strays:
        problems = "; ".join(_problem(use, best) for use in strays[:_MAX_EXAMPLES_IN_MESSAGE])
        raise DataDamagedError(
            f"labels that do not match the others ({count:,}): {problems}. All labels must be "
            "positions in the sorted class list, counted from 0 or from 1."
        )
    return best


def _problem(use: LabelUse, labelling: Labelling) -> str:
    try:
        labelling.class_index(use.name, use.label)
    except DataDamagedError as error:
        return f"{use.where}: {error}"
    return ""


def _own_classes(uses: Sequence[LabelUse], official: ClassList) -> ClassList:
    """Returns the class list in the records: sorted WNIDs, or class names in label order."""
    named = {use.name: use for use in sorted(uses, key=lambda use: use.examples) if use.name}
    names = sorted(named)
    if not all(map(WNID.fullmatch, names)):
        names.sort(key=lambda name: named[name].label)
    words = dict(zip(official.wnids, official.words, strict=True))
    return ClassList(
        tuple(names), tuple(named[name].text or words.get(name, name) for name in names)
    )
