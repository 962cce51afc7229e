"""Finds images whose labels differ between label lists; the dataset is one of the lists."""

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
EQUAL = "the same"
SHARED = "some in common"
APART = "none in common"
NONE = "one has none"


class Shown(NamedTuple):
    """An image with conflicting labels: its class names by list, and its picture as a data URI."""

    key: str
    labels: Mapping[str, Sequence[str]]
    picture: str | None


@dataclass
class Disagreements:
    """Disagreements between label lists; `pairs` counts images by pair of lists and by kind."""

    lists: Sequence[Json]
    images: int = 0  # images that are in two or more lists
    differ: int = 0  # images for which the lists disagree
    pairs: dict[tuple[str, str], Counter[str]] = field(default_factory=dict)
    shown: list[Shown] = field(default_factory=list)  # examples, no common label first


def find(
    keys: Sequence[str],
    labels_of: Mapping[str, Mapping[int, Collection[int]]],
    lists: Sequence[Json],
    words: Callable[[int], str],
    images_of: Callable[[Sequence[str]], Iterable[ImageExample | None]],
) -> Disagreements:
    """Returns the disagreements between label lists.

    `labels_of[NAME][i]` has the class indices of the image `keys[i]` according to the list NAME.
    `words` returns the name of a class. `images_of` yields the image, or None, for each key.
    """
    result = Disagreements(lists)
    result.pairs = {pair: Counter() for pair in itertools.combinations(labels_of, 2)}
    ranks: list[tuple[int, int, int]] = []
    for number in range(len(keys)):
        of_image = {name: {*of[number]} for name, of in labels_of.items() if number in of}
        pairs = [*itertools.combinations(of_image, 2)]
        kinds = Counter[str]()
        for a, b in pairs:
            kind = _kind(of_image[a], of_image[b])
            result.pairs[a, b][kind] += 1
            kinds[kind] += 1
        result.images += bool(pairs)
        if len(pairs) > kinds[EQUAL]:
            ranks.append((-kinds[APART], -kinds[NONE], number))
    result.differ = len(ranks)
    numbers = [number for *_, number in heapq.nsmallest(_MOST_PICTURES, ranks)]
    images = images_of([keys[number] for number in numbers])
    for number, image in zip(numbers, images, strict=True):
        picture = image and pictures.thumbnail(image.encoded)
        labels = {n: list(map(words, of[number])) for n, of in labels_of.items() if number in of}
        result.shown.append(Shown(keys[number], labels, picture))
    return result


def _kind(a: Collection[int], b: Collection[int]) -> str:
    if a == b:
        return EQUAL
    if not a or not b:
        return NONE
    return APART if {*a}.isdisjoint(b) else SHARED
