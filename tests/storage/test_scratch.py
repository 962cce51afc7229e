"""Temporary folders of processes: removed if their process is dead."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from imagenet_prep.core.errors import StoreError
from imagenet_prep.storage import scratch
from tests.kit import command
from tests.kit.messages import says
from tests.kit.system import System

HOLD = (
    "import sys, time; from imagenet_prep.storage import scratch\n"
    "path = scratch.process_folder(); (path / 'shard').write_bytes(b'half')\n"
    "print(path, flush=True); time.sleep(600)\n"
)


@pytest.fixture(autouse=True)
def tmp(tmp_path: Path, system: System) -> Iterator[Path]:
    # folders that a different test of this process has made elsewhere
    scratch.remove_process_folder()
    system.keeps_temporary_files(tmp_path)
    yield tmp_path
    scratch.remove_process_folder()


def test_process_has_one_folder_and_removes_it(tmp: Path) -> None:
    path = scratch.process_folder()
    (path / "shard").write_bytes(b"some")
    assert scratch.process_folder() == path
    assert path.is_relative_to(tmp)
    scratch.remove_process_folder()

    assert list(tmp.iterdir()) == []
    assert scratch.process_folder() != path


def test_only_folders_of_dead_processes_are_removed(tmp: Path) -> None:
    environment = command.environment(TMPDIR=str(tmp))
    living, dead = (
        subprocess.Popen(
            [sys.executable, "-c", HOLD], stdout=subprocess.PIPE, text=True, env=environment
        )
        for _ in range(2)
    )
    try:
        assert living.stdout is not None
        assert dead.stdout is not None
        kept, gone = (Path(process.stdout.readline().strip()) for process in (living, dead))
        assert (kept / "shard").exists()
        assert (gone / "shard").exists()
        dead.send_signal(signal.SIGKILL)
        dead.wait(command.PATIENCE_S)
        mine = scratch.process_folder()

        assert sorted(mine.parent.iterdir()) == sorted([kept, mine])
        assert (kept / "shard").read_bytes() == b"half"
    finally:
        for process in (living, dead):
            process.kill()
            process.communicate(timeout=command.PATIENCE_S)


def test_folder_removed_before_its_lock_is_made_again(tmp: Path, system: System) -> None:
    swept = []

    def sweep(real: Callable[..., int], path: Path, flags: int, **others: int | None) -> int:
        if not swept:
            swept.append(path)
            Path(path).rmdir()
        return real(path, flags, **others)

    system.instead("open", sweep)
    path = scratch.process_folder()

    assert path.is_dir()
    assert swept != [path]


def test_folder_removed_before_its_use_is_made_again(tmp: Path, system: System) -> None:
    """Then its lock is held, but on a folder that no longer has a name."""
    swept = []

    def lock(flock: Callable[[int, int], None], descriptor: int, operation: int) -> None:
        flock(descriptor, operation)
        if not swept:
            swept.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")))
            swept[0].rmdir()

    system.instead("flock", lock)
    path = scratch.process_folder()

    assert path.is_dir()
    assert swept != [path]


def test_planted_link_is_refused(tmp: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp / f"imagenet-prep-{os.getuid()}").symlink_to(elsewhere)
    with pytest.raises(StoreError, match=says("link-not-yours-remove-set")):
        scratch.process_folder()

    assert list(elsewhere.iterdir()) == []


def test_folders_are_private_to_the_user(tmp: Path) -> None:
    scratch.process_folder()

    assert (tmp / f"imagenet-prep-{os.getuid()}").stat().st_mode & 0o777 == 0o700


@pytest.mark.root
def test_folder_of_a_different_user_is_refused(tmp: Path) -> None:
    root = tmp / f"imagenet-prep-{os.getuid()}"
    root.mkdir()
    os.chown(root, 12345, 12345)

    with pytest.raises(StoreError, match=says("link-not-yours-remove-set")):
        scratch.process_folder()


def test_file_system_without_locks_is_refused(system: System) -> None:
    system.fails("flock", errno.ENOSYS)
    with pytest.raises(
        StoreError, match=says("cannot-lock-mount-file-system", ..., "Function not implemented")
    ):
        scratch.process_folder()


def test_folder_is_removed_despite_a_late_writer(tmp_path: Path) -> None:
    writing = threading.Event()
    over = threading.Event()

    def write(place: Path) -> None:
        for number in itertools.count():
            with contextlib.suppress(OSError):
                (place / str(number)).mkdir(parents=True)
            writing.set()
            if over.is_set():
                return

    with scratch.temporary_folder() as place:
        thread = threading.Thread(target=write, args=(place,))
        thread.start()
        assert writing.wait(command.PATIENCE_S)
    over.set()
    thread.join()

    scratch.remove_process_folder()
    assert not place.exists()
