"""Files of a stage in `.work`: shared by workers, and possibly planted by other users."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from imagenet_prep import engine
from imagenet_prep.core.errors import DataDamagedError, IncompleteError, StoreError, UsageError
from imagenet_prep.storage.folder import LocalStore
from tests.kit.messages import says


@dataclass(frozen=True)
class Made:
    """The content of a receipt."""

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
def test_invalid_receipt_is_ignored(stage: Stage, receipt: bytes) -> None:
    stage.store.write("file", b"secret")
    (stage.store.local.root.parent / "key").write_bytes(b"secret")
    stage.store.write(f"{stage.folder}/receipts/a.json", receipt)

    assert stage.receipts(["a"]) == {}
    assert run(stage, "a")[0].content.task == "a"


def test_very_large_receipt_is_read(stage: Stage) -> None:
    (receipt,) = run(stage, "a")
    long = dataclasses.replace(receipt, content=Made("a" * (65 << 20)))
    stage.store.write(f"{stage.folder}/receipts/a.json", long.dumps())
    found = stage.receipt("a")

    assert found is not None
    assert len(found.content.task) == 65 << 20


def test_task_with_an_outside_name_is_refused(stage: Stage) -> None:
    with pytest.raises(DataDamagedError, match=says("name-part-empty-2")):
        run(stage, "../../../key")

    names = {path.name for path in stage.store.local.root.parent.rglob("*key*")}
    assert names == set()


@pytest.mark.parametrize("planted", ["", "/receipts", "/failed"])
@pytest.mark.parametrize("name", ["good", "bad"])
def test_planted_links_are_not_followed(
    stage: Stage, tmp_path: Path, planted: str, name: str
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "key").write_bytes(b"secret")
    link = stage.store.local.root / f"{stage.folder}{planted}"
    link.parent.mkdir(parents=True)
    link.symlink_to(home)

    with pytest.raises(StoreError, match=says("file-folder-above-link-wrong")):
        run(stage, name)
    assert {path.name: path.read_bytes() for path in home.iterdir()} == {"key": b"secret"}


def test_planted_link_of_reserved_space_is_replaced(stage: Stage, tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"secret")
    link = stage.store.local.root / stage.folder / "reserve"
    link.parent.mkdir(parents=True)
    link.symlink_to(tmp_path / "key")

    assert run(stage, "good")[0].content.task == "good"
    assert not link.is_symlink()
    assert (tmp_path / "key").read_bytes() == b"secret"


def test_log_is_not_opened_through_a_link(stage: Stage, tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"secret")
    assert stage.log("processes").read_bytes() == b""
    (stage.store.local.root / stage.folder / "runner.log").symlink_to(tmp_path / "key")

    with pytest.raises(StoreError, match=says("file-folder-above-link-wrong")):
        stage.log("runner")


def test_failure_is_stored_even_if_disk_is_full(
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
def test_receipt_without_required_fields_is_ignored(stage: Stage, content: dict[str, Any]) -> None:
    whole = {"outputs": [], "start_s": 1.0, "seconds": 0.5, "worker": "w"}
    stage.store.write(f"{stage.folder}/receipts/a.json", json.dumps(whole | content).encode())

    assert stage.receipts(["a"]) == {}
    assert run(stage, "a")[0].content.task == "a"
    assert stage.receipts(["a"]).keys() == {"a"}


def test_worker_without_memory_ends_the_run(stage: Stage) -> None:
    stage.clear()
    stage.note(MemoryError())

    with pytest.raises(IncompleteError, match=says("out-memory-finished-work-kept")):
        stage.raise_failure()


@dataclass(frozen=True)
class OfShard:
    """The content of a receipt that names its shard, as that of a writer does."""

    shard: str


@pytest.mark.parametrize(("shard", "is_sound"), [("a", True), ("b", False)])
def test_receipts_of_other_shards_count_for_nothing(
    tmp_path: Path, shard: str, is_sound: bool
) -> None:
    """A receipt that was copied to a different name would replace the images of a shard."""
    there = engine.Stage(
        "write",
        "0" * 64,
        LocalStore(tmp_path / "set"),
        lambda _: engine.Result(OfShard("a")),
        OfShard,
    )
    receipt = engine.TaskReceipt([], 1.0, 1.0, "1", OfShard(shard))
    there.store.write(f"{there.folder}/receipts/a.json", receipt.dumps())
    assert ([*there.receipts(["a"])] == ["a"]) is is_sound
    assert (there.receipt("a") is not None) is is_sound
    assert there.receipt("b") is None


def test_files_are_settled_and_published_after_their_receipt(tmp_path: Path) -> None:
    """Without its receipt, a visible file would belong to no run."""
    events: list[str] = []
    store = LocalStore(tmp_path / "set")
    store.make_folder("")
    temporary = tmp_path / "temporary"
    temporary.write_bytes(b"content")
    digest = hashlib.sha256(b"content").hexdigest()

    def settled() -> None:
        events.append("settled")
        assert not (tmp_path / "set/file").exists()

    def make(task: Task) -> engine.Result[Made]:
        output = engine.TaskOutput(temporary, "file", digest, settled)
        return engine.Result(Made(task.name), (output,))

    there = engine.Stage("write", "0" * 64, store, make, Made)

    def check() -> None:
        receipts = there.store.list_folder(f"{there.folder}/receipts")
        events.append(f"check {len(receipts)}")

    made = there.make(Task("a"))
    assert there.receipts(["a"]) == {}
    there.publish(Task("a"), made, check)
    assert events[:2] == ["check 0", "settled"]
    assert {*events[2:]} <= {"check 1"}
    assert (tmp_path / "set/file").read_bytes() == b"content"
    (receipt,) = there.receipts(["a"]).values()
    assert [(each.name, each.num_bytes) for each in receipt.outputs] == [("file", 7)]
    (tmp_path / "set/file").write_bytes(b"other size")
    assert there.receipts(["a"]) == {}
    assert there.receipt("a") is None
