"""Images for which lists of labels, or the dataset, disagree, as pictures."""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from imagenet_prep.core.canonical import Json
from imagenet_prep.dataset.example import ImageExample
from imagenet_prep.reporting import pictures

_MOST_PICTURES = 48
# The columns of the table of pairs.
EQUAL, SHARED, APART, NONE = "the same", "some in common", "none in common", "one has none"


class Shown(NamedTuple):
    """An image whose labels differ; `said` has the classes in words by list; data URI or None."""

    key: str
    said: Mapping[str, Sequence[str]]
    picture: str | None


@dataclass
class Disagreements:
    """The disagreements of lists of labels.

    Attributes:
      images: the number that two lists or more have.
      differ: the number of these for which the lists disagree.
      lists: as `evaluation.Table.lists`.
      pairs: for each pair of lists, the number of images in each of the four columns.
      shown: some of the images that differ, those with nothing in common first.
    """

    lists: Sequence[Json]
    images: int = 0
    differ: int = 0
    pairs: dict[tuple[str, str], Counter[str]] = field(default_factory=dict)
    shown: list[Shown] = field(default_factory=list)


def find(
    keys: Sequence[str],
    said: Mapping[str, Mapping[int, Collection[int]]],
    lists: Sequence[Json],
    words: Callable[[int], str],
    images_of: Callable[[Sequence[str]], Iterable[ImageExample | None]],
) -> Disagreements:
    """Returns the disagreements of lists.

    Args:
      keys: of the images.
      said: by list, class indices by number of the image.
      lists: as `evaluation.Table.lists`.
      words: names a class index.
      images_of: yields the image with each of some keys, or None.
    """
    found = Disagreements(lists)
    found.pairs = {pair: Counter() for pair in itertools.combinations(said, 2)}
    ranks: list[tuple[int, int, int]] = []
    for number in range(len(keys)):
        there = {name: {*labels[number]} for name, labels in said.items() if number in labels}
        kinds = {
            pair: _kind(there[pair[0]], there[pair[1]]) for pair in itertools.combinations(there, 2)
        }
        for pair, kind in kinds.items():
            found.pairs[pair][kind] += 1
        found.images += bool(kinds)
        of_kind = Counter(kinds.values())
        if len(kinds) > of_kind[EQUAL]:
            ranks.append((-of_kind[APART], -of_kind[NONE], number))
    found.differ = len(ranks)
    numbers = [number for *_, number in heapq.nsmallest(_MOST_PICTURES, ranks)]
    images = images_of([keys[number] for number in numbers])
    for number, image in zip(numbers, images, strict=True):
        picture = image and pictures.of_example(image)
        labels = {n: list(map(words, of[number])) for n, of in said.items() if number in of}
        found.shown.append(Shown(keys[number], labels, picture))
    return found


def _kind(one: Collection[int], other: Collection[int]) -> str:
    if one == other:
        return EQUAL
    if not one or not other:
        return NONE
    return APART if {*one}.isdisjoint(other) else SHARED
