"""The rules by which the images of a source split are divided among output splits."""

from __future__ import annotations

import heapq
import math
import operator
from collections.abc import Sequence
from typing import NamedTuple

from imagenet_prep.core.errors import UsageError
from imagenet_prep.core.terminal import counted
from imagenet_prep.dataset import schema
from imagenet_prep.dataset.settings import Recipe
from imagenet_prep.preparation.selection import Selection


class Share(NamedTuple):
    """The part of a source split that becomes an output split, before images are excluded."""

    split: str
    num_per_class: Sequence[int]
    num_shards: int


class Division(NamedTuple):
    """The output splits that are made from a source split."""

    kept: Share
    held_out: Share | None

    @property
    def shares(self) -> list[Share]:
        """All output splits."""
        return [self.kept] if self.held_out is None else [self.kept, self.held_out]


def divide(selection: Selection, split: str, used: Sequence[int]) -> Division:
    """Returns the division of a source split; `used` is the number of images by class index."""

    def share(name: str, counts: Sequence[int]) -> Share:
        return Share(name, counts, selection.shards_of(name, sum(counts)))

    new = selection.recipe.held_out_split
    if split != schema.TRAIN or new is None:
        return Division(share(split, used), None)
    held_out = _held_out(selection.recipe, used)
    kept = list(map(operator.sub, used, held_out))
    return Division(share(split, kept), share(new, held_out))


def _held_out(recipe: Recipe, used: Sequence[int]) -> list[int]:
    amount = recipe.holdout.partition(" ")[0]
    flag = f"--holdout {amount}"
    most = recipe.holdout_per_class
    if most:
        flag = f"--holdout-per-class {most}"
        out = [min(most, count // 2) for count in used]
    elif amount.endswith("%"):
        percent = float(amount[:-1])
        out = [min(max(1, round(count * percent / 100)), max(0, count - 1)) for count in used]
    else:
        flag = f"--holdout {int(amount):,}"
        out = _apportioned(int(amount), used)
    if not any(out):
        raise UsageError(f"{flag}: no class has more than one image, so no image can be taken out")
    return out


def _apportioned(number: int, used: Sequence[int]) -> list[int]:
    """Returns how many of `number` images to take from each class, in proportion to its size.

    The Huntington-Hill method adds one image at a time, so a larger `number` includes all images of
    a smaller one. A class with two images gives one before any class gives two, and keeps one.
    """
    most = sum(max(0, count - 1) for count in used)
    if number > most:
        raise UsageError(
            f"--holdout {number:,}: expected at most {most:,}, since train has "
            f"{counted(sum(used), 'image')} and must keep one image of each class"
        )
    out = [0] * len(used)
    # The first heap entry is the class with the largest ratio of its size to its held-out images.
    waiting = [(-math.inf, -count, index) for index, count in enumerate(used) if count > 1]
    heapq.heapify(waiting)
    for _ in range(number):
        _, _, index = heapq.heappop(waiting)
        out[index] += 1
        count = used[index]
        given = out[index]
        if given < count - 1:
            heapq.heappush(waiting, (-count * count / (given * (given + 1)), -count, index))
    return out
