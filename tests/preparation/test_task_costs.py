"""The files that a task opens and syncs: each costs a round trip on a network file system."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from imagenet_prep.codec.transform import keep
from imagenet_prep.dataset import schema
from imagenet_prep.dataset.class_list import ClassList
from imagenet_prep.dataset.member import Member
from imagenet_prep.engine import Result, Stage
from imagenet_prep.engine.workers import run_worker
from imagenet_prep.preparation.tasks import IndexWork, ListedCounts, WriteWork
from imagenet_prep.shards.check import Expectation, Report, check_shard
from imagenet_prep.shards.writer import WrittenShard
from imagenet_prep.sources.source import IndexTask, RangeReader, StoredSource
from imagenet_prep.storage.folder import LocalStore
from tests.kit.opens import opens
from tests.kit.system import System
from tests.kit.tfrecords import plain

CLASSES = ClassList(("n00000001",), ("thing",))
MEMBER = Member("n00000001/1.JPEG", "a.tar", 0, len(plain(1)), 0)


class Task(NamedTuple):
    name: str


class Listed(StoredSource):
    """A source with one image per class, which opens nothing."""

    def index(self, task: IndexTask) -> list[Member]:
        return [MEMBER._replace(key=f"n00000001/{task.name}.JPEG")]

    @property
    def reader(self) -> RangeReader:
        raise NotImplementedError


class Cost(NamedTuple):
    """The opens and syncs of a worker per task, and the opens that collect its receipt."""

    opens: float
    syncs: float
    collecting: float


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "set")


@pytest.fixture
def cost(system: System) -> Callable[[Stage[Any, Any], Sequence[Any]], Cost]:
    """Returns a function that runs tasks, after a first one that opens the folders."""
    number = opens()
    synced: list[int] = []

    def sync(real: Callable[[int], None], descriptor: int) -> None:
        synced.append(descriptor)
        real(descriptor)

    system.instead("fsync", sync)

    def measure(stage: Stage[Any, Any], tasks: Sequence[Any]) -> Cost:
        stage.clear()
        first, *others = tasks
        run_worker(stage, [first], itertools.count().__next__)
        assert stage.receipt(first.name)
        opens_before = number()
        synced.clear()
        run_worker(stage, others, itertools.count().__next__)
        # At its end, each worker looks once more for a failure.
        opened = number() - opens_before
        num_synced = len(synced)
        opens_before = number()
        receipts = stage.receipts([task.name for task in others])
        # The folder of receipts is listed once.
        collected = number() - opens_before - 1
        assert len(receipts) == len(others)
        return Cost(opened / len(others), num_synced / len(others), collected / len(others))

    return measure


Measure = Callable[[Stage[Any, Any], Sequence[Any]], Cost]


def shard_names(count: int) -> list[str]:
    return [schema.shard_name("train", number, count) for number in range(count)]


def write(store: LocalStore, names: Iterable[str]) -> tuple[Stage[Task, WrittenShard], list[Task]]:
    """Returns a stage and its tasks, each of which writes a shard of one image."""
    work = WriteWork(store, keep, CLASSES, label_offset=1, fail_on_bad_image=True)

    def make(task: Task) -> Result[WrittenShard]:
        return work(task.name, [(MEMBER, plain(1))])

    return Stage("write", "0" * 64, store, make, WrittenShard), [*map(Task, names)]


def test_receipt_costs_two_opens_and_no_sync(store: LocalStore, cost: Measure) -> None:
    """One looks for failures of other workers, one writes the receipt."""

    def nothing(task: Task) -> Result[Report]:
        return Result(Report(task.name, 0))

    stage = Stage("verify", "0" * 64, store, nothing, Report)
    assert cost(stage, [*map(Task, shard_names(9))]) == Cost(opens=2, syncs=0, collecting=1)


def test_checked_shard_opens_only_its_files(
    store: LocalStore, tmp_path: Path, cost: Measure
) -> None:
    stage, tasks = write(store, shard_names(9))
    run_worker(stage, tasks, itertools.count().__next__)
    receipts = stage.receipts([task.name for task in tasks])
    expectation = Expectation(
        store=store,
        level=schema.LEVEL_CRC,
        wnids=CLASSES.wnids,
        label_offset=1,
        name_of_sha256={},
        most_bytes=1 << 20,
        prove_image=lambda *_: False,
    )

    def verify(task: Task) -> Result[Report]:
        report = check_shard(receipts[task.name].content.entry, expectation)
        assert not report.problems
        return Result(report)

    check = Stage("verify", "1" * 64, LocalStore(tmp_path / "scratch"), verify, Report)
    assert cost(check, tasks) == Cost(opens=2 + 3, syncs=0, collecting=1)


def test_listed_classes_open_two_lists_and_sync_nothing(store: LocalStore, cost: Measure) -> None:
    """Collecting compares the hashes of the lists. Any number of classes costs the same."""
    folder = f"{schema.WORK}/index-{'0' * 16}"
    source = Listed(CLASSES, ())
    work = IndexWork(source, store, folder, None, frozenset(), 0, ranked=False)
    tasks = [IndexTask(f"class-{number}", "train", "a.tar") for number in range(9)]
    stage = Stage("index", "0" * 64, store, work, ListedCounts)

    expected = Cost(opens=2 + 2, syncs=0, collecting=1 + 2)
    assert cost(stage, tasks) == expected
    combined = [
        IndexTask(f"{task.name} and more", "train", "a.tar", pieces=tuple(tasks)) for task in tasks
    ]
    assert cost(stage, combined) == expected


def test_written_shard_syncs_its_three_files_once(store: LocalStore, cost: Measure) -> None:
    """The names are synced at the commit; a lost receipt only means that the task is repeated."""
    stage, tasks = write(store, shard_names(9))
    assert cost(stage, tasks) == Cost(opens=2 + 3, syncs=3, collecting=1)
