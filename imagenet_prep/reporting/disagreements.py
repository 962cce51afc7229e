"""Finds images with different labels in label lists or the dataset, and their pictures."""

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
EQUAL, SHARED, APART, NONE = "the same", "some in common", "none in common", "one has none"


class Shown(NamedTuple):
    """An image with different labels: the class names by list, and a picture as data URI."""

    key: str
    said: Mapping[str, Sequence[str]]
    picture: str | None


@dataclass
class Disagreements:
    """The disagreements of label lists; `pairs` has the number of images in each column by pair."""

    lists: Sequence[Json]
    images: int = 0  # images that are in two or more lists
    differ: int = 0  # images for which the lists disagree
    pairs: dict[tuple[str, str], Counter[str]] = field(default_factory=dict)
    shown: list[Shown] = field(default_factory=list)  # examples, those with no common label first


def find(
    keys: Sequence[str],
    said: Mapping[str, Mapping[int, Collection[int]]],
    lists: Sequence[Json],
    words: Callable[[int], str],
    images_of: Callable[[Sequence[str]], Iterable[ImageExample | None]],
) -> Disagreements:
    """Returns the disagreements of label lists.

    `said` has the class indices of each list by position in `keys`. `words` returns the name of a
    class index, and `images_of` yields the image for each key, or None.
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
        picture = image and pictures.thumbnail(image.encoded)
        labels = {n: list(map(words, of[number])) for n, of in said.items() if number in of}
        found.shown.append(Shown(keys[number], labels, picture))
    return found


def _kind(one: Collection[int], other: Collection[int]) -> str:
    if one == other:
        return EQUAL
    if not one or not other:
        return NONE
    return APART if {*one}.isdisjoint(other) else SHARED
