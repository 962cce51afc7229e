"""Writes new files and syncs them to the disk.

Linux reports a failed write only to descriptors that were open at that time, so the writer of a
file must also sync it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from imagenet_prep.core import own_file
from imagenet_prep.core.own_file import UNSUPPORTED, Kind
from imagenet_prep.storage.inside import sync_folder
from imagenet_prep.storage.os_errors import storage_errors


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """Yields a new file for writing, and syncs it on exit."""
    with open(path, "xb", buffering=1 << 20) as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def complete_file(path: Path, kind: Kind | None) -> Iterator[BinaryIO]:
    """Yields a new file that replaces `path` on exit; see `own_file.replaced`.

    Raises StoreError or IncompleteError if the system refuses.
    """
    with storage_errors("write", path), own_file.replaced(path, kind) as file:
        yield file


def sync(path: Path) -> None:
    """Syncs the output of a library: a file, or a folder with all its contents."""
    contents = [entry for entry in path.rglob("*") if entry.is_file() or entry.is_dir()]
    for entry in [*contents, path, path.parent]:
        if entry.is_dir():
            sync_folder(entry)
            continue
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
                if number in UNSUPPORTED:
                    sync(self._folder)
                    return
                raise OSError(number, os.strerror(number), str(self._folder))
        finally:
            os.close(self._descriptor)
