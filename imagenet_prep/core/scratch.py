"""Room on this machine's disk for what is on its way elsewhere, below TMPDIR.

Whoever dies leaves nothing for long: each process holds a lock on its folder, and the next one
removes the folders that nobody holds.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import shutil
import tempfile
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

from imagenet_prep.core.errors import StoreError
from imagenet_prep.core.store import storage_errors

_lock = threading.Lock()
_mine: dict[Path, Path] = {}


def folder(name: str) -> Path:
    """Returns the folder called `name` that all processes of this user share on this machine.

    Raises:
      StoreError: somebody else made it.
    """
    root = Path(tempfile.gettempdir()) / f"imagenet-prep-{os.getuid()}"
    with storage_errors("create", root):
        root.mkdir(mode=0o700, exist_ok=True)
        # TMPDIR is often everybody's: another user may have got there first, or left a link.
        if root.is_symlink() or root.stat().st_uid != os.getuid():
            raise StoreError(f"{root} is not yours. Remove it, or set TMPDIR to another folder.")
        (root / name).mkdir(exist_ok=True)
    return root / name


def own(parent: Path) -> Path:
    """Returns a folder below `parent` for this process alone, removed at its end or after."""
    with _lock, storage_errors("create", parent):
        if parent not in _mine or not _mine[parent].is_dir():
            parent.mkdir(parents=True, exist_ok=True)
            for left in parent.iterdir():
                with _held(left) as held:
                    if held:
                        shutil.rmtree(left, ignore_errors=True)
            _mine[parent] = _make(parent)
        return _mine[parent]


def _make(parent: Path) -> Path:
    while True:
        path = parent / uuid.uuid4().hex
        path.mkdir()
        # Open and locked until the process ends, however that comes about.
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Another process may have swept it away before it was locked.
            if os.fstat(descriptor).st_nlink and path.is_dir():
                atexit.register(shutil.rmtree, path, ignore_errors=True)
                return path
        os.close(descriptor)


@contextlib.contextmanager
def _held(path: Path) -> Iterator[bool]:
    """Holds a folder for a moment; yields False where its process lives."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        yield False
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield True
    except BlockingIOError:
        yield False
    finally:
        os.close(descriptor)
