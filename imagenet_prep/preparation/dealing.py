"""Assigns the images of a source to shards: first class by class, then a check of all classes.

`planning` combines these rules into steps.
"""

from __future__ import annotations

import heapq
import itertools
import math
import operator
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from imagenet_prep.core.errors import SourceError, UsageError
from imagenet_prep.core.terminal import counted
from imagenet_prep.dataset import naming, schema
from imagenet_prep.dataset.keys import VALIDATION_NAME
from imagenet_prep.dataset.member import NO_BOXES, Member, dump_member, parse_members
from imagenet_prep.preparation.box_lists import BoxLookup
from imagenet_prep.preparation.selection import Selection
from imagenet_prep.preparation.tasks import plan_name
from imagenet_prep.shards import plan
from imagenet_prep.shards.plan import SplitPlan
from imagenet_prep.sources import labels
from imagenet_prep.sources.source import sorted_by_key
from imagenet_prep.storage.store import Store

_READ_AT_ONCE = 64


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
        if selection.per_class:
            chosen = plan.permute(chosen, selection.seed)[: selection.per_class]
        if self.lookup is None or split not in self.lookup.parts:
            return chosen
        boxes = self.lookup.of(split, selection.source.classes.wnids[index])
        return [
            member._replace(boxes=boxes.get(member.filename.rpartition(".")[0], NO_BOXES))
            for member in chosen
        ]

    def taken(self, split: str, members: Sequence[Member]) -> Counter[str]:
        """Counts members and boxes per source part."""
        part_of = self._part_of[split]
        first_part = next(iter(part_of.values()))
        found = Counter(part_of.get(member.archive, first_part) for member in members)
        if self.lookup is not None and split in self.lookup.parts:
            found[self.lookup.parts[split].name] += sum(bool(m.boxes.xmin) for m in members)
        return found

    @cached_property
    def _part_of(self) -> dict[str, dict[str, str]]:
        """The source part of each archive, by source split."""
        # A file of unpacked images is named after its task. Other members are in the part itself,
        # or in an archive of the only part of their split.
        found: dict[str, dict[str, str]] = {}
        for task in self.selection.index_tasks():
            found.setdefault(task.split, {}).update({task.name: task.part, task.part: task.part})
        return found


@dataclass(frozen=True)
class Division:
    """The division of a source split into output splits.

    For each output split, `counts` has its members by class index.
    """

    counts: dict[str, Sequence[int]]
    num_shards: dict[str, int]

    @cached_property
    def before(self) -> dict[str, list[int]]:
        """For each split, the number of members with a smaller class index, by class index."""
        return {
            split: list(itertools.accumulate(counts, initial=0))
            for split, counts in self.counts.items()
        }

    def of(self, members: list[Member], seed: int) -> dict[str, list[Member]]:
        """Returns the members of a class for each of the output splits."""
        if len(self.counts) == 1 or not members:
            return dict.fromkeys(self.counts, members)
        _, held_out = self.counts.values()
        number = held_out[members[0].class_index]
        by_rank = sorted(members, key=lambda member: plan.rank(member, seed))
        keys = {member.key for member in by_rank[:number]}
        return {
            split: [member for member in members if (member.key in keys) == out]
            for split, out in zip(self.counts, (False, True), strict=True)
        }


def divide(selection: Selection, split: str, used: Sequence[int]) -> Division:
    """Returns the division of a source split, given its number of images by class index."""
    counts: dict[str, Sequence[int]] = {split: used}
    if split == schema.TRAIN and (selection.holds_out or selection.holdout_per_class):
        out = _held_out(selection, used)
        counts = {
            split: list(map(operator.sub, used, out)),
            schema.VALIDATION if selection.holdout_per_class else schema.HOLDOUT: out,
        }
    num_shards = {name: selection.shards_of(name, sum(each)) for name, each in counts.items()}
    return Division(counts, num_shards)


def _held_out(selection: Selection, used: Sequence[int]) -> list[int]:
    most, percent = selection.holdout_per_class, selection.holdout_percent
    if most:
        flag, out = f"--holdout-per-class {most}", [min(most, count // 2) for count in used]
    elif percent:
        flag = f"--holdout {percent:g}%"
        out = [min(max(1, round(count * percent / 100)), max(0, count - 1)) for count in used]
    else:
        flag, out = f"--holdout {selection.holdout:,}", _apportioned(selection.holdout, used)
    if not any(out):
        raise UsageError(f"{flag}: no class has two images, so that one could be taken")
    return out


def _apportioned(number: int, used: Sequence[int]) -> list[int]:
    """Distributes a number of images in proportion to class sizes (Huntington-Hill method).

    Each class with at least two images gives one before any class gives a second, and each class
    keeps at least one. A larger number therefore includes all images of a smaller one.
    """
    if number > (most := sum(max(0, count - 1) for count in used)):
        raise UsageError(
            f"--holdout {number:,}: train has {counted(sum(used), 'image')}, and one of each class "
            f"must be left in it: expected {most:,} at most"
        )
    out = [0] * len(used)
    # The first heap entry is the class with the largest size relative to its held-out images.
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
    """The result for one class, as JSON; the plan needs the facts of all classes.

    Attributes:
      source: the split of the source.
      kept: for each output split, the number and total bytes of members that are not excluded.
      taken: counts of these members by `ChosenMembers.taken`.
      excluded: excluded members, one per line, as written by `dump_member`.
      labelled: (key, number) of all images named like ILSVRC2012's validation images.
    """

    source: str
    class_index: int
    kept: dict[str, tuple[int, int]]
    taken: dict[str, int]
    excluded: list[str]
    labelled: list[tuple[str, int]]


def deal_class(
    choice: ChosenMembers, source: str, members: Sequence[Member], division: Division
) -> tuple[Facts, dict[str, list[bytes]]]:
    """Plans a class: returns facts and entries by output split; excluded positions stay empty."""
    selection, index = choice.selection, members[0].class_index
    excluded = selection.excluded.keys if selection.excluded else ()
    seed = selection.seed
    chosen = choice.among(source, members)
    kept: dict[str, tuple[int, int]] = {}
    entries: dict[str, list[bytes]] = {}
    for split, part in division.of(chosen, seed).items():
        first, num_shards = division.before[split][index], division.num_shards[split]
        dealt = [
            (shard, member)
            for shard, member in plan.deal_class(part, first, num_shards, seed)
            if member.key not in excluded
        ]
        entries[split] = [plan.entry(shard, member, seed) for shard, member in dealt]
        kept[split] = len(dealt), sum(member.size for _, member in dealt)
    matches = (VALIDATION_NAME.match(member.key) for member in members)
    facts = Facts(
        source,
        index,
        kept,
        choice.taken(source, [member for member in chosen if member.key not in excluded]),
        [dump_member(member).decode() for member in chosen if member.key in excluded],
        [(match[0], int(match[1])) for match in matches if match],
    )
    return facts, entries


def check_classes(
    selection: Selection, facts: Sequence[Facts]
) -> tuple[Counter[str], list[Member]]:
    """Checks the facts of all classes; returns the counts of `taken` and the excluded members."""
    where, excluded = selection.where, selection.excluded
    unknown = set(excluded.keys if excluded else ())
    taken, members = Counter[str](), list[Member]()
    for split in selection.splits:
        class_of: dict[int, int] = {}
        left_out: set[str] = set()
        for each in facts:
            if each.source != split:
                continue
            taken.update(each.taken)
            left_out_of_class = parse_members("".join(each.excluded).encode())
            left_out.update(member.key for member in left_out_of_class)
            members += left_out_of_class
            for key, number in each.labelled:
                if class_of.setdefault(number, each.class_index) != each.class_index:
                    raise SourceError(f"{where}: {key!r} comes twice, in two classes")
        labels.check_validation(selection.source.classes, class_of, where)
        if excluded:
            excluded.refuse_ambiguous(left_out - unknown)
            unknown -= left_out
    if excluded:
        excluded.refuse_unknown(unknown, f"what is taken from {where}")
    return taken, members


def split_plans(
    divisions: Mapping[str, Division],
    facts: Sequence[Facts],
    filled: Collection[ShardKey],
    store: Store,
    folder: str,
) -> list[SplitPlan]:
    """Returns the plans of all output splits; `filled` are the shards that have members."""
    plans = []
    for source, division in divisions.items():
        for split, num in division.num_shards.items():
            plan.refuse_empty(
                split, num, {shard.number for shard in filled if shard.split == split}
            )
            num_per_class, source_bytes = [0] * len(division.counts[split]), 0
            for each in facts:
                if each.source == source:
                    num_per_class[each.class_index], num_bytes = each.kept[split]
                    source_bytes += num_bytes
            names = [plan_name(naming.shard_name(split, i, num), folder) for i in range(num)]
            # A bucket fetches all files of one call in parallel.
            files = (
                data
                for start in range(0, num, _READ_AT_ONCE)
                for data in store.read_each(names[start : start + _READ_AT_ONCE], plan.MOST_BYTES)
            )
            plans.append(
                SplitPlan(split, num, tuple(num_per_class), source_bytes, plan.digest(files))
            )
    return plans
