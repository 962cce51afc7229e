"""A file that stays open, and optionally locked, while it is referenced.

A forked process shares its parent's locks, which are only released when both have closed the file.
So the child closes all locked files immediately and must not use them.
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
    """An open file, closed with its last reference. `lock` takes flags of fcntl.flock, or 0."""

    def __init__(self, path: Path, lock: int = 0) -> None:
        # Network file systems only allow exclusive locks on files open for writing.
        mode = os.O_RDWR if lock & fcntl.LOCK_EX else os.O_RDONLY
        # Without O_NONBLOCK, opening a pipe would wait for its writer.
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
    """Holds a lock among the node's ranks; BlockingIOError with LOCK_NB if it is taken."""
    store.make_folder(_LOCKS)
    descriptor = store.open(f"{_LOCKS}/{name.replace('/', '-')}", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | flags)
        yield
    finally:
        # Closing does not release it if a process forked meanwhile has a copy.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


os.register_at_fork(after_in_child=_let_go)
