"""File systems without locks, syncs of folders or a known size, and with busy files."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from imagenet_prep.dataset.manifest import DatasetFile
from imagenet_prep.read.cache import HeldFile, only_one
from imagenet_prep.storage import local_file
from imagenet_prep.storage.dataset_store import stray_files
from imagenet_prep.storage.folder import UNKNOWN_BYTES, LocalStore
from imagenet_prep.storage.local_file import FolderSync, NoLocksError, complete_file, sync, try_lock
from tests.kit.messages import says
from tests.kit.system import System

# Errors of file systems for an unsupported operation.
REFUSALS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


def refuse_for_folders(system: System, code: int) -> list[int]:
    """Makes fsync of folders fail with `code`; returns the list of the refused descriptors."""
    refused: list[int] = []

    def fsync(real: Callable[[int], None], descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            refused.append(descriptor)
            raise OSError(code, os.strerror(code))
        real(descriptor)

    system.instead("fsync", fsync)
    return refused


def write_all(root: Path) -> None:
    """Uses all functions that sync folders."""
    store = LocalStore(root / "new" / "set")
    store.make_folder("index")
    store.write("index/x", b"1")
    store.write(".work/a", b"2")
    store.rename(".work/a", ".work/b")
    other = LocalStore(root / "other")
    other.adopt_files(store, [DatasetFile("index/x", 1, "")])
    store.remove(".work/b")
    store.make_folder(".work/tree/below")
    store.remove_tree(".work/tree")
    store.settle()
    with complete_file(root / "file", None) as file:
        file.write(b"3")
    sync(root / "new")
    local_file.sync_folder(root)
    assert (root / "other" / "index" / "x").read_bytes() == b"1"


@pytest.mark.parametrize("code", REFUSALS)
def test_folders_that_cannot_be_synced_are_tolerated(
    tmp_path: Path, system: System, code: int
) -> None:
    refused = refuse_for_folders(system, code)
    write_all(tmp_path)

    assert len(refused) > 10


def test_disk_error_while_syncing_a_folder_is_raised(tmp_path: Path, system: System) -> None:
    refuse_for_folders(system, errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        local_file.sync_folder(tmp_path)


@pytest.mark.parametrize("code", [*REFUSALS, errno.ENOLCK])
def test_missing_locks_are_refused_with_the_remedy(
    tmp_path: Path, system: System, code: int
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x")
    store = LocalStore(tmp_path)
    system.fails("flock", code)
    remedy = says("cannot-lock-mount-file-system")
    with path.open() as file, pytest.raises(NoLocksError, match=remedy):
        try_lock(file.fileno(), path)
    with pytest.raises(NoLocksError, match=remedy), store.lock():
        raise AssertionError
    with pytest.raises(NoLocksError, match=remedy), only_one(store, "x"):
        raise AssertionError
    with pytest.raises(NoLocksError, match=remedy):
        HeldFile(path, fcntl.LOCK_SH)
    # A single file needs no lock: other processes remove it only if they can lock it.
    with complete_file(tmp_path / "made", None) as made:
        made.write(b"y")


def test_lock_of_other_process_is_no_missing_feature(tmp_path: Path) -> None:
    first, second = (os.open(tmp_path, os.O_RDONLY) for _ in range(2))
    try:
        assert try_lock(first, tmp_path)
        assert not try_lock(second, tmp_path)
    finally:
        os.close(first)
        os.close(second)


class _Usage(NamedTuple):
    total: int
    used: int
    free: int


@pytest.mark.parametrize(
    ("usage", "expected"),
    [((0, 0, 0), UNKNOWN_BYTES), ((100, 100, 0), 0), ((100, 0, 100), 100)],
)
def test_file_system_without_blocks_has_unknown_size(
    tmp_path: Path, system: System, usage: tuple[int, int, int], expected: int
) -> None:
    system.instead("disk_usage", lambda _real, _path: _Usage(*usage))

    assert LocalStore(tmp_path / "new").free_bytes() == expected


def test_files_that_nfs_keeps_are_ignored(tmp_path: Path, system: System) -> None:
    store = LocalStore(tmp_path / "set")
    for name in (".work/temporary/.nfs0001", ".work/temporary/x", "index/.nfs0002"):
        path = store.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")

    def unlink(real: Callable[..., None], path: Any, *args: Any, **more: Any) -> None:
        if os.fsdecode(path).rpartition("/")[2].startswith(".nfs"):
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        real(path, *args, **more)

    system.instead("unlink", unlink)
    with store.lock():
        assert not (store.root / ".work" / "temporary" / "x").exists()
        assert store.names("index") == store.list_folder("index") == []
        assert store.stats("index") == {}
        assert stray_files(store, set()) == []
    (store.root / ".nfs0003").write_bytes(b"x")
    store.remove_all()

    assert (store.root / ".nfs0003").exists()


def test_files_are_synced_individually_if_syncfs_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "x").write_bytes(b"x")
    synced: list[Path] = []
    monkeypatch.setattr("imagenet_prep.storage.local_file.sync", synced.append)

    class Library:
        def syncfs(self, _descriptor: int) -> int:
            return -1

    finish = FolderSync(tmp_path)
    monkeypatch.setattr("ctypes.CDLL", lambda *_, **__: Library())
    monkeypatch.setattr("ctypes.get_errno", lambda: errno.ENOSYS)
    finish()
    assert synced == [tmp_path]

    finish = FolderSync(tmp_path)
    monkeypatch.setattr("ctypes.get_errno", lambda: errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        finish()
    shutil.rmtree(tmp_path / "below")
