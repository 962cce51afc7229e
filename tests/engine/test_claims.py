"""Claims of tasks, receipts and leases: in a folder, and in a store that is no folder."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import random
import socket
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import pytest

from imagenet_prep import engine
from imagenet_prep.core.errors import (
    BadImageError,
    IncompleteError,
    JobLostError,
    SourceError,
    StoreError,
    UsageError,
)
from imagenet_prep.engine import Lease
from imagenet_prep.engine import stage as lease_module
from imagenet_prep.engine.workers import done, run_worker
from imagenet_prep.storage.folder import TEMPORARY, LocalStore
from imagenet_prep.storage.remote import AbsentError, Check
from tests.kit.limits import Limits
from tests.kit.messages import says


class Elsewhere(LocalStore):
    """A store that is no folder, as a bucket; it only has operations on complete files."""

    @property
    def local(self) -> LocalStore:
        return LocalStore(self.root.parent / "here")

    @property
    def as_folder(self) -> None:  # type: ignore[override]
        return None

    def try_create(self, name: str, owner: str = "") -> bool:
        if self.size(name) is not None:
            return False
        self.write(name, owner.encode())
        return True


@dataclass(frozen=True)
class Made:
    """The content of a receipt."""

    task: str


class Task(NamedTuple):
    name: str


Stage = engine.Stage[Task, Made]


class Work:
    def __init__(self, store: LocalStore) -> None:
        self.store = store

    def __call__(self, task: Task) -> engine.Result[Made]:
        if task.name == "bad":
            raise SourceError("the archive is damaged")
        path = self.store.local.temporary()
        path.write_bytes(b"content")
        return engine.Result(Made(task.name), (engine.TaskOutput(path, f"{task.name}.bin"),))


@pytest.fixture(params=[LocalStore, Elsewhere])
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Stage:
    store = request.param(tmp_path / "set")
    return engine.Stage("write", "0" * 64, store, Work(store), Made)


TASKS = [Task("a"), Task("b"), Task("c")]


def first() -> Callable[[], int]:
    """Returns the counter of claims of a worker that is alone."""
    return itertools.count().__next__


def test_task_is_done_only_if_it_is_unclaimed(
    stage: Stage,
) -> None:
    stage.clear()
    take = itertools.count().__next__
    assert take() == 0  # a different worker has the first task
    run_worker(stage, TASKS, take)
    assert set(stage.receipts("abc")) == {"b", "c"}
    assert [name for name in stage.store.list_folder() if name.endswith("bin")] == [
        "b.bin",
        "c.bin",
    ]

    # The next run ignores this claim.
    stage.clear()
    run_worker(stage, [Task("a")], first())
    assert set(stage.receipts("abc")) == {"a", "b", "c"}


def test_each_task_is_done_once_on_a_cluster(stage: Stage) -> None:
    held = Lease.acquire(stage.store)
    one = held.claimed(stage, TASKS)
    assert next(one).name == "a"
    assert [each.task.name for each in done(stage, held.claimed(stage, TASKS))] == ["b", "c"]
    assert list(one) == []

    # A second job does the remaining tasks, and gets the results of the others.
    after = done(stage, Lease.acquire(stage.store).claimed(stage, TASKS))
    assert [(each.task.name, each.new) for each in after if not each.new] == [
        ("b", False),
        ("c", False),
    ]
    assert set(stage.receipts("abc")) == {"a", "b", "c"}


def test_retried_task_reports_its_failure_again(stage: Stage) -> None:
    """Spark retries tasks: a job that skipped the task the second time ended successfully."""
    held = Lease.acquire(stage.store)
    for _ in range(2):
        with (
            pytest.raises(SourceError, match="the archive is damaged"),
            contextlib.closing(held.claimed(stage, [Task("a"), Task("bad"), Task("c")])) as mine,
        ):
            list(done(stage, mine))
    # Tasks finished before the failure stay claimed.
    assert [task.name for task in held.claimed(stage, TASKS)] == ["b", "c"]


def test_two_workers_diverge_instead_of_listing_claims(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They took turns, and each listed all claims before each of its tasks."""
    monkeypatch.setattr(lease_module, "_chance", random.Random(0))
    looks = []

    class Watched(LocalStore):
        def names(self, folder: str) -> list[str]:
            looks.append(folder)
            return super().names(folder)

    store = Watched(tmp_path)
    tasks = [Task(f"{number:03d}") for number in range(300)]
    held = Lease.acquire(store)
    work = engine.Stage("write", "0" * 64, store, Work(store), Made)
    left = [held.claimed(work, tasks), held.claimed(work, tasks)]
    claimed = []
    while left:
        for worker in tuple(left):
            if (task := next(worker, None)) is None:
                left.remove(worker)
            else:
                claimed.append(task)
    assert sorted(claimed) == tasks, "a task was claimed twice, or never"
    assert {*claimed[:2]} == {*tasks[:2]}, (
        "the first tasks are the largest, but were not started first"
    )
    assert len(looks) < 30


def test_receipt_counts_only_with_its_complete_files(
    stage: Stage,
) -> None:
    stage.clear()
    run_worker(stage, TASKS, first())
    (stage.store.local.root.parent / "set" / "a.bin").unlink()
    (stage.store.local.root.parent / "set" / "b.bin").write_bytes(b"cont")
    assert set(stage.receipts("abc")) == {"c"}


def test_workers_take_no_tasks_after_a_failure(stage: Stage) -> None:
    stage.clear()
    run_worker(stage, [Task("a"), Task("bad"), Task("b"), Task("c")], first())
    # While one is uploaded, the next may be in work.
    assert "a" in stage.receipts("abc")
    assert "c" not in stage.receipts("abc")
    with pytest.raises(SourceError, match="^the archive is damaged$"):
        stage.raise_failure()


def test_failed_publication_is_a_failure_of_the_task(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise StoreError("the store refuses")

    stage.clear()
    written = type(stage.store).publish
    monkeypatch.setattr(
        type(stage.store),
        "publish",
        lambda self, path, name, *more, durable: (
            refuse() if name.endswith(".bin") else written(self, path, name, *more, durable=durable)
        ),
    )
    run_worker(stage, TASKS, first())
    with pytest.raises(StoreError, match="the store refuses"):
        stage.raise_failure()
    assert list(stage.store.local.path(TEMPORARY).iterdir()) == []


@dataclass(frozen=True)
class Failing:
    """Fails for tasks that have an error."""

    of: dict[str, Exception]

    def __call__(self, task: Task) -> engine.Result[Made]:
        if task.name in self.of:
            raise self.of[task.name]
        return engine.Result(Made(task.name))


@pytest.mark.parametrize("failed", ["a", "b"])
def test_failures_of_publishing_and_next_task_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failed: str
) -> None:
    """Only the second was reported: a failing disk looked like a damaged archive."""
    work = Failing({"c": SourceError("c is damaged")})
    stage = engine.Stage("write", "0" * 64, LocalStore(tmp_path), work, Made)
    publish = type(stage).publish

    def fail(stage: Stage, task: Task, made: object, check: Check) -> object:
        if task.name >= failed:
            raise StoreError(f"the disk failed at {task.name}.")
        return publish(stage, task, made, check)

    monkeypatch.setattr(type(stage), "publish", fail)
    second = "the disk failed at b" if failed == "a" else "c is damaged"
    with pytest.raises(StoreError, match=rf"^the disk failed at {failed}\. Then: {second}"):
        list(done(stage, TASKS))


def test_bug_is_reported_together_with_a_failing_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = engine.Stage(
        "write",
        "0" * 64,
        LocalStore(tmp_path),
        Failing({"b": KeyError("nobody foresaw this")}),
        Made,
    )
    stage.clear()

    def fail(*_: object) -> None:
        raise StoreError("the disk failed")

    monkeypatch.setattr(type(stage), "publish", fail)
    run_worker(stage, TASKS, first())

    with pytest.raises(RuntimeError, match=r"(?s)StoreError: the disk failed.*KeyError: 'nobody"):
        stage.raise_failure()


@pytest.mark.parametrize(
    ("code", "kind"), [(errno.EIO, StoreError), (errno.EDQUOT, IncompleteError)]
)
def test_system_error_of_a_task_is_no_bug(tmp_path: Path, code: int, kind: type[Exception]) -> None:
    refused = OSError(code, os.strerror(code), "/data/file")
    stage = engine.Stage("write", "0" * 64, LocalStore(tmp_path), Failing({"a": refused}), Made)
    stage.clear()
    run_worker(stage, TASKS, first())

    with pytest.raises(kind, match=f"^cannot use /data/file: {os.strerror(code)}"):
        stage.raise_failure()


def test_first_of_several_failures_is_raised(stage: Stage) -> None:
    stage.clear()
    for number in range(20):
        stage.note(SourceError(f"number {number}"))

    with pytest.raises(SourceError, match="^number 0$"):
        stage.raise_failure()


def test_failure_that_cannot_be_stored_is_raised(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.clear()

    def fail(*_: object, **__: object) -> None:
        raise StoreError("the disk fails")

    monkeypatch.setattr(LocalStore, "write", fail)
    run_worker(stage, [Task("bad")], first())
    with pytest.raises(SourceError, match="the archive is damaged"):
        stage.raise_failure()  # its record has a file that was created beforehand
    stage.store.local.remove_tree(f"{stage.folder}/failed")
    stage.store.local.make_folder(f"{stage.folder}/failed")
    with pytest.raises(SourceError, match="the archive is damaged"):
        run_worker(stage, [Task("bad")], first())


@pytest.mark.beam
def test_failed_claim_after_a_lost_lease_names_it(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error was a missing file, because the next run had removed the claims."""
    from imagenet_prep.engine.transform import reported

    old = Lease.acquire(stage.store)
    take = type(stage.store).try_create

    def late(store: LocalStore, name: str, owner: str) -> bool:
        Lease.acquire(stage.store)
        if store.as_folder is None:
            raise AbsentError("404")
        return take(store, name, owner)

    monkeypatch.setattr(type(stage.store), "try_create", late)
    with pytest.raises(JobLostError, match=says("newer-run-taken-over-run-2")), reported(old):
        list(old.claimed(stage, TASKS))


def test_workers_stop_after_their_job_is_replaced(stage: Stage, limits: Limits) -> None:
    old = Lease.acquire(stage.store)
    work = done(stage, old.claimed(stage, TASKS), old.check)
    next(work)
    new = Lease.acquire(stage.store)
    assert new.held
    with pytest.raises(JobLostError, match=says("newer-run-taken-over-run-2")):
        list(work)
    assert "c" not in stage.receipts("abc")

    limits(lease_s=0.0)
    with pytest.raises(
        UsageError, match=says("worker-cannot-see-launching-machine", ..., f"/jobs/{old.job}")
    ):
        old.arrive()


def test_replaced_worker_publishes_no_file(stage: Stage) -> None:
    """It had made its file under its lease, and the next run did not know of it."""
    old = Lease.acquire(stage.store)

    def made_after_a_new_run_starts(task: Task) -> engine.Result[Made]:
        made = stage.function(task)
        Lease.acquire(stage.store)
        return made

    late = replace(stage, function=made_after_a_new_run_starts)
    with pytest.raises(JobLostError, match=says("newer-run-taken-over-run-2")):
        list(done(late, old.claimed(late, TASKS), old.check))
    assert stage.receipts("abc") == {}
    assert not [name for name in stage.store.list_folder() if name.endswith("bin")]


def test_replaced_worker_publishes_no_further_file(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = Lease.acquire(stage.store)
    publish = stage.publish
    write = type(stage.store).write

    def taken_over(store: LocalStore, name: str, data: bytes, *, durable: bool = True) -> None:
        write(store, name, data, durable=durable)
        if name.endswith("/a.json"):
            Lease.acquire(store)

    monkeypatch.setattr(type(stage.store), "write", taken_over)
    with pytest.raises(JobLostError, match=says("newer-run-taken-over-run-2")):
        publish(TASKS[0], stage.make(TASKS[0]), old.check)
    assert not [name for name in stage.store.list_folder() if name.endswith("bin")]


def test_worker_recognises_the_loss_of_its_lease(
    stage: Stage,
) -> None:
    """It neither waits for the lease nor blames the folder, which it shares."""
    old = Lease.acquire(stage.store)
    old.arrive()
    Lease.acquire(stage.store)
    with pytest.raises(JobLostError, match=says("newer-run-taken-over-run-2")):
        old.arrive()


def test_local_run_ends_the_job_of_killed_runs(
    stage: Stage,
) -> None:
    old = Lease.acquire(stage.store)
    engine.run(stage, TASKS, engine.Workers(1, engine.THREADS), title="", quiet=True)
    assert not old.held


@pytest.mark.beam
def test_cluster_failure_names_the_host_only_in_folders(
    stage: Stage,
) -> None:
    from imagenet_prep.engine.transform import BugError, reported

    held = Lease.acquire(stage.store)
    with pytest.raises(StoreError) as caught, reported(held):
        raise AbsentError("there is none.") from BadImageError("empty", "zero bytes")
    assert type(caught.value) is StoreError, "the launcher does not know this class"
    assert "zero bytes" not in "".join(traceback.format_exception(caught.value))
    named = str(caught.value) == f"there is none. (on worker {socket.gethostname()})"
    assert named == (stage.store.as_folder is not None)
    with (
        pytest.raises(BugError, match=r"(?s)Traceback.*KeyError: 'nobody foresaw this'"),
        reported(held),
    ):
        raise KeyError("nobody foresaw this")
