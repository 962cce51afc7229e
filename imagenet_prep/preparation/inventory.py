"""From a source to plans, on this machine: lists the images, checks the counts, deals them out.

A task deals the classes of a range, and sorts what goes to each shard into runs on the disk. When
all have, another kind of task takes a range of shards out of all runs, and writes their plan
files. So no process holds more than a run's members, or those of one class or shard; and the plan
does not depend on how classes and shards were cut into ranges.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from imagenet_prep import engine
from imagenet_prep.core.errors import SourceError, UsageError
from imagenet_prep.dataset.member import parse_members
from imagenet_prep.preparation.box_lists import BoxLookup, read_boxes
from imagenet_prep.preparation.chosen_members import ChosenMembers, Lists, entries_by_class
from imagenet_prep.preparation.dealing import (
    Division,
    Facts,
    Rank,
    check_classes,
    deal_class,
    divide,
    split_plans,
)
from imagenet_prep.preparation.selection import Selection, index_stage
from imagenet_prep.preparation.space import check_plan
from imagenet_prep.preparation.tasks import PLAN_FOLDER, UNPACKED, member_list
from imagenet_prep.shards import plan, runs
from imagenet_prep.shards.commit import num_per_class
from imagenet_prep.shards.plan import SplitPlan
from imagenet_prep.sources import editions
from imagenet_prep.sources.source import IndexTask
from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.storage.os_errors import storage_errors
from imagenet_prep.storage.store import Store

# Fewer images than this are dealt out before processes have started.
_WORTH_PROCESSES_IMAGES = 300_000
# From so many tars or folders on, processes list them: threads would share one core.
_WORTH_PROCESSES_TASKS = 4000


class Inventory(NamedTuple):
    """What is to be written.

    Attributes:
      plans: of the splits; their files lie in the plan folder.
      taken: images by name of the part they come from; of annotations, images with boxes.
      edition: of ImageNet, which the source is; see `editions.recognised`.
      folder: where the plan files lie, relative to the data set.
      md5: of parts that were read whole while they were listed, by name.
    """

    plans: list[SplitPlan]
    taken: Counter[str]
    edition: str
    folder: str
    md5: dict[str, str]


def take_inventory(
    selection: Selection, out: Store, workers: engine.Workers, *, quiet: bool, unpack: bool = True
) -> Inventory:
    """Writes the plan files of all splits, and unpacks images if necessary, on this machine.

    Args:
      selection: which images are wanted.
      out: the data set.
      workers, quiet: as for `engine.run`.
      unpack: False to look only, so that nothing large is written.

    Raises:
      SourceError: the source is damaged, or incomplete although no subset was asked for.
      StoreError: the plan does not fit on the disk; nothing of it was written.
      UsageError: more shards than images, no image of the chosen classes, none left in train or
        in a shard, or keys to exclude that no image has, or two.
    """
    store = out.local
    # It may hold files of an earlier run, which may have filled the disk, or links of a stranger.
    store.remove_tree(PLAN_FOLDER)
    stage = index_stage(selection, store, unpack=unpack)
    tasks = selection.index_tasks()
    listing = _listing_workers(workers, len(tasks))
    receipts = engine.run(stage, tasks, listing, title="index", quiet=quiet)
    lookup = read_boxes(selection.annotations, store, listing, quiet=quiet)
    store.make_folder(PLAN_FOLDER)
    edition, used = check_counts(selection, tasks, receipts)
    # The list is the last of a task's files.
    num_bytes = sum(receipt["outputs"][-1]["num_bytes"] for receipt in receipts)
    if lookup is not None:
        num_bytes += lookup.num_bytes
    listed = sum(sum(receipt["num_per_class"].values()) for receipt in receipts)
    check_plan(out, sum(map(sum, used.values())), num_bytes / listed)
    lists = [(task, store.path(member_list(stage.folder, task))) for task in tasks]
    plans, taken = _Dealer(selection, store, workers, quiet).deal(lists, used, lookup)
    md5 = md5_of_archives(selection, tasks, receipts)
    return Inventory(plans, taken, edition, PLAN_FOLDER, md5)


def _listing_workers(workers: engine.Workers, num_tasks: int) -> engine.Workers:
    """Returns who lists: reading headers waits for the disk, so threads do, and start at once."""
    many = num_tasks >= _WORTH_PROCESSES_TASKS and workers.kind != engine.THREADS
    return engine.Workers(workers.num, engine.PROCESSES if many else engine.THREADS)


def remove_unpacked(store: LocalStore, keep: Selection | None = None) -> None:
    """Removes unpacked images, except those that the selection `keep` reads."""
    kept = keep.index_digest[:16] if keep else ""
    for folder in store.path(UNPACKED).glob("*"):
        if folder.name != kept:
            store.remove_tree(f"{UNPACKED}/{folder.name}")
    if keep is None:
        store.remove_tree(UNPACKED)


def md5_of_archives(
    selection: Selection, tasks: Sequence[IndexTask], receipts: Sequence[dict[str, Any]]
) -> dict[str, str]:
    """Returns the md5 of archives that are one task each, and were read whole for it."""
    files = {part.name for part in selection.source.parts if part.path is not None}
    found = {task.part: r.get("md5") for task, r in zip(tasks, receipts, strict=True)}
    return {name: md5 for name, md5 in found.items() if name in files and isinstance(md5, str)}


def check_counts(
    selection: Selection, tasks: Sequence[IndexTask], receipts: Sequence[dict[str, Any]]
) -> tuple[str, dict[str, list[int]]]:
    """Checks how many members there are; returns the edition, and by split how many are used.

    These are by class index, for all classes.
    """
    classes = selection.source.classes
    counts = {
        split: num_per_class(
            [r for t, r in zip(tasks, receipts, strict=True) if t.split == split],
            len(classes.wnids),
        )
        for split in selection.splits
    }
    edition = editions.recognised(
        classes,
        {split: sum(numbers) for split, numbers in counts.items()},
        [part.name for part in selection.source.parts],
    )
    limit = selection.per_class
    used = {}
    for split, numbers in counts.items():
        problems = [] if edition else selection.source.count_problems(split, numbers)
        if problems and not selection.any_counts:
            raise SourceError(
                f"{selection.where}: not whole: {'; '.join(problems)}. "
                "Get the missing part, or pass --allow-subset if this is what you want."
            )
        used[split] = [
            min(count, limit or count) if index in selection.classes else 0
            for index, count in enumerate(numbers)
        ]
        if not any(used[split]):
            raise UsageError(f"{split}: no image of the chosen classes")
    return edition, used


class _RangeTask(NamedTuple):
    """A range of lists or classes of a split of the source, or of shards of one that is made."""

    name: str
    split: str
    start: int
    stop: int


def _sort(
    task: _RangeTask, *, entries: Callable[[int, int], Iterable[bytes]], folder: Path
) -> engine.Result:
    """Sorts the entries of a range into runs; returns the names of the runs."""
    files = runs.write(folder, task.name, entries(task.start, task.stop))
    return engine.Result({"runs": [file.name for file in files]})


def _deal(
    task: _RangeTask,
    *,
    members: Mapping[str, ChosenMembers],
    divisions: Mapping[str, Division],
    folder: Path,
) -> engine.Result:
    """Deals a range of classes; returns the facts of each, and the runs, by split that is made."""
    listed, division = members[task.split], divisions[task.split]
    facts: list[Facts] = []
    entries: dict[str, list[bytes]] = {split: [] for split in division.counts}
    for of_class in listed.of_classes(task.start, task.stop):
        fact, dealt = deal_class(listed, of_class, division)
        facts.append(fact)
        for split, new in dealt.items():
            entries[split] += new
    found = {
        split: [file.name for file in runs.write(folder, f"{task.name}-{split}", each)]
        for split, each in entries.items()
    }
    examples = sum(map(len, entries.values()))
    return engine.Result({"examples": examples, "facts": facts, "runs": found})


def _plan(
    task: _RangeTask,
    *,
    num_shards: Mapping[str, int],
    files: Mapping[str, list[Path]],
    folder: Path,
) -> engine.Result:
    """Writes the plan files of a range of shards; returns those that have members."""
    entries = runs.read(files[task.split], task.start, task.stop)
    filled = []
    for shard, name, data in plan.files(task.split, num_shards[task.split], entries):
        # It can be made again at any time, so it is not synced to the disk.
        with storage_errors("write", folder / name):
            (folder / name).write_bytes(data)
        filled.append((task.split, shard))
    return engine.Result({"filled": filled})


@dataclass(frozen=True)
class _Dealer:
    """Deals with the workers of this machine; `store` is where the plan folder lies."""

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
        """
        members = {split: self._members(split, lists, used[split], lookup) for split in used}
        divisions = {
            split: divide(
                self.selection, split, used[split], partial(self._held_out, each, used[split])
            )
            for split, each in members.items()
        }
        work = partial(_deal, members=members, divisions=divisions, folder=self._folder)
        receipts = self._run("deal", work, used)
        for each in members.values():
            _remove(each.mixed)
        facts = [Facts(*fact) for receipt in receipts for fact in receipt["facts"]]
        taken = check_classes(self.selection, facts)
        filled = self._write(divisions, receipts)
        return split_plans(divisions, facts, filled, self.store, PLAN_FOLDER), taken

    def _members(
        self, split: str, lists: Lists, used: Sequence[int], lookup: BoxLookup | None
    ) -> ChosenMembers:
        """Returns the members of a split, after sorting the lists of several classes by class."""
        of_split = [(task, path) for task, path in lists if task.split == split]
        mixed = [path for task, path in of_split if task.class_index is None]
        # As if all of them were of one size, which most are.
        counts = [sum(used) // len(mixed)] * len(mixed) if mixed else []
        files = self._sorted("sort", split, partial(entries_by_class, mixed), counts)
        return ChosenMembers(self.selection, split, of_split, files, lookup)

    def _held_out(self, members: ChosenMembers, used: Sequence[int]) -> Iterator[Rank]:
        """Yields those that are held out, by rank."""
        left, seed = self.selection.holdout, self.selection.seed
        parts = -(-sum(used) // runs.RUN_ENTRIES)
        files = self._sorted("rank", members.split, partial(members.ranked, parts), used)
        by_rank = (part for number in range(parts) for part in runs.read(files, number, number + 1))
        while left:
            _, entries = next(by_rank)
            held = parse_members(plan.content(entries[:left]))
            left -= len(held)
            yield from ((*plan.rank(member, seed), member.class_index) for member in held)
        _remove(files)

    def _sorted(
        self,
        title: str,
        split: str,
        entries: Callable[[int, int], Iterable[bytes]],
        counts: Sequence[int],
    ) -> list[Path]:
        """Sorts entries into runs; arguments as for `_run`."""
        work = partial(_sort, entries=entries, folder=self._folder)
        found = self._run(title, work, {split: counts})
        return [self._folder / name for receipt in found for name in receipt["runs"]]

    def _write(
        self, divisions: Mapping[str, Division], receipts: Sequence[dict[str, Any]]
    ) -> set[tuple[str, int]]:
        """Writes the plan files of all splits that are made; returns split and number of each."""
        files: dict[str, list[Path]] = {}
        num_shards: dict[str, int] = {}
        sizes: dict[str, list[int]] = {}
        for division in divisions.values():
            for split, num in division.num_shards.items():
                names = (name for receipt in receipts for name in receipt["runs"].get(split, ()))
                files[split] = [self._folder / name for name in names]
                num_shards[split] = num
                sizes[split] = [sum(division.counts[split]) // num] * num
        work = partial(_plan, num_shards=num_shards, files=files, folder=self._folder)
        found = self._run("plan", work, sizes)
        for of_split in files.values():
            _remove(of_split)
        return {(split, shard) for receipt in found for split, shard in receipt["filled"]}

    def _run(
        self,
        title: str,
        work: Callable[[_RangeTask], engine.Result],
        counts: Mapping[str, Sequence[int]],
    ) -> list[dict[str, Any]]:
        """Runs `work` on ranges of equal size; returns what it found.

        Args:
          title: for the progress.
          work: writes into the plan folder only, which this run has made.
          counts: by split: images of each list, class or shard.
        """
        tasks = [
            _RangeTask(f"{title}-{split}-{start:08d}", split, start, stop)
            for split, of_split in counts.items()
            for start, stop in runs.ranges(of_split, self.workers.count)
        ]
        if sum(map(sum, counts.values())) < _WORTH_PROCESSES_IMAGES:
            return [work(task).content for task in tasks]
        stage = engine.Stage(title, self.selection.index_digest, self.store, work)
        # The plan folder of an earlier run is gone, and so its receipts tell nothing.
        self.store.remove_tree(stage.folder)
        workers = engine.Workers(self.workers.count, engine.PROCESSES)
        found = engine.run(stage, tasks, workers, title=title, quiet=self.quiet)
        self.store.remove_tree(stage.folder)
        return found

    @property
    def _folder(self) -> Path:
        return self.store.path(PLAN_FOLDER)


def _remove(files: Iterable[Path]) -> None:
    for file in files:
        file.unlink()
