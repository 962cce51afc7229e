"""A file that stays open, and locked if wanted, while anything refers to it.

A process that was forked shares the locks of the other one: none is free before both have closed
the file. So it closes the locked ones at once, of which it must use none.
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
    """One open file; the last reference closes it, so that no thread reads a closed descriptor."""

    def __init__(self, path: Path, lock: int = 0) -> None:
        """Opens a file, with a lock if these flags of fcntl.flock ask for it.

        The kernel releases the lock with the descriptor, so also when the process dies.
        """
        # Network file systems allow an exclusive lock only for files that are open for writing.
        mode = os.O_RDWR if lock & fcntl.LOCK_EX else os.O_RDONLY
        # Without O_NONBLOCK, opening a pipe waits for its writer.
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
    """Holds a lock among all ranks of the node; the kernel frees a dead holder's.

    With LOCK_NB, BlockingIOError where it is held.
    """
    store.make_folder(_LOCKS)
    descriptor = store.open(f"{_LOCKS}/{name.replace('/', '-')}", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | flags)
        yield
    finally:
        # Closing does not free it while a process that was forked meanwhile has a copy.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


os.register_at_fork(after_in_child=_let_go)
