"""Finds the most confident mistakes of a model, and the classes that it confuses.

The predictions come from `imagenet-prep train --evaluate --predictions FILE`.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from imagenet_prep.dataset.example import ImageExample
from imagenet_prep.dataset.predictions import Prediction
from imagenet_prep.reporting import pictures

_MOST_PAIRS = 30
_MOST_PICTURES = 48


class Mistake(NamedTuple):
    """A wrong prediction; `share` is its confidence in [0, 1]."""

    key: str
    label: str
    taken_for: str
    share: float
    picture: str | None


class Pair(NamedTuple):
    """Two classes; `images`, a `share` of the first class, are predicted as the second."""

    label: str
    taken_for: str
    images: int
    share: float


@dataclass
class Mistakes:
    """The mistakes of a model."""

    images: int = 0  # number of predictions
    wrong: int = 0  # number of wrong predictions
    surest: list[Mistake] = field(default_factory=list)  # the most confident mistakes first
    pairs: list[Pair] = field(default_factory=list)  # the pairs with the most mistakes first


def find(
    said: Iterable[Prediction],
    words: Callable[[int], str],
    images_of: Callable[[Sequence[str]], Iterable[ImageExample | None]],
) -> Mistakes:
    """Returns the mistakes, without keeping predictions in memory."""
    found = Mistakes()
    examples: Counter[int] = Counter()
    taken: Counter[tuple[int, int]] = Counter()

    def wrong() -> Iterable[tuple[float, int, Prediction]]:
        for each in said:
            found.images += 1
            examples[each.class_index] += 1
            if each.is_wrong:
                found.wrong += 1
                if not each.classes:
                    continue  # There is no predicted class.
                taken[each.class_index, each.classes[0]] += 1
                # Mistakes of equal confidence are in the order of their images.
                yield each.shares[0], -found.images, each

    surest = heapq.nlargest(_MOST_PICTURES, wrong(), key=lambda one: one[:2])
    shown = images_of([each.key for *_, each in surest])
    for (share, _, each), image in zip(surest, shown, strict=True):
        picture = image and pictures.thumbnail(image.encoded)
        label, other = words(each.class_index), words(each.classes[0])
        found.surest.append(Mistake(each.key, label, other, share, picture))
    worst = sorted(taken.items(), key=lambda pair: (-pair[1], pair[0]))[:_MOST_PAIRS]
    for (label_index, other_index), images in worst:
        share = images / examples[label_index]
        found.pairs.append(Pair(words(label_index), words(other_index), images, share))
    return found
