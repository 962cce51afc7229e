"""A new file, whose bytes are on the disk when it is left.

Linux tells that the disk could not write a file once for each descriptor that was open then: one
that is opened later may never hear of it. So a file is synced by the descriptor that wrote it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """Yields a new file to write to; on leaving it is synced.

    Raises:
      OSError: it exists, or the disk is full or fails.
    """
    with open(path, "xb", buffering=1 << 20) as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def sync(path: Path) -> None:
    """Syncs what a library has written: a file, or a folder with all that is in it.

    Raises:
      OSError: it is not there, or the disk is full or fails.
    """
    there = [each for each in path.rglob("*") if each.is_file() or each.is_dir()]
    for each in [*there, path, path.parent]:
        descriptor = os.open(each, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def synced_at_the_end(folder: Path) -> Iterator[None]:
    """Leaves on the disk, on leaving, what was written meanwhile to files of a folder.

    One call for the whole file system: to sync 1,000 small files takes seconds, one by one. It
    tells of errors since the folder was opened (Linux 5.8), which is before the first of them.

    Raises:
      OSError: the disk is full or fails.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(folder))
    finally:
        os.close(descriptor)
