"""Room on this machine's disk for what is on its way elsewhere, below TMPDIR.

Who dies leaves nothing for long: each process holds a lock on its folder, and the next one
removes the folders that nobody holds.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

from imagenet_prep.core import program
from imagenet_prep.core.errors import StoreError
from imagenet_prep.storage.lock import try_lock
from imagenet_prep.storage.os_errors import storage_errors

_OWN = "on-the-way"

_lock = threading.Lock()
_mine: Path | None = None


def folder(name: str) -> Path:
    """Returns where all processes of this user find `name` on this machine; nothing is made."""
    return Path(tempfile.gettempdir()) / f"imagenet-prep-{os.getuid()}" / name


def make(path: Path) -> None:
    """Makes a folder that `folder` has named."""
    root = path.parent
    with storage_errors("create", root):
        root.mkdir(mode=0o700, exist_ok=True)
        # TMPDIR is often everybody's: another user may have got there first, or left a link.
        if root.is_symlink() or root.stat().st_uid != os.getuid():
            raise StoreError(f"{root} is not yours. Remove it, or set TMPDIR to another folder.")
        path.mkdir(exist_ok=True)


def own() -> Path:
    """Returns a folder for this process alone, until it calls `leave` or ends."""
    global _mine
    with _lock:
        if _mine is None or not _mine.is_dir():
            parent = folder(_OWN)
            with storage_errors("create", parent):
                _mine = _hold(parent)
                _sweep(parent)
        return _mine


@contextlib.contextmanager
def place() -> Iterator[Path]:
    """Yields a new folder below `own`, and removes it.

    What a thread that was interrupted still writes there is no error; it goes with `own`.
    """
    path = own() / uuid.uuid4().hex
    with storage_errors("create", path):
        path.mkdir()
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def leave() -> None:
    """Removes what this process had for itself, and the folders that are empty then."""
    global _mine
    with _lock:
        if _mine is not None:
            shutil.rmtree(_mine, ignore_errors=True)
            _mine = None
        for path in (folder(_OWN), folder(_OWN).parent):
            with contextlib.suppress(OSError):
                path.rmdir()


def _hold(parent: Path) -> Path:
    while True:
        make(parent)
        path = parent / uuid.uuid4().hex
        # Another process may remove both folders at any moment before this one is locked.
        with contextlib.suppress(FileNotFoundError):
            path.mkdir()
            # Open and locked until the process ends, however that comes about.
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            if try_lock(descriptor, path) and path.is_dir():
                return path
            os.close(descriptor)


def _sweep(parent: Path) -> None:
    """Removes the folders of processes that are gone."""
    for path in parent.iterdir():
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            # Its process has just removed it.
            continue
        try:
            if try_lock(descriptor, path):
                shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(descriptor)


program.before_ending(leave)
