"""Turns at what takes much memory: half of the workers of a command may have one at a time.

Threads share a semaphore. Worker processes share a file, and lock a byte of it for a turn; the
kernel gives the byte back when a process dies. On a cluster, each process has one turn.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from collections.abc import Iterator

_semaphore = threading.Semaphore(1)
_place: tuple[int, int] | None = None


def among_threads(workers: int) -> None:
    """Says how many threads of this process work; call it before they begin."""
    global _semaphore
    _semaphore = threading.Semaphore(_turns(workers))


def among_processes(workers: int, descriptor: int) -> None:
    """Sets how many processes work, of one thread each, and the file that all of them have open.

    To close another descriptor of that file would release its locks.
    """
    global _place
    _place = descriptor, os.getpid() % _turns(workers)


@contextlib.contextmanager
def turn() -> Iterator[None]:
    """Waits for a turn, which lasts as long as the block."""
    with _semaphore:
        if _place is None:
            yield
            return
        descriptor, byte = _place
        fcntl.lockf(descriptor, fcntl.LOCK_EX, 1, byte)
        try:
            yield
        finally:
            fcntl.lockf(descriptor, fcntl.LOCK_UN, 1, byte)


def _turns(workers: int) -> int:
    return max(1, workers // 2)
