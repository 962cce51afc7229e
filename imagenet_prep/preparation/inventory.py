"""From a source to plans, on this machine: lists the images, checks the counts, deals them out.

The steps are those of `planning`. A task takes them for the classes of a range, and sorts what goes
to each shard into runs on the disk. When all have, another kind of task takes a range of shards out
of all runs, and writes their plan files. So no process holds more than a run's members, or those of
one class or shard; and the plan does not depend on how classes and shards were cut into ranges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

from imagenet_prep import engine
from imagenet_prep.core import regular_file
from imagenet_prep.dataset import naming
from imagenet_prep.preparation.box_lists import read_boxes
from imagenet_prep.preparation.dealing import Facts, ShardKey
from imagenet_prep.preparation.planning import (
    Census,
    ClassKey,
    Counts,
    Inventory,
    Planning,
    lines_by_class,
)
from imagenet_prep.preparation.selection import Selection, index_stage
from imagenet_prep.preparation.space import check_plan
from imagenet_prep.preparation.tasks import PLAN_FOLDER, SHARED_PLANS, UNPACKED
from imagenet_prep.shards import plan, runs
from imagenet_prep.sources.source import IndexTask
from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.storage.os_errors import storage_errors
from imagenet_prep.storage.store import Store

# Fewer images than this are dealt out before processes have started.
_WORTH_PROCESSES_IMAGES = 300_000
# From so many tars or folders on, processes list them: threads would share one core.
_WORTH_PROCESSES_TASKS = 4000
# An entry of a run of lines, sorted by class, begins with the class index.
_INDEX_DIGITS = 8


def take_inventory(
    selection: Selection, out: Store, workers: engine.Workers, *, quiet: bool, unpack: bool = True
) -> Inventory:
    """Writes the plan files of all splits of the dataset `out`, on this machine.

    Images are unpacked if necessary, unless `unpack` is False.
    """
    store = out.local
    # It may hold files of an earlier run, which may have filled the disk, or links of a stranger.
    store.remove_tree(PLAN_FOLDER)
    stage = index_stage(selection, store, unpack=unpack)
    tasks = selection.index_tasks()
    listing = listing_workers(workers, len(tasks))
    receipts = engine.run(stage, tasks, listing, title="index", quiet=quiet)
    lookup = read_boxes(selection.annotations, store, listing, quiet=quiet)
    store.make_folder(PLAN_FOLDER)
    steps = _LocalPlan(selection, lookup, store, PLAN_FOLDER, workers, quiet)
    counts = steps.count(tasks, [receipt.content for receipt in receipts])
    # The list is the last of a task's files.
    files = [receipt.outputs[-1] for receipt in receipts]
    num_bytes = sum(file.num_bytes for file in files)
    if lookup is not None:
        num_bytes += lookup.num_bytes
    listed = sum(sum(receipt.content.num_per_class.values()) for receipt in receipts)
    check_plan(out, sum(map(sum, counts.used.values())), num_bytes / listed)
    lists = [store.root / file.name for file in files]
    return steps.make(list(zip(tasks, lists, strict=True)), counts)


def listing_workers(workers: engine.Workers, num_tasks: int) -> engine.Workers:
    """Returns who lists: reading headers waits for the disk, so threads do, and start at once."""
    many = num_tasks >= _WORTH_PROCESSES_TASKS and workers.kind != engine.THREADS
    return engine.Workers(workers.num, engine.PROCESSES if many else engine.THREADS)


def remove_unpacked(store: Store, keep: Selection | None = None) -> None:
    """Removes unpacked images, except those that the selection `keep` reads.

    If none is kept, it also removes plans from a bucket, where they cost money.
    """
    if keep is not None:
        for name in {*store.local.list_folder(UNPACKED)} - {keep.index_digest[:16]}:
            store.local.remove_tree(f"{UNPACKED}/{name}")
        return
    store.local.remove_tree(UNPACKED)
    for name in () if store.as_folder else store.list_folder(naming.WORK):
        if name.startswith(SHARED_PLANS):
            store.remove_tree(f"{naming.WORK}/{name}")


class _Range(NamedTuple):
    """A range of lists or classes of a split of the source, or of shards of one that is made."""

    name: str
    split: str
    start: int
    stop: int


@dataclass(frozen=True)
class _Found:
    """The result of a task; each kind of task fills some of the fields.

    Attributes:
      runs: names of the runs that it has written into the plan folder, by split.
      filled: the shards of its range that have members.
    """

    runs: dict[str, list[str]] = field(default_factory=dict)
    examples: int = 0
    facts: list[Facts] = field(default_factory=list)
    filled: list[ShardKey] = field(default_factory=list)


@dataclass(frozen=True)
class _Lists:
    """The lists of one split of the source: by class index, and the others sorted by class."""

    of_class: Mapping[int | None, Sequence[Path]]
    runs: Sequence[Path]

    def lines(self, start: int, stop: int) -> Iterator[tuple[int, bytes]]:
        """Yields the class index and the lines of each class of [start, stop) that has some."""
        sorted_entries = runs.read(self.runs, start, stop)
        index_of_entries, entries = next(sorted_entries, (stop, []))
        for index in range(start, stop):
            lists = self.of_class.get(index, ())
            lines = b"".join(regular_file.read(path, plan.MOST_BYTES) for path in lists)
            if index == index_of_entries:
                lines += b"".join(entry[_INDEX_DIGITS:] for entry in entries)
                index_of_entries, entries = next(sorted_entries, (stop, []))
            if lines:
                yield index, lines


@dataclass(frozen=True)
class _LocalPlan(Planning):
    """The steps of this machine's workers, with runs on its disk."""

    store: LocalStore
    workers: engine.Workers
    quiet: bool

    def make(self, listed: Sequence[tuple[IndexTask, Path]], counts: Counts) -> Inventory:
        """Writes the plan files, from all pieces of the source and the paths of their lists."""
        lists = self._lists(listed, counts)
        census = self.census(counts)
        deal = partial(self._deal_range, lists=lists, census=census)
        dealt = self._run("deal", deal, counts.used)
        for of_split in lists.values():
            _remove(of_split.runs)
        examples = {
            split: sum(numbers)
            for division in census.divisions.values()
            for split, numbers in division.counts.items()
        }
        # Shards differ by one image at most.
        sizes = {split: [examples[split] // n] * n for split, n in census.num_shards.items()}
        entries = {split: self._runs(dealt, split) for split in sizes}
        write = partial(self._write, entries=entries, census=census)
        written = self._run("plan", write, sizes)
        for of_made in entries.values():
            _remove(of_made)
        facts = [fact for each in dealt for fact in each.facts]
        filled = {shard for each in written for shard in each.filled}
        return self.complete(census, facts, filled)

    def _lists(self, listed: Sequence[tuple[IndexTask, Path]], counts: Counts) -> dict[str, _Lists]:
        """Returns the lists by split, after sorting those of several classes by class."""
        of_class: dict[str, dict[int | None, list[Path]]] = {split: {} for split in counts.used}
        for task, path in listed:
            of_class[task.split].setdefault(task.class_index, []).append(path)
        mixed = {split: lists.pop(None, []) for split, lists in of_class.items()}
        # As if all of them were of one size, which most are.
        sizes = {
            split: [sum(counts.used[split]) // len(paths)] * len(paths)
            for split, paths in mixed.items()
            if paths
        }
        found = self._run("sort", partial(self._sort, mixed=mixed), sizes)
        return {split: _Lists(of_class[split], self._runs(found, split)) for split in of_class}

    def _sort(self, task: _Range, *, mixed: Mapping[str, Sequence[Path]]) -> engine.Result[_Found]:
        """Sorts a range of lists of several classes by class."""

        def entries() -> Iterator[bytes]:
            for path in mixed[task.split][task.start : task.stop]:
                with open(regular_file.open_to_read(path), "rb") as file:
                    for key, lines in lines_by_class(task.split, file):
                        for line in lines.splitlines(keepends=True):
                            yield b"%08d%b" % (key.class_index, line)

        return engine.Result(_Found(self._written(task, {task.split: entries()})))

    def _deal_range(
        self, task: _Range, *, lists: Mapping[str, _Lists], census: Census
    ) -> engine.Result[_Found]:
        """Deals a range of classes; returns the facts of each, and the runs, by split made."""
        facts: list[Facts] = []
        entries: dict[str, list[bytes]] = {split: [] for split in census.num_shards}
        for index, lines in lists[task.split].lines(task.start, task.stop):
            fact, dealt = self.deal(ClassKey(task.split, index), lines, census)
            facts.append(fact)
            for split, new in dealt.items():
                entries[split] += new
        examples = sum(map(len, entries.values()))
        return engine.Result(_Found(self._written(task, entries), examples, facts))

    def _write(
        self, task: _Range, *, entries: Mapping[str, Sequence[Path]], census: Census
    ) -> engine.Result[_Found]:
        """Writes the plan files of a range of shards; returns those that have members."""
        of_shards = runs.read(entries[task.split], task.start, task.stop)
        filled = []
        for shard, name, data in plan.files(task.split, census.num_shards[task.split], of_shards):
            # It can be made again at any time, so it is not synced to the disk.
            with storage_errors("write", self._folder / name):
                (self._folder / name).write_bytes(data)
            filled.append(ShardKey(task.split, shard))
        return engine.Result(_Found(filled=filled))

    def _written(
        self, task: _Range, entries: Mapping[str, Iterable[bytes]]
    ) -> dict[str, list[str]]:
        """Sorts entries into runs, by split; returns the names of the runs."""
        return {
            split: [file.name for file in runs.write(self._folder, f"{task.name}-{split}", each)]
            for split, each in entries.items()
        }

    def _runs(self, written: Iterable[_Found], split: str) -> list[Path]:
        """Returns the runs of a split that the tasks have written."""
        names = (name for each in written for name in each.runs.get(split, ()))
        return [self._folder / name for name in names]

    def _run(
        self,
        title: str,
        work: Callable[[_Range], engine.Result[_Found]],
        counts: Mapping[str, Sequence[int]],
    ) -> list[_Found]:
        """Runs `work`, which only writes into the plan folder, on ranges of equally many images."""
        tasks = [
            _Range(f"{title}-{split}-{start:08d}", split, start, stop)
            for split, of_split in counts.items()
            for start, stop in runs.ranges(of_split, self.workers.count)
        ]
        if sum(map(sum, counts.values())) < _WORTH_PROCESSES_IMAGES:
            return [work(task).content for task in tasks]
        stage = engine.Stage(title, self.selection.index_digest, self.store, work, _Found)
        # The plan folder of an earlier run is gone, and so its receipts tell nothing.
        self.store.remove_tree(stage.folder)
        workers = engine.Workers(self.workers.count, engine.PROCESSES)
        found = engine.run(stage, tasks, workers, title=title, quiet=self.quiet)
        self.store.remove_tree(stage.folder)
        return [receipt.content for receipt in found]

    @property
    def _folder(self) -> Path:
        return self.store.path(self.folder)


def _remove(files: Iterable[Path]) -> None:
    for file in files:
        file.unlink()
