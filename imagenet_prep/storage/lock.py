"""Locks on files and folders. The kernel releases them when the process ends."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from imagenet_prep.core.errors import BusyError, ImagenetPrepError, StoreError
from imagenet_prep.core.own_file import UNSUPPORTED
from imagenet_prep.storage.os_errors import storage_errors

_ATTEMPTS = 10


class NoLocksError(StoreError):
    """The file system has no locks."""


@contextlib.contextmanager
def locked(open_file: Callable[[], int], *, path: Path, where: str) -> Iterator[None]:
    """Locks a file and writes this process's pid and host to it; `where` is for messages."""
    descriptor = _locked(open_file, path, where)
    try:
        with storage_errors("write", path):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"pid {os.getpid()} on {os.uname().nodename}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def flock(descriptor: int, path: Path, operation: int = fcntl.LOCK_EX) -> None:
    """Locks an open file or folder, as `fcntl.flock` does; raises BlockingIOError like it."""
    try:
        fcntl.flock(descriptor, operation)
    except OSError as error:
        if error.errno not in (errno.ENOLCK, *UNSUPPORTED):
            raise
        raise NoLocksError(
            f"cannot lock {path}: {error.strerror}. Mount this file system with locks (Lustre: "
            "-o flock; NFS: start its lock service), or use a folder on a different file system."
        ) from error


def try_lock(descriptor: int, path: Path) -> bool:
    """Locks an open file or folder until this process ends; returns False if already locked."""
    with storage_errors("lock", path):
        try:
            flock(descriptor, path, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def _locked(open_file: Callable[[], int], path: Path, where: str) -> int:
    failure: ImagenetPrepError = _busy(where, "several short ones")
    # Try again if the previous owner removes the lock file or its folder at this moment.
    for _ in range(_ATTEMPTS):
        try:
            descriptor = open_file()
        except StoreError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
            failure = error
            continue
        with contextlib.ExitStack() as closing:
            closing.callback(os.close, descriptor)
            if not try_lock(descriptor, path):
                owner = os.pread(descriptor, 200, 0).decode(errors="replace").strip()
                raise _busy(where, owner if owner.isprintable() else "")
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(path.lstat(), os.fstat(descriptor)):
                    closing.pop_all()
                    return descriptor
    raise failure


def _busy(where: str, owner: str) -> BusyError:
    return BusyError(
        f"{where} is being written by a different run ({owner or 'unknown'}). Wait for it or stop "
        "it, then run the same command again."
    )
