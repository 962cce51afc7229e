"""Who does which task, and what counts as done: in a folder, and in a store that is none."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from imagenet_prep import engine
from imagenet_prep.core.errors import SourceError, StoreError, UsageError
from imagenet_prep.engine import stage as stages
from imagenet_prep.engine.workers import run_worker
from imagenet_prep.storage.folder import LocalStore


class Elsewhere(LocalStore):
    """A store that is no folder, as a bucket is none; it is reached by whole files alone."""

    @property
    def local(self) -> LocalStore:
        return LocalStore(self.root.parent / "here")

    @property
    def as_folder(self) -> None:  # type: ignore[override]
        return None

    def take(self, name: str) -> bool:
        if self.size(name) is not None:
            return False
        self.write(name, b"")
        return True


class Task(NamedTuple):
    name: str


class Work:
    def __init__(self, store: LocalStore) -> None:
        self.store = store

    def __call__(self, task: Task) -> engine.Result:
        if task.name == "bad":
            raise SourceError("the archive is damaged")
        path = self.store.local.temporary()
        path.write_bytes(b"content")
        return engine.Result({"task": task.name}, (engine.Output(path, f"{task.name}.bin"),))


@pytest.fixture(params=[LocalStore, Elsewhere])
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> engine.Stage[Task]:
    store = request.param(tmp_path / "set")
    return engine.Stage("write", "0" * 64, store, Work(store))


TASKS = [Task("a"), Task("b"), Task("c")]


@pytest.mark.parametrize("attempt", ["", "one"])
def test_each_task_is_done_and_what_is_claimed_is_left_alone(
    stage: engine.Stage[Task], attempt: str
) -> None:
    stage = replace(stage, attempt=attempt)
    stage.clear()
    assert stage.coordination.take(f"{stage.attempt_folder}/claims/b")
    run_worker(None, stage, TASKS)
    assert set(stage.receipts("abc")) == {"a", "c"}
    assert [name for name in stage.store.list_folder() if name.endswith("bin")] == [
        "a.bin",
        "c.bin",
    ]

    # The next attempt, or run, knows nothing of that claim.
    stage.clear()
    run_worker(None, stage, [Task("b")])
    assert set(stage.receipts("abc")) == {"a", "b", "c"}


def test_a_receipt_counts_only_beside_its_files_at_their_sizes(stage: engine.Stage[Task]) -> None:
    stage.clear()
    run_worker(None, stage, TASKS)
    (stage.store.local.root.parent / "set" / "a.bin").unlink()
    (stage.store.local.root.parent / "set" / "b.bin").write_bytes(b"cont")
    assert set(stage.receipts("abc")) == {"c"}


def test_workers_take_nothing_more_after_a_failure(stage: engine.Stage[Task]) -> None:
    stage.clear()
    run_worker(None, stage, [Task("a"), Task("bad"), Task("b"), Task("c")])
    # While one is sent elsewhere the next may be at work.
    assert "a" in stage.receipts("abc")
    assert "c" not in stage.receipts("abc")
    with pytest.raises(SourceError, match="^the archive is damaged$"):
        stage.raise_failure()


def test_a_store_that_refuses_what_was_made_is_a_failure(
    stage: engine.Stage[Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise StoreError("the store refuses")

    stage.clear()
    written = type(stage.store).publish
    monkeypatch.setattr(
        type(stage.store),
        "publish",
        lambda self, path, name, *more: (
            refuse() if name.endswith(".bin") else written(self, path, name, *more)
        ),
    )
    run_worker(None, stage, TASKS)
    with pytest.raises(StoreError, match="the store refuses"):
        stage.raise_failure()


def test_workers_that_outlive_their_attempt_stop(
    stage: engine.Stage[Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    old = replace(stage, attempt="old")
    old.clear()
    replace(stage, attempt="new").clear()
    assert old.stopped

    monkeypatch.setattr(stages, "_SEEN_WITHIN_S", 0.0)
    with pytest.raises(UsageError, match=r"does not see .*/attempts/old.*share"):
        run_worker(None, old, TASKS)
    assert stage.receipts("abc") == {}


def test_a_failure_names_the_host_only_where_its_users_alone_read(
    stage: engine.Stage[Task],
) -> None:
    stage = replace(stage, attempt="one")
    stage.clear()
    run_worker(None, stage, [Task("bad")])
    with pytest.raises(SourceError, match=r"\(on worker (.+)\)$") as caught:
        stage.raise_failure()
    named = f"(on worker {socket.gethostname()})" in str(caught.value)
    assert named == (stage.store.as_folder is not None)
