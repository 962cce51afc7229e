"""Files that stay open, and optionally locked, while they are referenced.

After a fork, a lock is released only when both parent and child have closed the file. So a child
closes all locked files of its parent immediately, and must not use them.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path

from imagenet_prep.core import regular_file
from imagenet_prep.core.terminal import printable
from imagenet_prep.dataset import naming
from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.storage.local_file import flock

_LOCKS = f"{naming.WORK}/locks"
_REPORT_S = 30.0  # a wait for a lock is reported after this time
_MOST_HOLDER_BYTES = 1000


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
            flock(self.descriptor, path, lock)


_locked: weakref.WeakSet[HeldFile] = weakref.WeakSet()
_reported: set[str] = set()  # processes for which this process has reported a wait


def _let_go() -> None:
    for file in list(_locked):
        if file._closing.detach():
            os.close(file.descriptor)
            file.descriptor = -1


@contextlib.contextmanager
def only_one(
    store: LocalStore, name: str, flags: int = 0, *, purpose: str | None = None
) -> Iterator[None]:
    """Holds the lock `name` of a dataset's folder; waits for it unless `flags` is LOCK_NB.

    `purpose` tells processes that wait for the lock what this process does, by default that it
    uses `name`.
    """
    store.make_folder(_LOCKS)
    path = f"{_LOCKS}/{name.replace('/', '-')}"
    descriptor = store.open(path, os.O_RDWR | os.O_CREAT)
    try:
        try:
            flock(descriptor, store.path(path), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if flags & fcntl.LOCK_NB:
                raise
            _wait(descriptor)
        holder = f"pid {os.getpid()} on {os.uname().nodename}, which {purpose or f'uses {name}'}"
        # The lock is also valid without this text, for example if the disk is full.
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, holder.encode(), 0)
        yield
    finally:
        # Closing the file does not release the lock if a process was forked meanwhile.
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def _wait(descriptor: int) -> None:
    """Waits for a lock. Reports a long wait, because the process that holds it may be stopped."""
    report = threading.Timer(_REPORT_S, _report_wait, [descriptor])
    report.daemon = True
    report.start()
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    finally:
        report.cancel()
        # The caller may close the descriptor only when the timer no longer reads from it.
        report.join()


def _report_wait(descriptor: int) -> None:
    holder = os.pread(descriptor, _MOST_HOLDER_BYTES, 0).decode(errors="replace")
    pid = holder.partition(",")[0]
    # A process that holds several locks is reported once.
    if pid not in _reported:
        _reported.add(pid)
        logging.getLogger(__name__).warning(
            f"waiting for {printable(holder)}. If that process is stopped, continue it (kill -CONT)"
            " or end it."
        )


os.register_at_fork(after_in_child=_let_go)
