"""Runs that several processes share: heartbeats, claims of lost processes, steps done once."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest

from imagenet_prep import engine
from imagenet_prep.core.errors import IncompleteError, JobLostError, SourceError, UsageError
from imagenet_prep.engine import SharedRun, shared_run
from imagenet_prep.engine.shared_run import SharedLease
from imagenet_prep.engine.stage import JOBS, Lease, end_jobs
from imagenet_prep.storage.folder import LocalStore
from tests.kit.clock import Clock
from tests.kit.limits import Limits
from tests.kit.messages import says

AT_ONCE = -1.0
NEVER = 1e6
SETTINGS = {"quality": 90, "source": "a"}
_numbers = itertools.count()


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "set")


@pytest.fixture(autouse=True)
def _never_lost(limits: Limits) -> None:
    limits(lost_after_s=NEVER)


def process(store: LocalStore, name: str) -> SharedRun:
    """Returns a process of a run, without a thread for its heartbeat."""
    lease = SharedLease(store, "0" * 16, name * 12)
    lease.join()
    own = store.root.parent / f"own-{next(_numbers)}"
    return SharedRun(lease, LocalStore(own))


def claim(run: SharedRun, task: str) -> Path:
    """Claims a task of the stage `write`; returns the file."""
    claims = run.lease.claims("write")
    assert run.lease.store.local.make_folder(claims) is None
    assert run.lease.store.try_create(f"{claims}/{task}", run.lease.owner)
    return run.lease.store.local.path(f"{claims}/{task}")


def test_only_claims_of_lost_processes_are_free(store: LocalStore, limits: Limits) -> None:
    one, two = process(store, "1"), process(store, "2")
    file = claim(one, "a")
    assert two.unclaimed("write", ["a", "b"]) == {"b"}
    limits(lost_after_s=AT_ONCE)
    assert two.unclaimed("write", ["a", "b"]) == {"a", "b"}
    assert not file.exists()


def test_changed_heartbeat_keeps_its_claims(store: LocalStore, limits: Limits) -> None:
    one, two = process(store, "1"), process(store, "2")
    claim(one, "a")
    assert two.unclaimed("write", ["a"]) == set()
    limits(lost_after_s=AT_ONCE)
    for _ in range(3):
        one.lease.beat()
        assert two.unclaimed("write", ["a"]) == set()
    assert two.unclaimed("write", ["a"]) == {"a"}


def test_process_that_left_has_no_claims(store: LocalStore) -> None:
    one, two = process(store, "1"), process(store, "2")
    claim(one, "a")
    one.lease.leave()
    assert two.unclaimed("write", ["a"]) == {"a"}


@pytest.mark.parametrize("content", [b"", b"../../../etc", b"\xff"])
def test_claim_without_owner_is_free_later(
    store: LocalStore, limits: Limits, content: bytes
) -> None:
    """A process was killed between two system calls, or a different program wrote the file."""
    one, two = process(store, "1"), process(store, "2")
    claim(one, "a").write_bytes(content)
    for _ in range(2):
        assert two.unclaimed("write", ["a"]) == set()
    limits(lost_after_s=AT_ONCE)
    assert two.unclaimed("write", ["a"]) == {"a"}


def test_owner_written_late_is_recognised(store: LocalStore, limits: Limits) -> None:
    one, two = process(store, "1"), process(store, "2")
    file = claim(one, "a")
    file.write_bytes(b"")
    assert two.unclaimed("write", ["a"]) == set()
    file.write_text(one.lease.owner)
    one.lease.beat()
    assert two.unclaimed("write", ["a"]) == set()
    limits(lost_after_s=AT_ONCE)
    one.lease.beat()
    assert two.unclaimed("write", ["a"]) == set()


def test_claim_taken_over_by_others_stays(store: LocalStore, limits: Limits) -> None:
    """Of two processes that saw the loss, the second one removed the new claim."""
    one, two, three = (process(store, name) for name in "123")
    file = claim(one, "a")
    assert two.unclaimed("write", ["a"]) == set()
    file.unlink()
    claim(three, "a")
    one.lease.leave()
    assert two.unclaimed("write", ["a"]) == set()
    assert file.read_text() == three.lease.owner


def test_killed_worker_of_this_process_is_an_error(store: LocalStore) -> None:
    one, two = process(store, "1"), process(store, "2")
    claim(one, "a")
    claim(two, "b")
    with pytest.raises(
        IncompleteError, match=says("worker-process-killed-perhaps-because", "write", 1, 3)
    ):
        two.unclaimed("write", ["a", "b", "c"])


def test_ended_run_gives_no_more_tasks(store: LocalStore) -> None:
    one = process(store, "1")
    end_jobs(store)
    with pytest.raises(JobLostError, match=says("newer-run-taken-over-run-2")):
        one.unclaimed("write", ["a"])


@pytest.mark.parametrize("is_ended", [False, True])
def test_heartbeat_does_not_revive_an_ended_run(store: LocalStore, *, is_ended: bool) -> None:
    lease = process(store, "1").lease
    heartbeat = lease.heartbeat(lease.process)
    before = store.stat(heartbeat)
    if is_ended:
        end_jobs(store)

    class Once(Clock):
        def wait(self, timeout: float | None = None) -> bool:
            return super().wait(timeout) or len(self.waits) > 1

    leaving = Once()
    shared_run._keep_beating(lease, leaving)
    assert leaving.waits == [shared_run._BEAT_S] * 2
    assert lease.held != is_ended
    if is_ended:
        assert not store.path(JOBS).exists()
    else:
        assert store.stat(heartbeat) != before


def test_late_heartbeat_does_not_revive_an_ended_run(store: LocalStore) -> None:
    """A process was stalled after its look at the lease. Later, it published files."""
    lease = process(store, "1").lease
    end_jobs(store)
    lease.beat()
    assert not lease.held


def test_one_process_acts_and_others_wait(store: LocalStore) -> None:
    acted: list[str] = []
    one, two = process(store, "1"), process(store, "2")

    def finished() -> str | None:
        return acted[0] if acted else None

    def act() -> str:
        acted.append("one")
        return "one"

    assert one.once("plan", finished, act) == "one"
    assert two.once("plan", finished, lambda: pytest.fail("it acted again")) == "one"

    # The claim of a living process is waited for.
    looks: list[None] = []

    def later() -> str | None:
        looks.append(None)
        return "plan" if len(looks) > 2 else None

    assert two.once("plan", later, lambda: pytest.fail("it acted again")) == "plan"
    assert len(looks) == 3


def test_step_of_a_lost_process_is_done_again(store: LocalStore) -> None:
    one, two = process(store, "1"), process(store, "2")

    def fail() -> str:
        raise SourceError("an image is missing")

    with pytest.raises(SourceError):
        one.once("plan", lambda: None, fail)
    one.lease.leave()
    assert two.once("plan", lambda: None, lambda: "made") == "made"


@contextlib.contextmanager
def alive(store: LocalStore, settings: dict[str, object]) -> Iterator[SharedRun]:
    with shared_run.joined(store, settings) as run:
        yield run


def test_processes_with_equal_settings_join_one_run(store: LocalStore, limits: Limits) -> None:
    limits(heartbeat_s=0.01)
    with alive(store, SETTINGS) as one, alive(store, dict(reversed(SETTINGS.items()))) as two:
        assert one.lease.job == two.lease.job
        assert one.lease.owner != two.lease.owner
        assert one.own.root != two.own.root
    assert not one.lease.held
    assert not two.lease.held


def test_living_run_with_different_settings_is_named(store: LocalStore, limits: Limits) -> None:
    limits(heartbeat_s=0.01)
    refused = pytest.raises(
        UsageError,
        match=says(
            "being-written-processes-different-settings",
            store.where(),
            "quality is 90 there, 80 here",
        ),
    )
    with alive(store, SETTINGS) as one:
        with refused, alive(store, SETTINGS | {"quality": 80}):
            pytest.fail("it joined")
        assert one.lease.held
    for folder in ("processes", "heartbeats"):
        assert store.names(f"{one.lease.folder}/{folder}") == []


def test_dead_run_with_different_settings_is_ended(store: LocalStore, limits: Limits) -> None:
    limits(lost_after_s=0.0)
    dead = process(store, "1")
    with alive(store, SETTINGS) as run:
        assert run.lease.held
        assert not dead.lease.held
        assert store.list_folder(JOBS) == [run.lease.job]


def test_abandoned_run_is_ended_without_waiting(store: LocalStore) -> None:
    dead = process(store, "1")
    dead.lease.leave()
    cluster = Lease.acquire(LocalStore(store.root.parent / "other"))
    store.write(f"{JOBS}/{cluster.job}/held", b"")
    with alive(store, SETTINGS) as run:
        assert store.list_folder(JOBS) == [run.lease.job]


def test_run_that_starts_meanwhile_is_seen(
    store: LocalStore, limits: Limits, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both processes looked for other runs before either had written its heartbeat."""
    limits(heartbeat_s=0.01)
    join = SharedLease.join
    with contextlib.ExitStack() as stack:

        def late(lease: SharedLease) -> None:
            monkeypatch.setattr(SharedLease, "join", join)
            stack.enter_context(alive(store, SETTINGS | {"quality": 80}))
            join(lease)

        monkeypatch.setattr(SharedLease, "join", late)
        with (
            pytest.raises(UsageError, match=says("being-written-processes-different-settings")),
            alive(store, SETTINGS),
        ):
            pytest.fail("it joined")


@dataclass(frozen=True)
class Made:
    """The content of a receipt."""

    task: str


class Task(NamedTuple):
    name: str


TASKS = [Task(name) for name in "abcdefgh"]


class Work:
    """Makes an empty result; the task `bad` fails in processes of which `fails` is true."""

    def __init__(self, bad: str = "", barrier: threading.Barrier | None = None) -> None:
        self.bad = bad
        self.barrier = barrier
        self.done: list[str] = []

    def __call__(self, task: Task) -> engine.Result[Made]:
        if self.barrier is not None and not self.done:
            self.barrier.wait(60)
        if task.name == self.bad:
            raise SourceError("a bad sector")
        self.done.append(task.name)
        return engine.Result(Made(task.name))


def run(shared: SharedRun, work: Work) -> list[str]:
    stage = engine.Stage("write", "0" * 64, shared.lease.store, work, Made)
    workers = engine.Workers(1, engine.THREADS)
    receipts = engine.run(stage, TASKS, workers, quiet=True, shared=shared)
    return [receipt.content.task for receipt in receipts]


def test_two_processes_do_each_task_once(store: LocalStore) -> None:
    barrier = threading.Barrier(2)
    works = [Work(barrier=barrier), Work(barrier=barrier)]
    runs = [process(store, "1"), process(store, "2")]
    results: dict[int, list[str]] = {}

    def act(number: int) -> None:
        results[number] = run(runs[number], works[number])

    threads = [threading.Thread(target=act, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results[0] == results[1] == [task.name for task in TASKS]
    assert all(work.done for work in works)
    assert sorted(works[0].done + works[1].done) == sorted(results[0])


def test_failed_process_does_not_stop_others(store: LocalStore) -> None:
    """Its failure was stored in the shared folder, where all processes look."""
    one, two = process(store, "1"), process(store, "2")
    with pytest.raises(SourceError, match="a bad sector"):
        run(one, Work(bad="c"))
    one.lease.leave()
    assert run(two, Work()) == [task.name for task in TASKS]
    assert not [*store.root.rglob("failed")]


def test_failed_process_releases_its_claims(store: LocalStore) -> None:
    one = process(store, "1")
    with pytest.raises(SourceError):
        run(one, Work(bad="c"))
    claims = set(store.names(one.lease.claims("write")))
    finished = {path.stem for path in store.root.rglob("receipts/*.json")}
    assert claims <= finished


def test_stages_have_separate_claims(store: LocalStore) -> None:
    one = process(store, "1")
    assert run(one, Work()) == run(one, Work())
    other = engine.Stage("index", "0" * 64, store, Work(), Made)
    workers = engine.Workers(1, engine.THREADS)
    assert len(engine.run(other, TASKS, workers, quiet=True, shared=one)) == len(TASKS)
