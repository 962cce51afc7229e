"""Files that stay open, and optionally locked, while they are referenced.

After a fork, a lock is released only when both parent and child have closed the file. So a child
closes all locked files of its parent immediately, and must not use them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import weakref
from collections.abc import Iterator
from pathlib import Path

from imagenet_prep.core import regular_file
from imagenet_prep.dataset import naming
from imagenet_prep.storage.folder import LocalStore

_LOCKS = f"{naming.WORK}/locks"


class HeldFile:
    """An open file, closed when nothing references it; `lock` is an operation of flock, or 0."""

    def __init__(self, path: Path, lock: int = 0) -> None:
        # Network file systems only allow exclusive locks on files open for writing.
        mode = os.O_RDWR if lock & fcntl.LOCK_EX else os.O_RDONLY
        # Without O_NONBLOCK, opening a named pipe would wait for a writer.
        self.descriptor = os.open(path, mode | os.O_NONBLOCK | os.O_CLOEXEC)
        self._closing = weakref.finalize(self, os.close, self.descriptor)
        regular_file.demand_regular(self.descriptor, path)
        if lock:
            _locked.add(self)
            fcntl.flock(self.descriptor, lock)


_locked: weakref.WeakSet[HeldFile] = weakref.WeakSet()


def _let_go() -> None:
    for file in list(_locked):
        if file._closing.detach():
            os.close(file.descriptor)
            file.descriptor = -1


@contextlib.contextmanager
def only_one(store: LocalStore, name: str, flags: int = 0) -> Iterator[None]:
    """Holds the lock `name` of a dataset's folder; waits for it unless `flags` is LOCK_NB."""
    store.make_folder(_LOCKS)
    descriptor = store.open(f"{_LOCKS}/{name.replace('/', '-')}", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | flags)
        yield
    finally:
        # Closing the file does not release the lock if a process was forked meanwhile.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


os.register_at_fork(after_in_child=_let_go)
