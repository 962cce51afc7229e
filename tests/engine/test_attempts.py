"""What comes after an attempt, and how receipts are followed; no process, no Beam."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from imagenet_prep import engine
from imagenet_prep.core.errors import DataDamagedError, IncompleteError, SourceError
from imagenet_prep.engine import attempts, cluster
from imagenet_prep.engine.attempts import Attempts, Decision
from imagenet_prep.engine.workers import Started
from imagenet_prep.storage.folder import LocalStore

DONE, ANOTHER, GIVE_UP = Decision.DONE, Decision.ANOTHER, Decision.GIVE_UP


class Task(NamedTuple):
    name: str


def work(task: Task) -> engine.Result:
    return engine.Result({"task": task.name})


@pytest.fixture
def stage(tmp_path: Path) -> engine.Stage[Task]:
    return engine.Stage("write", "0" * 64, LocalStore(tmp_path / "set"), work)


@pytest.mark.parametrize(
    ("remote", "made", "decisions"),
    [
        # Of each attempt: what it has finished, what it has left.
        (False, [(5, 0)], [DONE]),
        (False, [(4, 1)], [GIVE_UP]),
        (False, [(0, 5)], [GIVE_UP]),
        (True, [(5, 0)], [DONE]),
        (True, [(2, 3), (1, 2), (1, 1), (1, 0)], [ANOTHER, ANOTHER, ANOTHER, DONE]),
        (True, [(0, 5), (0, 5), (0, 5)], [ANOTHER, ANOTHER, GIVE_UP]),
        (True, [(0, 5), (0, 5), (5, 0)], [ANOTHER, ANOTHER, DONE]),
        # One task that is finished is worth three more attempts.
        (True, [(0, 5), (0, 5), (1, 4)] + [(0, 4)] * 3, [ANOTHER] * 5 + [GIVE_UP]),
    ],
)
def test_decisions(remote: bool, made: list[tuple[int, int]], decisions: list[Decision]) -> None:
    state = Attempts(remote)
    assert [state.decide(finished=done, left=left) for done, left in made] == decisions


def test_what_is_left_is_said_with_what_was_lost() -> None:
    here = Attempts(remote=False)
    here.decide(finished=1, left=2)
    said = str(here.incomplete("write", 2, 3))
    assert said.startswith("write: a worker process died (killed for memory?); 2 of 3 tasks")

    there = Attempts(remote=True)
    there.decide(finished=0, left=3, lost=cluster.JobLostError("Flink: no slots"))
    there.decide(finished=0, left=3)
    said = str(there.incomplete("write", 3, 3))
    assert "3 of 3 tasks are left, and the workers were lost 3 times on end. Flink: no" in said


class Fake(Started):
    """Workers in whose stead the test does things, one at each wait."""

    def __init__(self, acts: list[Callable[[], None]]) -> None:
        self._acts: Iterator[Callable[[], None]] = iter(acts)

    def wait(self, seconds: float) -> bool:  # noqa: ARG002
        act = next(self._acts, None)
        if act is not None:
            act()
        return act is not None


def raising(error: BaseException) -> Callable[[], None]:
    def act() -> None:
        raise error

    return act


def test_receipts_are_collected_while_workers_work_and_when_they_end(
    stage: engine.Stage[Task],
) -> None:
    stage.clear()
    seen: list[int] = []

    def collect() -> None:
        seen.append(len(stage.receipts(["a", "b"])))

    started = Fake([lambda: stage.execute(Task("a")), lambda: stage.execute(Task("b"))])
    attempts.follow(stage, started, collect)
    assert seen == [1, 2, 2]
    assert not stage.stopped


@pytest.mark.parametrize("error", [KeyboardInterrupt(), DataDamagedError("the limit")])
def test_workers_are_told_to_stop_where_the_run_is_ended(
    stage: engine.Stage[Task], error: BaseException
) -> None:
    stage.clear()
    with pytest.raises(type(error)):
        attempts.follow(stage, Fake([raising(error)]), lambda: None)
    assert stage.stopped


def test_what_a_lost_job_has_finished_counts(stage: engine.Stage[Task]) -> None:
    stage.clear()
    collected: list[str] = []

    def lose() -> None:
        stage.execute(Task("a"))
        raise cluster.JobLostError("gone")

    with pytest.raises(cluster.JobLostError):
        attempts.follow(stage, Fake([lose]), lambda: collected.extend(stage.receipts(["a"])))
    assert collected == ["a"]
    assert not stage.stopped


Attempt = Callable[[engine.Stage[Task], list[Task]], None]


@pytest.fixture
def on_a_cluster(
    stage: engine.Stage[Task], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., list[dict[str, Any]]]:
    """Runs tasks a, b and c; each attempt is one of the functions that are given."""
    monkeypatch.setattr(attempts, "_PAUSE_S", 0.0)

    def run(*made: Attempt) -> list[dict[str, Any]]:
        left = iter(made)

        def submit(_: object, function: Any, count: int, *, name: str, log: Path) -> Fake:
            given = function.keywords
            assert count == len(given["tasks"])
            assert given["stage"].attempt in name
            assert log.name == "runner.log"
            return Fake([lambda: next(left)(given["stage"], given["tasks"])])

        monkeypatch.setattr(cluster, "submit", submit)
        workers = engine.Workers(beam_args=("--runner=Fake",))
        receipts = engine.run(stage, [Task(n) for n in "abc"], workers, title="", quiet=True)
        assert next(left, None) is None
        return receipts

    return run


def finish(number: int, error: BaseException | None = None) -> Attempt:
    """Returns an attempt that finishes so many tasks, and then is lost or fails."""

    def attempt(stage: engine.Stage[Task], tasks: list[Task]) -> None:
        for task in tasks[:number]:
            stage.execute(task)
        if error is not None:
            raise error

    return attempt


def names(receipts: list[dict[str, Any]]) -> list[str]:
    return [receipt["task"] for receipt in receipts]


def test_attempts_go_on_as_long_as_they_get_on(
    on_a_cluster: Callable[..., list[dict[str, Any]]], stage: engine.Stage[Task]
) -> None:
    lost = cluster.JobLostError("Flink: a TaskManager is gone")
    receipts = on_a_cluster(finish(1, lost), finish(0, lost), finish(1), finish(0), finish(3))

    assert names(receipts) == ["a", "b", "c"]
    assert not list(stage.store.local.root.glob(".work/*/attempts"))


def test_three_attempts_that_come_to_nothing_are_the_end(
    on_a_cluster: Callable[..., list[dict[str, Any]]], stage: engine.Stage[Task]
) -> None:
    lost = cluster.JobLostError("Flink: no slots")
    with pytest.raises(IncompleteError, match=r"2 of 3 tasks are left.*lost 3 times.*no slots"):
        on_a_cluster(finish(1), finish(0, lost), finish(0, lost), finish(0, lost))
    assert set(stage.receipts("abc")) == {"a"}

    assert names(on_a_cluster(finish(2))) == ["a", "b", "c"]
    assert names(on_a_cluster()) == ["a", "b", "c"]


def test_a_tasks_failure_goes_before_the_loss_of_the_job_it_ended(
    on_a_cluster: Callable[..., list[dict[str, Any]]],
) -> None:
    def fails(stage: engine.Stage[Task], _: list[Task]) -> None:
        stage.note("a", SourceError("the archive is damaged"))
        raise cluster.JobLostError("Flink: the job failed")

    with pytest.raises(SourceError, match=r"^the archive is damaged \(on worker .+\)$"):
        on_a_cluster(fails)


def test_a_limit_ends_the_run_once_and_keeps_what_is_done(stage: engine.Stage[Task]) -> None:
    def limit(receipt: dict[str, Any]) -> None:
        if receipt["task"] == "b":
            raise DataDamagedError("too many bad images")

    workers = engine.Workers(1, engine.THREADS)
    for _ in range(2):  # the receipt that is too much is met again
        with pytest.raises(DataDamagedError, match="too many bad images"):
            tasks = [Task("a"), Task("b")]
            engine.run(stage, tasks, workers, title="", watch=limit, quiet=True)
    assert set(stage.receipts("ab")) == {"a", "b"}
