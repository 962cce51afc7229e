"""Attempts after a lost job, and collection of receipts; without processes and Beam."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from imagenet_prep import engine
from imagenet_prep.core.errors import (
    BusyError,
    DataDamagedError,
    IncompleteError,
    JobLostError,
    SourceError,
)
from imagenet_prep.engine import Lease, attempts, cluster
from imagenet_prep.engine.workers import Started
from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.storage.remote import AbsentError
from tests.kit.command import PATIENCE_S
from tests.kit.limits import Limits
from tests.kit.messages import says


@dataclass(frozen=True)
class Made:
    """The content of a receipt."""

    task: str


class Task(NamedTuple):
    name: str


Stage = engine.Stage[Task, Made]


def work(task: Task) -> engine.Result[Made]:
    return engine.Result(Made(task.name))


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return engine.Stage("write", "0" * 64, LocalStore(tmp_path / "set"), work, Made)


class Fake(Started):
    """Workers that are replaced by actions of the test, one at each wait."""

    def __init__(self, acts: list[Callable[[], None]]) -> None:
        self._acts: Iterator[Callable[[], None]] = iter(acts)

    def wait(self, seconds: float) -> bool:  # noqa: ARG002
        act = next(self._acts, None)
        if act is not None:
            act()
        return act is not None


def test_receipts_are_collected_during_and_after_the_work(
    stage: Stage,
) -> None:
    seen: list[int] = []

    def collect() -> None:
        seen.append(len(stage.receipts(["a", "b"])))

    started = Fake(
        [
            lambda: stage.publish(Task("a"), stage.make(Task("a"))),
            lambda: stage.publish(Task("b"), stage.make(Task("b"))),
        ]
    )
    attempts.follow(started, collect, 0.0)
    assert seen == [1, 2, 2]


def test_receipts_have_the_order_of_the_tasks(tmp_path: Path) -> None:
    later_is_done = threading.Event()

    def wait(task: Task) -> engine.Result[Made]:
        if task.name == "b":
            return work(task)
        assert later_is_done.wait(PATIENCE_S)
        return work(task)

    def watch(receipt: engine.TaskReceipt[Made]) -> None:
        if receipt.content.task == "b":
            later_is_done.set()

    stage = engine.Stage("write", "0" * 64, LocalStore(tmp_path / "set"), wait, Made)
    tasks = [Task("a"), Task("b")]
    workers = engine.Workers(2, engine.THREADS)
    made = engine.run(stage, tasks, workers, title="", watch=watch, quiet=True)

    assert [receipt.content.task for receipt in made] == ["a", "b"]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), DataDamagedError("the limit")])
def test_workers_are_stopped_when_the_run_ends(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def fail(*_: object) -> bool:
        raise error

    monkeypatch.setattr(attempts.Threads, "wait", fail)
    with pytest.raises(type(error)):
        engine.run(stage, [Task("a")], engine.Workers(1, engine.THREADS), title="", quiet=True)
    assert stage.stopped


# The number of tasks that a job finishes, and the error that ends it.
Job = tuple[int, Exception | None]
LOST = JobLostError("Flink: a TaskManager is gone")


@pytest.fixture
def on_a_cluster(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, limits: Limits
) -> Callable[..., list[dict[str, Any]]]:
    """Runs tasks a, b and c; each job finishes this number of the remaining ones."""
    limits(attempt_pause_s=0.0)

    def run(*made: Job) -> list[engine.TaskReceipt[Made]]:
        left = iter(made)

        def submit(args: object, build: object, *, name: str, log: Path) -> Fake:
            (job,) = stage.store.local.path(".work/jobs").iterdir()
            assert name == f"imagenet-prep-write-{job.name}"
            assert log.name == "runner.log"

            def act() -> None:
                number, error = next(left)
                for task in [n for n in "abc" if n not in stage.receipts("abc")][:number]:
                    stage.publish(Task(task), stage.make(Task(task)))
                if error is not None:
                    raise error

            return Fake([act])

        monkeypatch.setattr(cluster, "submit", submit)
        workers = engine.Workers(beam_args=("--runner=Fake",))
        try:
            receipts = engine.run(stage, [Task(n) for n in "abc"], workers, title="", quiet=True)
        finally:
            assert next(left, None) is None
            assert not stage.store.local.path(".work/jobs").exists()
        return receipts

    return run


@pytest.mark.beam
@pytest.mark.parametrize(
    "jobs",
    [
        [(3, None)],
        [(2, None), (1, None)],
        [(1, LOST), (0, LOST), (1, None), (0, None), (1, None)],
        [(0, LOST), (0, LOST), (3, None)],
        # Tasks finished by a lost job count.
        [(3, LOST), (0, None)],
    ],
)
def test_lost_jobs_are_retried_while_they_make_progress(
    on_a_cluster: Callable[..., list[dict[str, Any]]], jobs: list[Job]
) -> None:
    assert [receipt.content.task for receipt in on_a_cluster(*jobs)] == ["a", "b", "c"]


@pytest.mark.beam
@pytest.mark.parametrize("first", [(1, None), (0, LOST)])
def test_three_jobs_without_progress_end_the_run(
    on_a_cluster: Callable[..., list[dict[str, Any]]], stage: Stage, first: Job
) -> None:
    jobs = [first, *[(0, JobLostError("Flink: no slots"))] * (3 if first[0] else 2)]
    with pytest.raises(
        IncompleteError, match=says("workers-lost-times-row-finished", ..., "3", "no slots")
    ):
        on_a_cluster(*jobs)
    done = len(stage.receipts("abc"))
    assert done == first[0]

    assert len(on_a_cluster((3 - done, None))) == 3
    assert len(on_a_cluster()) == 3


@pytest.mark.beam
@pytest.mark.parametrize(
    "error", [LOST, AbsentError("a receipt is gone: 404"), SourceError("the archive is damaged")]
)
def test_run_replaced_by_newer_run_does_not_interfere(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Two launchers of one bucket took the lease from each other until all was done."""
    others: list[Lease] = []

    def act() -> None:
        others.append(Lease.acquire(stage.store))
        raise error

    monkeypatch.setattr(cluster, "submit", lambda *_, **__: Fake([act]))
    workers = engine.Workers(beam_args=("--runner=Fake",))
    with pytest.raises(SourceError if isinstance(error, SourceError) else BusyError):
        engine.run(stage, [Task("a")], workers, title="", quiet=True)
    assert [other.held for other in others] == [True]


@pytest.mark.beam
def test_failure_ends_the_run(on_a_cluster: Callable[..., list[dict[str, Any]]]) -> None:
    with pytest.raises(SourceError, match="^the archive is damaged$"):
        on_a_cluster((1, SourceError("the archive is damaged")))


def test_limit_ends_the_run_and_keeps_finished_tasks(stage: Stage) -> None:
    def limit(receipt: engine.TaskReceipt[Made]) -> None:
        if receipt.content.task == "b":
            raise DataDamagedError("too many bad images")

    workers = engine.Workers(1, engine.THREADS)
    for _ in range(2):  # the receipt that exceeds the limit is read again
        with pytest.raises(DataDamagedError, match="too many bad images"):
            tasks = [Task("a"), Task("b")]
            engine.run(stage, tasks, workers, title="", watch=limit, quiet=True)
    assert set(stage.receipts("ab")) == {"a", "b"}


def test_two_tasks_with_one_name_are_a_bug(stage: Stage) -> None:
    tasks = [Task("a"), Task("b"), Task("a")]
    with pytest.raises(RuntimeError, match=says("two-tasks-stage-same-name", "write")):
        engine.run(stage, tasks, engine.Workers(1), quiet=True)
    assert not stage.receipts(["a", "b"])


@pytest.mark.parametrize("finished", [0, 1, 2])
def test_two_tasks_writing_one_file_are_a_bug(tmp_path: Path, finished: int) -> None:
    """The second would replace the result of the first, in this run or in two runs."""
    store = LocalStore(tmp_path / "set")

    def same(task: Task) -> engine.Result[Made]:
        temporary = store.temporary()
        temporary.write_bytes(b"of equal size")
        return engine.Result(Made(task.name), (engine.TaskOutput(temporary, "lists/same"),))

    stage = engine.Stage("write", "0" * 64, store, same, Made)
    tasks = [Task("a"), Task("b")]
    for task in tasks[:finished]:
        stage.publish(task, stage.make(task))
    with pytest.raises(
        RuntimeError, match=says("written-file-another-task", ..., "['lists/same']")
    ):
        engine.run(stage, tasks, engine.Workers(1), quiet=True)
