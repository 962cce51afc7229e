"""Receipts and stored failures of tasks."""

from __future__ import annotations

import itertools
import json
import os
import re
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from imagenet_prep.core.errors import IncompleteError, SourceError
from imagenet_prep.engine.stage import Result, Stage, TaskOutput
from imagenet_prep.engine.workers import run_worker
from imagenet_prep.storage.folder import LocalStore
from tests.kit.messages import says


@dataclass(frozen=True)
class Made:
    """The content of a receipt."""

    task: str


class Task(NamedTuple):
    name: str


def stage(root: Path, function: Any = None) -> Stage[Task, Made]:
    store = LocalStore(root)

    def write(task: Task) -> Result[Made]:
        path = store.temporary()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"content")
        return Result(Made(task.name), (TaskOutput(path, f"{task.name}.bin"),))

    made = Stage("write", "0" * 64, store, function or write, Made)
    made.clear()
    return made


def test_receipt_distinguishes_workers_without_naming_their_host(tmp_path: Path) -> None:
    work = stage(tmp_path)
    work.publish(Task("one"), work.make(Task("one")))
    work.publish(Task("two"), work.make(Task("two")))
    receipts = work.receipts(["one", "two"])

    assert receipts["one"].worker == receipts["two"].worker
    written = "".join(path.read_text() for path in tmp_path.rglob("receipts/*.json"))
    for word in (socket.gethostname(), str(tmp_path)):
        assert word not in written
    # In a container it may have a single digit, as other numbers in receipts have.
    assert not re.search(rf"\b{os.getpid()}\b", receipts["one"].worker)


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"{",
        b"\xff",
        b"[" * 100_000,
        b"9" * 5000,
        b"[]",
        b"5",
        b'{"outputs": 5}',
        b'{"outputs": [5]}',
        b'{"outputs": [{"name": "one.bin"}]}',
        b'{"outputs": [{"name": "../one.bin", "num_bytes": 7}]}',
        b'{"outputs": [{"name": "/etc/passwd", "num_bytes": 7}]}',
        b'{"outputs": [{"name": ["one.bin"], "num_bytes": 7}]}',
        b'{"outputs": [{"name": "one.bin", "num_bytes": true}]}',
        b'{"outputs": [{"name": "one.bin", "num_bytes": 1e999}]}',
    ],
)
def test_task_with_a_damaged_receipt_is_repeated(tmp_path: Path, damage: bytes) -> None:
    work = stage(tmp_path)
    work.publish(Task("one"), work.make(Task("one")))
    assert work.receipts(["one"])
    (path,) = tmp_path.rglob("receipts/one.json")
    path.write_bytes(damage)

    assert work.receipts(["one"]) == {}


def test_failure_is_raised_and_damaged_record_named(tmp_path: Path) -> None:
    def fail(_: Task) -> Result[Made]:
        raise SourceError("the archive is damaged")

    work = stage(tmp_path, fail)
    work.clear()
    run_worker(work, [Task("one")], itertools.count().__next__)
    with pytest.raises(SourceError, match="^the archive is damaged$"):
        work.raise_failure()
    (note,) = tmp_path.rglob("failed/*")
    for damage in (b"", b"[" * 100_000, b"[]", json.dumps({"task": "one"}).encode()):
        note.write_bytes(damage)
        with pytest.raises(
            IncompleteError, match=says("task-failed-record-error-damaged", "failed/")
        ):
            work.raise_failure()
