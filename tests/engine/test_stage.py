"""What workers leave for each other in `.work`, and what somebody else may have left there."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from imagenet_prep import engine
from imagenet_prep.core.errors import DataDamagedError, IncompleteError, StoreError, UsageError
from imagenet_prep.storage.folder import LocalStore


@dataclass(frozen=True)
class Made:
    """What the receipt of a task says."""

    task: str


class Task(NamedTuple):
    name: str


Stage = engine.Stage[Task, Made]


def work(task: Task) -> engine.Result[Made]:
    if task.name == "bad":
        raise UsageError("it is bad")
    return engine.Result(Made(task.name))


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return engine.Stage("write", "0" * 64, LocalStore(tmp_path / "set"), work, Made)


def run(stage: Stage, *names: str) -> list[engine.TaskReceipt[Made]]:
    workers = engine.Workers(1, engine.THREADS)
    return engine.run(stage, [*map(Task, names)], workers, title="", quiet=True)


@pytest.mark.parametrize(
    "receipt",
    [
        b"",
        b"[]",
        b"null",
        b"[" * 100_000,
        b"{}",
        b'{"outputs": 5}',
        b'{"outputs": [5]}',
        b'{"outputs": [{"name": 5, "num_bytes": 6}]}',
        b'{"outputs": [{"name": "file", "num_bytes": "6"}]}',
        b'{"outputs": [{"name": "../key", "num_bytes": 6}]}',
        b'{"outputs": [{"name": "/etc/hostname", "num_bytes": 6}]}',
    ],
    ids=lambda receipt: ascii(receipt)[:60],
)
def test_a_receipt_of_no_run_is_none(stage: Stage, receipt: bytes) -> None:
    stage.store.write("file", b"secret")
    (stage.store.local.root.parent / "key").write_bytes(b"secret")
    stage.store.write(f"{stage.folder}/receipts/a.json", receipt)

    assert stage.receipts(["a"]) == {}
    assert run(stage, "a")[0].content.task == "a"


def test_the_receipt_of_a_shard_that_lists_very_many_images_is_read(stage: Stage) -> None:
    (receipt,) = run(stage, "a")
    long = dataclasses.replace(receipt, content=Made("a" * (65 << 20)))
    stage.store.write(f"{stage.folder}/receipts/a.json", long.dumps())
    found = stage.receipt("a")

    assert found is not None
    assert len(found.content.task) == 65 << 20


def test_a_task_whose_name_leads_outside_is_not_done(stage: Stage) -> None:
    with pytest.raises(DataDamagedError, match="a part that is empty, . or .."):
        run(stage, "../../../key")

    names = {path.name for path in stage.store.local.root.parent.rglob("*key*")}
    assert names == set()


@pytest.mark.parametrize("planted", ["", "/receipts", "/claims", "/failed"])
@pytest.mark.parametrize("name", ["good", "bad"])
def test_no_planted_link_is_followed(stage: Stage, tmp_path: Path, planted: str, name: str) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "key").write_bytes(b"secret")
    link = stage.store.local.root / f"{stage.folder}{planted}"
    link.parent.mkdir(parents=True)
    link.symlink_to(home)

    with pytest.raises(StoreError, match="is a link or of the wrong kind"):
        run(stage, name)
    assert {path.name: path.read_bytes() for path in home.iterdir()} == {"key": b"secret"}


def test_a_planted_link_for_what_is_reserved_is_replaced(stage: Stage, tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"secret")
    link = stage.store.local.root / stage.folder / "reserve"
    link.parent.mkdir(parents=True)
    link.symlink_to(tmp_path / "key")

    assert run(stage, "good")[0].content.task == "good"
    assert not link.is_symlink()
    assert (tmp_path / "key").read_bytes() == b"secret"


def test_a_log_is_no_planted_link(stage: Stage, tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"secret")
    assert stage.log("processes").read_bytes() == b""
    (stage.store.local.root / stage.folder / "runner.log").symlink_to(tmp_path / "key")

    with pytest.raises(StoreError, match="is a link or of the wrong kind"):
        stage.log("runner")


def test_a_failure_is_told_in_what_was_reserved_where_the_disk_is_full(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.clear()
    store = stage.store.local

    def full(self: LocalStore) -> Path:
        raise IncompleteError(f"cannot create {self.root}: No space left on device")

    monkeypatch.setattr(LocalStore, "temporary", full)
    stage.fail("UsageError", "the reason " * 1000)
    monkeypatch.undo()

    (note,) = store.names(f"{stage.folder}/failed")
    failure = json.loads(store.read(f"{stage.folder}/failed/{note}"))
    assert failure["message"].startswith("the reason the reason")
    with pytest.raises(UsageError, match="the reason"):
        stage.raise_failure()


@pytest.mark.parametrize("content", [{}, {"task": 5}, {"task": "a", "shard": "b"}], ids=str)
def test_a_receipt_that_lacks_what_its_readers_need_is_none(
    stage: Stage, content: dict[str, Any]
) -> None:
    whole = {"outputs": [], "start_s": 1.0, "seconds": 0.5, "worker": "w"}
    stage.store.write(f"{stage.folder}/receipts/a.json", json.dumps(whole | content).encode())

    assert stage.receipts(["a"]) == {}
    assert run(stage, "a")[0].content.task == "a"
    assert stage.receipts(["a"]).keys() == {"a"}


def test_a_worker_without_memory_ends_the_run_with_a_sentence(stage: Stage) -> None:
    stage.clear()
    stage.note(MemoryError())

    with pytest.raises(IncompleteError, match="out of memory.* use fewer --workers"):
        stage.raise_failure()
