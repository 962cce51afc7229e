"""Temporary folders below TMPDIR for files that will be uploaded to a bucket.

Each process locks its folder. It also removes unlocked folders, which killed processes left.
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
from imagenet_prep.storage.inside import folder_inside
from imagenet_prep.storage.lock import try_lock
from imagenet_prep.storage.os_errors import storage_errors

_OWN = "on-the-way"

_lock = threading.Lock()
_mine: Path | None = None


def folder(name: str) -> Path:
    """Returns a path that all processes of this user share for `name`; creates nothing."""
    return Path(tempfile.gettempdir()) / f"imagenet-prep-{os.getuid()}" / name


def make(path: Path) -> None:
    """Creates a folder returned by `folder`."""
    root = path.parent
    with storage_errors("create", root):
        root.mkdir(mode=0o700, exist_ok=True)
        # TMPDIR is often shared: a different user may have created the folder, or a link.
        if root.is_symlink() or root.stat().st_uid != os.getuid():
            raise StoreError(
                f"{root} is a link or not yours. Remove it, or set TMPDIR to a different folder."
            )
        path.mkdir(exist_ok=True)


def own() -> Path:
    """Returns the folder of this process, and creates it if needed; `leave` removes it."""
    global _mine
    with _lock:
        if _mine is None or not _mine.is_dir():
            parent = folder(_OWN)
            with storage_errors("create", parent):
                _mine = _hold(parent)
                for path in parent.iterdir():
                    # A process may just have removed its folder.
                    with contextlib.suppress(OSError), folder_inside(path) as descriptor:
                        if try_lock(descriptor, path):
                            shutil.rmtree(path, ignore_errors=True)
        return _mine


@contextlib.contextmanager
def place() -> Iterator[Path]:
    """Yields a new folder below `own`, and removes it on exit."""
    # Files that an interrupted thread writes here later are removed with `own`.
    path = own() / uuid.uuid4().hex
    with storage_errors("create", path):
        path.mkdir()
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def leave() -> None:
    """Removes the folder of this process, and its parents if they are empty."""
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
        # A different process may remove both folders before this process has locked `path`.
        with contextlib.suppress(FileNotFoundError):
            path.mkdir()
            # The descriptor stays open, and so locked, until the process ends.
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            if try_lock(descriptor, path) and path.is_dir():
                return path
            os.close(descriptor)


program.before_ending(leave)
