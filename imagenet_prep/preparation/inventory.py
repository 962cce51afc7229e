"""Plans a dataset on this machine: lists the images, checks the counts, assigns images to shards.

The steps are those of `planning`. Each task assigns the images of a range of classes, and writes
their plan entries to disk in sorted runs. Then tasks for ranges of shards merge the runs into plan
files. A process therefore has only the members of one run, class or shard in memory, and the plan
does not depend on the ranges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from imagenet_prep import engine
from imagenet_prep.core import regular_file
from imagenet_prep.dataset import naming
from imagenet_prep.preparation.box_lists import read_boxes
from imagenet_prep.preparation.dealing import Facts, ShardKey
from imagenet_prep.preparation.planning import Census, ClassKey, Inventory, Planning, lines_by_class
from imagenet_prep.preparation.selection import Selection, index_stage
from imagenet_prep.preparation.space import check_plan
from imagenet_prep.preparation.tasks import PLAN_FOLDER, SHARED_PLANS, UNPACKED
from imagenet_prep.shards import plan, runs
from imagenet_prep.sources.source import IndexTask
from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.storage.local_file import storage_errors
from imagenet_prep.storage.store import Store

# With fewer images, planning ends before worker processes would have started.
_WORTH_PROCESSES_IMAGES = 300_000
# From this number of tars or folders, processes list them: threads would share one core.
_WORTH_PROCESSES_TASKS = 4000
# Number of digits of the class index at the start of each sorted entry.
_INDEX_DIGITS = 8


def take_inventory(
    selection: Selection, out: Store, workers: engine.Workers, *, quiet: bool, unpack: bool = True
) -> Inventory:
    """Writes the plan files of dataset `out`; if `unpack`, also unpacks packed images to disk."""
    store = out.local
    # Remove files of an earlier run, which may have filled the disk, and untrusted links.
    store.remove_tree(PLAN_FOLDER)
    # Excluded images are also recognised by their bytes.
    unpack = unpack or bool(selection.exclusions and selection.exclusions.listed.files)
    stage = index_stage(selection, store, unpack=unpack)
    tasks = selection.index_tasks()
    listing = listing_workers(workers, len(tasks))
    receipts = engine.run(stage, tasks, listing, quiet=quiet)
    lookup = read_boxes(selection.annotations, store, listing, quiet=quiet)
    store.make_folder(PLAN_FOLDER)
    steps = _LocalPlan(selection, lookup, store, PLAN_FOLDER, workers, quiet)
    census = steps.count(tasks, [receipt.content for receipt in receipts])
    # The list is the last output of each task.
    files = [receipt.outputs[-1] for receipt in receipts]
    num_bytes = sum(file.num_bytes for file in files) + (lookup.num_bytes if lookup else 0)
    listed = sum(sum(receipt.content.num_per_class.values()) for receipt in receipts)
    check_plan(out, sum(map(sum, census.used.values())), num_bytes / listed)
    lists = [store.root / file.name for file in files]
    return steps.make(list(zip(tasks, lists, strict=True)), census)


def listing_workers(workers: engine.Workers, num_tasks: int) -> engine.Workers:
    """Returns threads for few tasks, since listing is I/O-bound, or processes for many tasks."""
    many = num_tasks >= _WORTH_PROCESSES_TASKS and workers.kind != engine.THREADS
    return engine.Workers(workers.num, engine.PROCESSES if many else engine.THREADS)


def remove_unpacked(store: Store, keep: Selection | None = None) -> None:
    """Removes unpacked images except `keep`'s. If `keep` is None, also removes shared plans."""
    if keep is not None:
        for name in {*store.local.list_folder(UNPACKED)} - {keep.index_digest[:16]}:
            store.local.remove_tree(f"{UNPACKED}/{name}")
        return
    store.local.remove_tree(UNPACKED)
    for name in () if store.as_folder else store.list_folder(naming.WORK):
        if name.startswith(SHARED_PLANS):
            store.remove_tree(f"{naming.WORK}/{name}")


class _Range(NamedTuple):
    """A range of lists or classes of a source split, or of shards of an output split."""

    name: str
    split: str
    start: int
    stop: int


@dataclass(frozen=True)
class _Result:
    """A task's result: the names of its runs by split, facts, and the shards that have members."""

    runs: dict[str, list[str]] = field(default_factory=dict)
    examples: int = 0
    facts: list[Facts] = field(default_factory=list)
    filled: list[ShardKey] = field(default_factory=list)


@dataclass(frozen=True)
class _Lists:
    """The image lists of a source split: lists of single classes, and runs sorted by class."""

    of_class: Mapping[int | None, Sequence[Path]]
    runs: Sequence[Path]

    def lines(self, start: int, stop: int) -> Iterator[tuple[int, bytes]]:
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
    store: LocalStore
    workers: engine.Workers
    quiet: bool

    def make(self, listed: Sequence[tuple[IndexTask, Path]], census: Census) -> Inventory:
        lists = self._lists(listed, census.used)
        deal = partial(self._deal_range, lists=lists, census=census)
        dealt = self._run("deal", deal, census.used)
        for path in chain.from_iterable(of_split.runs for of_split in lists.values()):
            path.unlink()
        examples = {
            split: sum(numbers)
            for division in census.divisions.values()
            for split, numbers in division.counts.items()
        }
        # Shard sizes differ by at most one image.
        sizes = {split: [examples[split] // n] * n for split, n in census.num_shards.items()}
        entries = {split: self._runs(dealt, split) for split in sizes}
        write = partial(self._write, entries=entries, census=census)
        written = self._run("plan", write, sizes)
        for path in chain.from_iterable(entries.values()):
            path.unlink()
        facts = [fact for result in dealt for fact in result.facts]
        filled = {shard for result in written for shard in result.filled}
        return self.complete(census, facts, filled)

    def _lists(
        self, listed: Sequence[tuple[IndexTask, Path]], used: Mapping[str, Sequence[int]]
    ) -> dict[str, _Lists]:
        """Returns the image lists by split; sorts a list by class if it has several classes."""
        of_class: dict[str, dict[int | None, list[Path]]] = {split: {} for split in used}
        for task, path in listed:
            of_class[task.split].setdefault(task.class_index, []).append(path)
        mixed = {split: lists.pop(None, []) for split, lists in of_class.items()}
        # Assume equal sizes; most lists have the same size.
        sizes = {
            split: [sum(used[split]) // len(paths)] * len(paths)
            for split, paths in mixed.items()
            if paths
        }
        results = self._run("sort", partial(self._sort, mixed=mixed), sizes)
        return {split: _Lists(of_class[split], self._runs(results, split)) for split in of_class}

    def _sort(self, task: _Range, *, mixed: Mapping[str, Sequence[Path]]) -> engine.Result[_Result]:
        def entries() -> Iterator[bytes]:
            for path in mixed[task.split][task.start : task.stop]:
                with open(regular_file.open_to_read(path), "rb") as file:
                    for key, lines in lines_by_class(task.split, file):
                        for line in lines.splitlines(keepends=True):
                            yield b"%08d%b" % (key.class_index, line)

        return engine.Result(_Result(self._written(task, {task.split: entries()})))

    def _deal_range(
        self, task: _Range, *, lists: Mapping[str, _Lists], census: Census
    ) -> engine.Result[_Result]:
        facts: list[Facts] = []
        entries: dict[str, list[bytes]] = {split: [] for split in census.num_shards}
        for index, lines in lists[task.split].lines(task.start, task.stop):
            fact, dealt = self.deal(ClassKey(task.split, index), lines, census)
            facts.append(fact)
            for split, new in dealt.items():
                entries[split] += new
        examples = sum(map(len, entries.values()))
        return engine.Result(_Result(self._written(task, entries), examples, facts))

    def _write(
        self, task: _Range, *, entries: Mapping[str, Sequence[Path]], census: Census
    ) -> engine.Result[_Result]:
        of_shards = runs.read(entries[task.split], task.start, task.stop)
        filled = []
        for shard, name, data in plan.files(task.split, census.num_shards[task.split], of_shards):
            # The file is not synced to disk, since it can be made again at any time.
            with storage_errors("write", self._folder / name):
                (self._folder / name).write_bytes(data)
            filled.append(ShardKey(task.split, shard))
        return engine.Result(_Result(filled=filled))

    def _written(
        self, task: _Range, entries: Mapping[str, Iterable[bytes]]
    ) -> dict[str, list[str]]:
        return {
            split: [path.name for path in runs.write(self._folder, f"{task.name}-{split}", of)]
            for split, of in entries.items()
        }

    def _runs(self, results: Iterable[_Result], split: str) -> list[Path]:
        names = (name for result in results for name in result.runs.get(split, ()))
        return [self._folder / name for name in names]

    def _run(
        self,
        title: str,
        work: Callable[[_Range], engine.Result[_Result]],
        counts: Mapping[str, Sequence[int]],
    ) -> list[_Result]:
        """Runs `work`, which writes only to the plan folder, on ranges of about equal size."""
        tasks = [
            _Range(f"{title}-{split}-{start:08d}", split, start, stop)
            for split, of_split in counts.items()
            for start, stop in runs.ranges(of_split, self.workers.count)
        ]
        if sum(map(sum, counts.values())) < _WORTH_PROCESSES_IMAGES:
            return [work(task).content for task in tasks]
        stage = engine.Stage(title, self.selection.index_digest, self.store, work, _Result)
        # The plan folder of an earlier run was removed, so its receipts are invalid.
        self.store.remove_tree(stage.folder)
        workers = engine.Workers(self.workers.count, engine.PROCESSES)
        receipts = engine.run(stage, tasks, workers, quiet=self.quiet)
        self.store.remove_tree(stage.folder)
        return [receipt.content for receipt in receipts]

    @property
    def _folder(self) -> Path:
        return self.store.path(self.folder)
