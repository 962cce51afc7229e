"""Finds the most confident mistakes of a model, and the classes that it confuses most often.

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
    """The number and share of the images of `label` that were predicted as `taken_for`."""

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
    predictions: Iterable[Prediction],
    words: Callable[[int], str],
    images_of: Callable[[Sequence[str]], Iterable[ImageExample | None]],
) -> Mistakes:
    """Returns the mistakes in `predictions`, without keeping all predictions in memory."""
    mistakes = Mistakes()
    examples: Counter[int] = Counter()
    confusions: Counter[tuple[int, int]] = Counter()

    def wrong() -> Iterable[tuple[float, int, Prediction]]:
        for prediction in predictions:
            mistakes.images += 1
            examples[prediction.class_index] += 1
            mistakes.wrong += prediction.is_wrong
            if prediction.is_wrong and prediction.classes:
                confusions[prediction.class_index, prediction.classes[0]] += 1
                # Mistakes of equal confidence stay in the order of `predictions`.
                yield prediction.shares[0], -mistakes.images, prediction

    surest = [row[2] for row in heapq.nlargest(_MOST_PICTURES, wrong(), key=lambda row: row[:2])]
    images = images_of([prediction.key for prediction in surest])
    for (key, label, classes, shares), image in zip(surest, images, strict=True):
        picture = image and pictures.thumbnail(image.encoded)
        mistakes.surest.append(Mistake(key, words(label), words(classes[0]), shares[0], picture))
    worst = sorted(confusions.items(), key=lambda pair: (-pair[1], pair[0]))[:_MOST_PAIRS]
    for (label, predicted), count in worst:
        share = count / examples[label]
        mistakes.pairs.append(Pair(words(label), words(predicted), count, share))
    return mistakes
