"""Limits memory-intensive work: at most half of a command's workers do it at the same time.

Threads share a semaphore. Worker processes lock a byte of a shared file, which the kernel
releases when a process dies. On a cluster, one thread of each process has a turn.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from collections.abc import Iterator

_semaphore = threading.Semaphore(1)
_shared_byte: tuple[int, int] | None = None


def among_threads(workers: int) -> None:
    """Sets the number of worker threads; call it before they start."""
    global _semaphore
    _semaphore = threading.Semaphore(_turns(workers))


def among_processes(workers: int, descriptor: int) -> None:
    """Sets the number of single-threaded processes, and the file that all of them have open.

    Do not close any other descriptor of that file: this would release its locks.
    """
    global _shared_byte
    _shared_byte = descriptor, os.getpid() % _turns(workers)


@contextlib.contextmanager
def turn() -> Iterator[None]:
    """Waits for a turn, which lasts as long as the block."""
    with _semaphore:
        if _shared_byte is None:
            yield
            return
        descriptor, byte = _shared_byte
        fcntl.lockf(descriptor, fcntl.LOCK_EX, 1, byte)
        try:
            yield
        finally:
            fcntl.lockf(descriptor, fcntl.LOCK_UN, 1, byte)


def _turns(workers: int) -> int:
    return max(1, workers // 2)
