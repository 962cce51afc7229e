"""Locks of the cache of a node: waits for other processes, forks and failing file systems."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep.core.errors import StoreError
from imagenet_prep.dataset import schema
from imagenet_prep.read import cache as cache_module
from imagenet_prep.read.cache import HeldFile, only_one
from imagenet_prep.storage.folder import LocalStore
from tests.kit import command
from tests.kit.command import PATIENCE_S
from tests.kit.limits import Limits
from tests.kit.messages import says
from tests.kit.system import System

pytestmark = pytest.mark.slow  # servers or processes in each test


def test_forked_process_does_not_keep_a_shard_lock(tmp_path: Path) -> None:
    """Workers of a DataLoader kept it, and deadlocked."""
    copy = LocalStore(tmp_path)
    with only_one(copy, "some shard"):
        child = os.fork()
        if not child:
            signal.pause()
    try:
        with only_one(copy, "some shard", fcntl.LOCK_NB):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


HOLDS = """
import signal, sys
from pathlib import Path
from imagenet_prep.read.cache import only_one
from imagenet_prep.storage.folder import LocalStore
with only_one(LocalStore(Path(sys.argv[1])), sys.argv[2], purpose=sys.argv[3] or None):
    signal.pause()
"""


@pytest.mark.parametrize(
    ("name", "purpose", "said"),
    [
        ("train-00001-of-00005", "fetches train-00001-of-00005", "fetches train-00001-of-00005"),
        ("room", "frees space", "frees space"),
        ("columns/latents", "", "uses columns/latents"),
    ],
)
def test_long_wait_for_a_stopped_process_is_reported(
    tmp_path: Path,
    limits: Limits,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    name: str,
    purpose: str,
    said: str,
) -> None:
    monkeypatch.setattr(cache_module, "_reported", set())
    limits(lock_report_s=0.01)
    copy = LocalStore(tmp_path)
    got = threading.Event()
    lock_file = tmp_path / schema.WORK / "locks" / name.replace("/", "-")

    def lock() -> None:
        with only_one(copy, name):
            got.set()

    program = ("-c", HOLDS, str(tmp_path), name, purpose)
    with command.started(program=program) as holder:
        command.wait_until(lambda: lock_file.exists() and lock_file.read_text(), "the lock")
        holder.send(signal.SIGSTOP)
        waiting = [threading.Thread(target=lock, daemon=True) for _ in range(3)]
        for thread in waiting:
            thread.start()
        command.wait_until(lambda: caplog.messages, "a message")
        assert not got.is_set()
        holder.kill()
    for thread in waiting:
        thread.join(PATIENCE_S)

    assert got.is_set()
    expected = f"waiting for pid {holder.pid} on {os.uname().nodename}, which {said}. "
    told = [message for message in caplog.messages if message.startswith(expected)]
    assert len(told) == 1
    assert says("waiting-process-stopped-continue-kill").search(told[0])


def test_short_wait_for_a_lock_is_not_reported(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    system: System,
) -> None:
    """The timer ends with the wait, so it cannot read a closed file."""
    monkeypatch.setattr(cache_module, "_reported", set())
    copy = LocalStore(tmp_path)
    order = []
    with only_one(copy, "some shard"):

        def release(real: Callable[..., Any], file: int, operation: int) -> Any:
            order.append(operation)
            if operation == fcntl.LOCK_EX:
                return None  # as if the other process had just released it
            return real(file, operation)

        system.instead("flock", release)
        with only_one(copy, "some shard"):
            pass

    assert order[:2] == [fcntl.LOCK_EX | fcntl.LOCK_NB, fcntl.LOCK_EX]
    assert not [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]
    assert caplog.messages == []


def test_full_disk_does_not_break_a_lock(tmp_path: Path, system: System) -> None:
    system.fails("pwrite", errno.ENOSPC)
    with only_one(LocalStore(tmp_path), "some shard"):
        pass


def test_lock_that_cannot_be_opened_is_named(tmp_path: Path, system: System) -> None:
    """On a read-only disk, a column's script showed only the name of the lock."""
    store = LocalStore(tmp_path)
    with only_one(store, "columns/big"):
        pass
    system.fails("open", errno.EROFS)
    path = re.escape(str(tmp_path / ".work/locks/columns-big"))
    with pytest.raises(StoreError, match=path), only_one(store, "columns/big"):
        pass


def test_forked_process_does_not_keep_released_shards_locked(tmp_path: Path) -> None:
    """Workers of a DataLoader did, and the cache of their node exceeded its limit."""
    path = tmp_path / "shard"
    path.touch()
    held = HeldFile(path, fcntl.LOCK_SH)
    told, tell = os.pipe()
    child = os.fork()
    if not child:
        descriptor = held.descriptor
        del held
        os.write(tell, b"%d" % descriptor)
        signal.pause()
    try:
        assert os.read(told, 9) == b"-1"
        with pytest.raises(BlockingIOError):  # as long as this process reads it
            HeldFile(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
        del held
        HeldFile(path, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(told)
        os.close(tell)
