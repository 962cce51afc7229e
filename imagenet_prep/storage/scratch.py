"""Temporary folders below TMPDIR, for example for files that will be uploaded to a bucket.

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

from imagenet_prep.core import ending
from imagenet_prep.core.errors import StoreError
from imagenet_prep.storage.local_file import folder_inside, storage_errors, try_lock

_PROCESSES = "on-the-way"

_folder_lock = threading.Lock()
_process_folder: Path | None = None


def shared_folder(name: str) -> Path:
    """Returns a path that all processes of this user share for `name`; creates nothing."""
    return Path(tempfile.gettempdir()) / f"imagenet-prep-{os.getuid()}" / name


def make_shared_folder(path: Path) -> None:
    """Creates a folder returned by `shared_folder`."""
    root = path.parent
    with storage_errors("create", root):
        root.mkdir(mode=0o700, exist_ok=True)
        # TMPDIR is often shared: a different user may have created the folder, or a link.
        if root.is_symlink() or root.stat().st_uid != os.getuid():
            raise StoreError(
                f"{root} is a link or not yours. Remove it, or set TMPDIR to a different folder."
            )
        path.mkdir(exist_ok=True)


def process_folder() -> Path:
    """Returns the folder of this process, and creates it if needed; see `remove_process_folder`."""
    global _process_folder
    with _folder_lock:
        if _process_folder is None or not _process_folder.is_dir():
            parent = shared_folder(_PROCESSES)
            with storage_errors("create", parent):
                _process_folder = _make_locked(parent)
                for path in parent.iterdir():
                    # A process may just have removed its folder.
                    with contextlib.suppress(OSError), folder_inside(path) as descriptor:
                        if try_lock(descriptor, path):
                            shutil.rmtree(path, ignore_errors=True)
        return _process_folder


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """Yields a new folder below `process_folder`, and removes it on exit."""
    # Files that an interrupted thread writes here later are removed with `process_folder`.
    path = process_folder() / uuid.uuid4().hex
    with storage_errors("create", path):
        path.mkdir()
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def remove_process_folder() -> None:
    """Removes the folder of this process, and its parents if they are empty."""
    global _process_folder
    with _folder_lock:
        if _process_folder is not None:
            shutil.rmtree(_process_folder, ignore_errors=True)
            _process_folder = None
        for path in (shared_folder(_PROCESSES), shared_folder(_PROCESSES).parent):
            with contextlib.suppress(OSError):
                path.rmdir()


def _make_locked(parent: Path) -> Path:
    while True:
        make_shared_folder(parent)
        path = parent / uuid.uuid4().hex
        # A different process may remove both folders before this process has locked `path`.
        with contextlib.suppress(FileNotFoundError):
            path.mkdir()
            # The descriptor stays open, and so locked, until the process ends.
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            if try_lock(descriptor, path) and path.is_dir():
                return path
            os.close(descriptor)


ending.before(remove_process_folder)
