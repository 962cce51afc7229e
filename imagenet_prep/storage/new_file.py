"""Writes new files and syncs them to the disk.

Linux reports a failed write only to descriptors that were open at that time, so the writer of a
file must also sync it.
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from imagenet_prep.core import regular_file
from imagenet_prep.core.errors import ImagenetPrepError, StoreError, UsageError
from imagenet_prep.storage.inside import sync_folder
from imagenet_prep.storage.lock import try_lock
from imagenet_prep.storage.os_errors import removed_on_failure, storage_errors


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """Yields a new file for writing, and syncs it on exit."""
    with open(path, "xb", buffering=1 << 20) as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def complete_file(path: Path) -> Iterator[BinaryIO]:
    """Yields a new file that replaces `path` on exit; until then, an existing file stays.

    A symbolic link at `path` is replaced, not followed.
    """
    # Each process locks the partial file that it writes. Killed runs leave unlocked partial files.
    with storage_errors("write", path):
        if path.exists() and not path.is_file():
            raise UsageError(f"{path}: is a folder, a pipe or a device. Choose the name of a file.")
        for partial in path.parent.glob(f".{glob.escape(path.name)}.*.partial"):
            remove_partial(partial)
        while True:
            partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}.partial")
            with removed_on_failure(partial), contextlib.ExitStack() as closing:
                with new_file(partial) as file:
                    if not _is_safe(file.fileno(), partial):
                        continue
                    # Keep the lock until the file is renamed.
                    closing.callback(os.close, os.dup(file.fileno()))
                    yield file
                partial.replace(path)
            sync_folder(path.parent)
            return


def remove_partial(partial: Path) -> None:
    """Removes the partial file of a killed run, unless a process still writes it."""
    with (
        contextlib.suppress(OSError, ImagenetPrepError),
        open(regular_file.open_to_read(partial), "rb") as opened,
    ):
        if try_lock(opened.fileno(), partial):
            partial.unlink()


def _is_safe(descriptor: int, partial: Path) -> bool:
    """Locks a new file against removal by other processes; returns whether it still exists."""
    with contextlib.suppress(StoreError):  # if locks are not supported, no process removes files
        return try_lock(descriptor, partial) and os.fstat(descriptor).st_nlink > 0
    return True


def sync(path: Path) -> None:
    """Syncs the output of a library: a file, or a folder with all its contents."""
    contents = [entry for entry in path.rglob("*") if entry.is_file() or entry.is_dir()]
    for entry in [*contents, path, path.parent]:
        descriptor = os.open(entry, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class FolderSync:
    """Syncs the file system of a folder, which is much faster than syncing 1,000 small files.

    It reports write errors since its creation (from Linux 5.8 on), so create it before the files.
    """

    def __init__(self, folder: Path) -> None:
        self._descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._folder = folder

    def __call__(self) -> None:
        """Syncs the file system, once; raises OSError if the disk is full or fails."""
        try:
            if ctypes.CDLL(None, use_errno=True).syncfs(self._descriptor):
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number), str(self._folder))
        finally:
            os.close(self._descriptor)
