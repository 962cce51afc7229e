"""Deals the images of a source out to shards, on all cores of this machine.

A task deals the classes of a range, and sorts what goes to each shard into runs on the disk. When
all have, another kind of task takes a range of shards out of all runs, and writes their plan
files. So no process holds more than a run's members, or those of one class or shard; and the plan
does not depend on how classes and shards were cut into ranges.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from imagenet_prep import engine
from imagenet_prep.core.errors import SourceError, UsageError
from imagenet_prep.dataset import naming, schema
from imagenet_prep.dataset.keys import VALIDATION_NAME
from imagenet_prep.dataset.member import Member
from imagenet_prep.preparation.box_lists import BoxLookup
from imagenet_prep.preparation.chosen_members import ChosenMembers, Lists, entries_by_class
from imagenet_prep.preparation.selection import Selection
from imagenet_prep.preparation.tasks import PLAN_FOLDER
from imagenet_prep.shards import plan, runs
from imagenet_prep.shards.commit import num_per_class
from imagenet_prep.shards.plan import SplitPlan
from imagenet_prep.sources import labels
from imagenet_prep.storage.folder import LocalStore

# Fewer images than this are dealt out before processes have started.
_WORTH_PROCESSES_IMAGES = 300_000


class RangeTask(NamedTuple):
    """A range of lists, classes or shards of one split.

    Attributes:
      name: unique, fit for a file name.
      split: of the source; of shards, the one that is made.
      start, stop: the range.
    """

    name: str
    split: str
    start: int
    stop: int


@dataclass(frozen=True)
class Division:
    """How a split of the source is divided among the splits that are made of it.

    Attributes:
      counts: of each split, its members by class index: of one, or of train and what is taken out.
      num_shards: of each.
      per_class: how many of each class are taken out at most.
      last: otherwise the largest rank of what is taken out, see `plan.held_up_to`.
    """

    counts: dict[str, Sequence[int]]
    num_shards: dict[str, int]
    per_class: int = 0
    last: tuple[int, str] | None = None

    def of(self, members: list[Member], seed: int) -> dict[str, list[Member]]:
        """Returns the members of a class that go to each of the splits."""
        if len(self.counts) == 1:
            return dict.fromkeys(self.counts, members)
        if self.last is not None:
            held = plan.held_up_to(self.last, seed)
        else:
            held = plan.hold_out(members, _taken_out(len(members), self.per_class), seed)
        return {
            split: [member for member in members if held(member) == out]
            for split, out in zip(self.counts, (False, True), strict=True)
        }


def _taken_out(count: int, per_class: int) -> int:
    return min(per_class, count // 2)


def held_out(selection: Selection, used: Sequence[int]) -> int:
    """Returns how many images are taken out of train.

    Args:
      selection: which are wanted.
      used: images of train by class index.

    Raises:
      UsageError: there are too few images.
    """
    examples, number, most = sum(used), selection.holdout, selection.holdout_per_class
    if number >= examples:
        raise UsageError(
            f"--holdout {number}: train has {examples:,} images, and one must be left in it"
        )
    if most and not (number := sum(_taken_out(count, most) for count in used)):
        raise UsageError(
            f"--holdout-per-class {most}: no class has two images, so that one could be taken"
        )
    return number


def divide(
    selection: Selection,
    split: str,
    used: Sequence[int],
    last: tuple[int, str] | None = None,
    out: Sequence[int] = (),
) -> Division:
    """Returns how a split of the source is divided.

    Args:
      selection: the images.
      split: of the source.
      used: its images by class index.
      last, out: for --holdout, the largest rank of what is taken out, and its images by class.

    Raises:
      UsageError: there are too few images.
    """
    most = selection.holdout_per_class
    counts: dict[str, Sequence[int]] = {split: used}
    if split == schema.TRAIN and held_out(selection, used):
        out = [_taken_out(count, most) for count in used] if most else out
        name = schema.VALIDATION if most else schema.HOLDOUT
        counts = {split: list(map(operator.sub, used, out)), name: out}
    num_shards = {name: selection.shards_of(name, sum(each)) for name, each in counts.items()}
    return Division(counts, num_shards, most, last)


@dataclass(frozen=True)
class SortWork:
    """Sorts entries into runs.

    Attributes:
      entries: of a range.
      folder: where runs go.
    """

    entries: Callable[[int, int], Iterable[bytes]]
    folder: Path

    def __call__(self, task: RangeTask) -> engine.Result:
        """Returns the names of the runs."""
        files = runs.write(self.folder, task.name, self.entries(task.start, task.stop))
        return engine.Result({"runs": [file.name for file in files]})


@dataclass(frozen=True)
class DealWork:
    """Deals the members of a range of classes.

    Attributes:
      members: by split of the source.
      divisions: as many.
      folder: where runs go.
    """

    members: dict[str, ChosenMembers]
    divisions: dict[str, Division]
    folder: Path

    def __call__(self, task: RangeTask) -> engine.Result:
        """Returns what was dealt, and the runs that it went to."""
        listed, division = self.members[task.split], self.divisions[task.split]
        dealt = {
            split: _Dealt(division.num_shards[split], sum(counts[: task.start]))
            for split, counts in division.counts.items()
        }
        selection = listed.selection
        taken: Counter[str] = Counter()
        left_out, labelled = [], []
        for members in listed.of_classes(task.start, task.stop):
            labelled += [
                (m.key, int(match[1]), m.class_index)
                for m in members
                if (match := VALIDATION_NAME.match(m.key))
            ]
            chosen = listed.chosen(members)
            for split, part in division.of(chosen, selection.seed).items():
                dealt[split].add(part, selection.seed, selection.excluded_keys)
            left_out += [m.key for m in chosen if m.key in selection.excluded_keys]
            taken += listed.taken([m for m in chosen if m.key not in selection.excluded_keys])
        splits = {
            split: each.content(self.folder, f"{task.name}-{split}")
            for split, each in dealt.items()
        }
        examples = sum(taken.values())
        content = {"splits": splits, "taken": taken, "left_out": left_out, "labelled": labelled}
        return engine.Result({"examples": examples, **content})


class _Dealt:
    """What a task deals out to the shards of one split."""

    def __init__(self, num_shards: int, first: int) -> None:
        """Begins with the class before which `first` members of the split lie."""
        self._num_shards = num_shards
        self._position = first
        self._entries: list[bytes] = []
        self._num_per_class: Counter[str] = Counter()
        self._source_bytes = 0

    def add(self, members: list[Member], seed: int, excluded: frozenset[str]) -> None:
        """Deals the members of the next class; those excluded leave their places empty."""
        dealt = plan.deal_class(members, self._position, self._num_shards, seed)
        kept = [(shard, member) for shard, member in dealt if member.key not in excluded]
        self._entries += [plan.entry(shard, member, seed) for shard, member in kept]
        self._source_bytes += sum(member.size for _, member in kept)
        if kept:
            self._num_per_class[str(members[0].class_index)] += len(kept)
        self._position += len(members)

    def content(self, folder: Path, name: str) -> dict[str, Any]:
        """Writes the runs; returns what the receipt keeps."""
        return {
            "runs": [file.name for file in runs.write(folder, name, self._entries)],
            "num_per_class": self._num_per_class,
            "source_bytes": self._source_bytes,
        }


@dataclass(frozen=True)
class PlanWork:
    """Writes the plan files of a range of shards.

    Attributes:
      num_shards: by split.
      files: the runs, by split.
      folder: where plan files go.
    """

    num_shards: dict[str, int]
    files: dict[str, list[Path]]
    folder: Path

    def __call__(self, task: RangeTask) -> engine.Result:
        """Returns the numbers of the shards that have members."""
        entries = runs.read(self.files[task.split], task.start, task.stop)
        written = plan.write(self.folder, task.split, self.num_shards[task.split], entries)
        return engine.Result({"shards": written})


@dataclass(frozen=True)
class Dealer:
    """Deals with the workers of this machine.

    Attributes:
      selection: the images.
      store: below which the plan lies.
      workers: how many.
      quiet: show no progress.
    """

    selection: Selection
    store: LocalStore
    workers: engine.Workers
    quiet: bool

    def deal(
        self, lists: Lists, used: Mapping[str, Sequence[int]], lookup: BoxLookup | None
    ) -> tuple[list[SplitPlan], Counter[str]]:
        """Writes the plan files; returns the plans, and what `ChosenMembers.taken` counts.

        Args:
          lists: of all pieces of the source, each with the path of its list.
          used: chosen members by class index, by split of the source.
          lookup: finds boxes; None where none are wanted.

        Raises:
          SourceError: an image comes twice, or the validation labels are not ILSVRC2012's.
          UsageError: more shards than images, a shard or train is left without one, or keys to
            exclude that no image has, or two.
          IncompleteError: the disk is full.
        """
        members = {split: self._members(split, lists, used[split], lookup) for split in used}
        divisions = {split: self._division(members[split], used[split]) for split in used}
        receipts = self._run("deal", DealWork(members, divisions, self._folder), used)
        for each in members.values():
            _remove(each.mixed)
        self._check(receipts)
        plans = self._write(divisions, receipts)
        counts = (Counter(each["taken"]) for of_split in receipts.values() for each in of_split)
        return plans, sum(counts, Counter())

    def _members(
        self, split: str, lists: Lists, used: Sequence[int], lookup: BoxLookup | None
    ) -> ChosenMembers:
        """Returns the members of a split, after sorting the lists of several classes by class."""
        of_split = [(task, path) for task, path in lists if task.split == split]
        mixed = [path for task, path in of_split if task.class_index is None]
        work = SortWork(partial(entries_by_class, mixed), self._folder)
        # As if all of them were of one size, which most are.
        counts = {split: [sum(used) // len(mixed)] * len(mixed)} if mixed else {split: []}
        files = self._files(self._run("sort", work, counts)[split])
        if lookup is not None and split not in lookup.parts:
            lookup = None
        return ChosenMembers(self.selection, split, of_split, files, lookup)

    def _division(self, members: ChosenMembers, used: Sequence[int]) -> Division:
        selection, split = self.selection, members.split
        if split == schema.TRAIN and selection.holdout and held_out(selection, used):
            return divide(selection, split, used, *self._hold_out(members, used))
        return divide(selection, split, used)

    def _hold_out(
        self, members: ChosenMembers, used: Sequence[int]
    ) -> tuple[tuple[int, str], list[int]]:
        """Returns the largest rank of those that are held out, and how many each class has."""
        left, counts = self.selection.holdout, [0] * len(used)
        parts = -(-sum(used) // runs.RUN_ENTRIES)
        work = SortWork(partial(members.ranked, parts), self._folder)
        files = self._files(self._run("rank", work, {members.split: used})[members.split])
        by_rank = (part for number in range(parts) for part in runs.read(files, number, number + 1))
        held: list[Member] = []
        while left:
            _, entries = next(by_rank)
            held = plan.parse(plan.content(entries[:left]))
            left -= len(held)
            for member in held:
                counts[member.class_index] += 1
        _remove(files)
        return plan.rank(held[-1], self.selection.seed), counts

    def _check(self, receipts: Mapping[str, Sequence[dict[str, Any]]]) -> None:
        """Checks what the receipts of each split of the source say together."""
        where, excluded = self.selection.where, self.selection.excluded
        unknown = set(self.selection.excluded_keys)
        for of_split in receipts.values():
            class_of: dict[int, int] = {}
            for key, number, index in (each for r in of_split for each in r["labelled"]):
                if class_of.setdefault(number, index) != index:
                    raise SourceError(f"{where}: {key!r} comes twice, in two classes")
            labels.check_validation(self.selection.source.classes, class_of, where)
            if excluded:
                left_out = {key for receipt in of_split for key in receipt["left_out"]}
                excluded.refuse_ambiguous(left_out - unknown)
                unknown -= left_out
        if excluded:
            excluded.refuse_unknown(unknown, f"what is taken from {where}")

    def _write(
        self,
        divisions: Mapping[str, Division],
        receipts: Mapping[str, Sequence[dict[str, Any]]],
    ) -> list[SplitPlan]:
        """Writes the plan files of all splits that are made, and removes the runs."""
        dealt = {
            split: [receipt["splits"][split] for receipt in receipts[of]]
            for of, division in divisions.items()
            for split in division.counts
        }
        files = {split: self._files(of_split) for split, of_split in dealt.items()}
        num_shards: dict[str, int] = {}
        for division in divisions.values():
            num_shards |= division.num_shards
        sizes = {
            split: [sum(division.counts[split]) // num] * num
            for division in divisions.values()
            for split, num in division.num_shards.items()
        }
        found = self._run("plan", PlanWork(num_shards, files, self._folder), sizes)
        plans = []
        for split, of_split in dealt.items():
            _remove(files[split])
            num = num_shards[split]
            filled = {shard for receipt in found[split] for shard in receipt["shards"]}
            plan.refuse_empty(split, num, filled)
            names = [naming.shard_name(split, i, num) for i in range(num)]
            plans.append(
                SplitPlan(
                    split=split,
                    num_shards=num,
                    num_per_class=tuple(num_per_class(of_split, self._num_classes)),
                    source_bytes=sum(receipt["source_bytes"] for receipt in of_split),
                    digest=plan.digest(self._folder, names),
                )
            )
        return plans

    def _run(
        self,
        title: str,
        work: Callable[[RangeTask], engine.Result],
        counts: Mapping[str, Sequence[int]],
    ) -> dict[str, list[dict[str, Any]]]:
        """Runs `work` on ranges of equal size; returns what it found, by split.

        Args:
          title: for the progress.
          work: writes into the plan folder only, which this run has made.
          counts: by split: images of each list, class or shard.
        """
        tasks = [
            RangeTask(f"{title}-{split}-{start:08d}", split, start, stop)
            for split, of_split in counts.items()
            for start, stop in runs.ranges(of_split, self.workers.count)
        ]
        if sum(map(sum, counts.values())) < _WORTH_PROCESSES_IMAGES:
            found = [work(task).content for task in tasks]
        else:
            stage = engine.Stage(title, self.selection.index_digest, self.store, work)
            # The plan folder of an earlier run is gone, and so its receipts tell nothing.
            self.store.remove_tree(stage.folder)
            workers = engine.Workers(self.workers.count, engine.PROCESSES)
            found = engine.run(stage, tasks, workers, title=title, quiet=self.quiet)
            self.store.remove_tree(stage.folder)
        by_split: dict[str, list[dict[str, Any]]] = {split: [] for split in counts}
        for task, content in zip(tasks, found, strict=True):
            by_split[task.split].append(content)
        return by_split

    @property
    def _folder(self) -> Path:
        return self.store.path(PLAN_FOLDER)

    @property
    def _num_classes(self) -> int:
        return len(self.selection.source.classes.wnids)

    def _files(self, receipts: Iterable[dict[str, Any]]) -> list[Path]:
        return [self._folder / name for receipt in receipts for name in receipt["runs"]]


def _remove(files: Iterable[Path]) -> None:
    for file in files:
        file.unlink()
