"""Limits memory-intensive work: at most half of a command's workers do it at the same time.

Threads share a semaphore. Worker processes lock a byte of a shared file; the kernel releases the
lock when a process dies. On a cluster, only one thread per process does the work at a time.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from collections.abc import Callable, Iterator

_semaphore = threading.Semaphore(1)
_shared_byte: tuple[int, int] | None = None
_ask_parent: Callable[[], None] | None = None


def among_threads(workers: int) -> None:
    """Sets the number of worker threads; call it before they start."""
    global _semaphore
    _semaphore = threading.Semaphore(_turns(workers))


def among_processes(workers: int, descriptor: int) -> None:
    """Sets the number of single-threaded worker processes and the file that they share.

    Do not close any other descriptor of the shared file: this would release its locks.
    """
    global _shared_byte
    _shared_byte = descriptor, os.getpid() % _turns(workers)


def among_children(ask_parent: Callable[[], None]) -> None:
    """Sets the function with which a child waits for its parent process to take the turn."""
    global _ask_parent
    _ask_parent = ask_parent


@contextlib.contextmanager
def turn() -> Iterator[None]:
    """Waits until this worker may do memory-intensive work; its turn lasts until the block ends."""
    if _ask_parent is not None:
        _ask_parent()
        yield
        return
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
