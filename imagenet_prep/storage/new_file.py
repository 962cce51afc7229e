"""A new file, whose bytes are on the disk when it is left.

Linux tells that the disk could not write a file once for each descriptor that was open then: one
that is opened later may never hear of it. So a file is synced by the descriptor that wrote it.
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
    """Yields a new file to write to; on leaving it is synced."""
    with open(path, "xb", buffering=1 << 20) as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def complete_file(path: Path) -> Iterator[BinaryIO]:
    """Yields a new file that gets the name `path` when it is left; until then, an older file stays.

    A link of that name is replaced, and not followed. Every process locks the file that it writes,
    so the unlocked ones are left by killed runs, and are removed here.
    """
    with storage_errors("write", path):
        if path.exists() and not path.is_file():
            raise UsageError(f"{path}: is a folder, a pipe or a device. Choose the name of a file.")
        for left in path.parent.glob(f".{glob.escape(path.name)}.*.partial"):
            remove_partial(left)
        while True:
            partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}.partial")
            with removed_on_failure(partial), contextlib.ExitStack() as held:
                with new_file(partial) as file:
                    if not _is_held(file.fileno(), partial):
                        continue
                    # It keeps the lock until the file has its name.
                    held.callback(os.close, os.dup(file.fileno()))
                    yield file
                partial.replace(path)
            sync_folder(path.parent)
            return


def remove_partial(left: Path) -> None:
    """Removes the partial file of a killed run; one that a process still writes stays."""
    with (
        contextlib.suppress(OSError, ImagenetPrepError),
        open(regular_file.open_to_read(left), "rb") as opened,
    ):
        if try_lock(opened.fileno(), left):
            left.unlink()


def _is_held(descriptor: int, partial: Path) -> bool:
    """Returns whether a new file is still there, and no other process will remove it."""
    with contextlib.suppress(StoreError):  # Where no file can be locked, none is removed.
        return try_lock(descriptor, partial) and os.fstat(descriptor).st_nlink > 0
    return True


def sync(path: Path) -> None:
    """Syncs what a library has written: a file, or a folder with all that is in it."""
    there = [each for each in path.rglob("*") if each.is_file() or each.is_dir()]
    for each in [*there, path, path.parent]:
        descriptor = os.open(each, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class FolderSync:
    """Leaves on the disk, when it is called, what was written below a folder since it was made.

    One call for the whole file system: to sync 1,000 small files takes seconds, one by one. Errors
    are told that came up since the folder was opened (Linux 5.8), which is before the first file.
    """

    def __init__(self, folder: Path) -> None:
        self._descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._folder = folder

    def __call__(self) -> None:
        """Syncs, once; raises OSError where the disk is full or fails."""
        try:
            if ctypes.CDLL(None, use_errno=True).syncfs(self._descriptor):
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number), str(self._folder))
        finally:
            os.close(self._descriptor)
