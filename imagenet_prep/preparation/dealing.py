"""The rules by which the images of a source are selected and divided among splits."""

from __future__ import annotations

import heapq
import itertools
import math
import operator
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from imagenet_prep.core.errors import UsageError
from imagenet_prep.core.terminal import counted
from imagenet_prep.dataset import schema
from imagenet_prep.dataset.member import NO_BOXES, Member
from imagenet_prep.dataset.settings import Recipe
from imagenet_prep.preparation.box_lists import BoxLookup
from imagenet_prep.preparation.selection import Selection
from imagenet_prep.shards import plan
from imagenet_prep.sources.source import sorted_by_key


class ShardKey(NamedTuple):
    """One shard of an output split."""

    split: str
    number: int


@dataclass(frozen=True)
class ChosenMembers:
    """Selects members of one class at a time and finds their boxes; picklable."""

    selection: Selection
    lookup: BoxLookup | None

    def among(self, split: str, members: Sequence[Member]) -> list[Member]:
        """Returns the selected members of a class, with their boxes."""
        selection, index = self.selection, members[0].class_index
        if index not in selection.classes:
            return []
        chosen = sorted_by_key(members, selection.where)
        recipe = selection.recipe
        if recipe.subset_per_class:
            chosen = plan.permute(chosen, recipe.seed)[: recipe.subset_per_class]
        if self.lookup is None or split not in self.lookup.parts:
            return chosen
        boxes = self.lookup.of(split, selection.source.classes.wnids[index])
        return [
            member._replace(boxes=boxes.get(member.filename.rpartition(".")[0], NO_BOXES))
            for member in chosen
        ]

    def taken(self, split: str, members: Sequence[Member]) -> Counter[str]:
        """Counts members per source part, and members with boxes per part of the annotations."""
        part_of = self._part_of[split]
        first_part = next(iter(part_of.values()))
        counts = Counter(part_of.get(member.archive, first_part) for member in members)
        if self.lookup is not None and split in self.lookup.parts:
            counts[self.lookup.parts[split].name] += sum(bool(m.boxes.xmin) for m in members)
        return counts

    @cached_property
    def _part_of(self) -> dict[str, dict[str, str]]:
        """The source part of each archive, by source split."""
        # A file of unpacked images has the name of its task. All other members are in the part
        # itself, or in an archive of the only part of their split.
        part_of: dict[str, dict[str, str]] = {}
        for task in self.selection.index_tasks():
            part_of.setdefault(task.split, {}).update({task.name: task.part, task.part: task.part})
        return part_of


@dataclass(frozen=True)
class Division:
    """The division of a source split into output splits."""

    counts: dict[str, Sequence[int]]  # numbers of members by class index, by output split
    num_shards: dict[str, int]  # by output split

    @cached_property
    def before(self) -> dict[str, list[int]]:
        """The number of members with smaller class indices, by split and class index."""
        return {
            split: list(itertools.accumulate(counts, initial=0))
            for split, counts in self.counts.items()
        }

    def of(self, members: list[Member], seed: int) -> dict[str, list[Member]]:
        """Divides the members of one class; returns them by output split."""
        if len(self.counts) == 1 or not members:
            return dict.fromkeys(self.counts, members)
        _, held_out = self.counts.values()
        number = held_out[members[0].class_index]
        by_rank = sorted(members, key=lambda member: plan.rank(member, seed))
        keys = {member.key for member in by_rank[:number]}
        return {
            split: [member for member in members if (member.key in keys) == is_held_out]
            for split, is_held_out in zip(self.counts, (False, True), strict=True)
        }


def divide(selection: Selection, split: str, used: Sequence[int]) -> Division:
    """Returns the division of a source split; `used` is the number of images by class index."""
    counts: dict[str, Sequence[int]] = {split: used}
    new = selection.recipe.held_out_split
    if split == schema.TRAIN and new is not None:
        held_out = _held_out(selection.recipe, used)
        counts = {split: list(map(operator.sub, used, held_out)), new: held_out}
    return Division(
        counts, {name: selection.shards_of(name, sum(of)) for name, of in counts.items()}
    )


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
    if number > (most := sum(max(0, count - 1) for count in used)):
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
        count, taken = used[index], out[index]
        if taken < count - 1:
            heapq.heappush(waiting, (-count * count / (taken * (taken + 1)), -count, index))
    return out


class Facts(NamedTuple):
    """Facts about the members of one class, with which `Planning.complete` checks the plan."""

    source: str  # the source split
    class_index: int
    kept: dict[str, tuple[int, int]]  # number and bytes of members not excluded, by output split
    taken: dict[str, int]  # these members, counted by `ChosenMembers.taken`
    excluded: dict[str, list[str]]  # excluded members by output split, see `dump_member`
    recognised: list[str]  # lines of the list whose images were found by their bytes
    # Keys of images that are named like ILSVRC2012's validation images, one per number.
    labelled: list[str]
