"""Limits of a command: CPU cores, turns for work that needs much memory, and shared counts.

At most half of a command's workers do memory-intensive work at the same time. Threads share a
semaphore. Worker processes lock a byte of a shared file; the kernel releases the lock when a
process dies. On a cluster, only one thread per process does the work at a time.

The counts of written images and of repeated transfers are stored in the file position of an empty
file that the threads and processes of a run share. The kernel updates the position atomically, so
no lock is needed; a count takes 1 µs.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

# A line of /proc/self/cgroup: version 2, or version 1 with the controller "cpu".
_GROUP = re.compile(r"\d+:(?:|[^:]*\bcpu\b[^:]*):/(.*)")
# Quota and period, in microseconds of CPU time. Without a limit, the quota is "max" or -1.
_QUOTA = re.compile(r"(\d{1,18})\s+([1-9]\d{0,17})\s*")


def num_cores(root: Path = Path("/")) -> int:
    """Returns the number of CPU cores in the affinity of this process, or its CPU quota if lower.

    Docker and Kubernetes (`limits.cpu`) set the quota with cgroups, version 1 or 2. A quota of 1.5
    cores is rounded up to 2. `root` contains /proc and /sys.
    """
    return min(len(os.sched_getaffinity(0)), _quota(root))


@functools.cache
def _quota(root: Path) -> int:
    """Returns the lowest quota of all cgroups of this process, in cores, at least 1."""
    lowest = sys.maxsize
    for path in _GROUP.findall(_text(root / "proc/self/cgroup")):
        for mounted in ("sys/fs/cgroup", "sys/fs/cgroup/cpu"):
            group = root / mounted / path
            # A container sees its own group at the top. Otherwise, groups above have quotas too.
            for folder in (group, *group.parents):
                quota = folder / "cpu.cfs_quota_us"
                period = folder / "cpu.cfs_period_us"
                text = _text(folder / "cpu.max") or f"{_text(quota)} {_text(period)}"
                if match := _QUOTA.fullmatch(text):
                    lowest = min(lowest, max(1, -(-int(match[1]) // int(match[2]))))
    return lowest


def _text(path: Path) -> str:
    """Returns the content of a small system file; "" if it cannot be read."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return path.read_text("utf-8")
    return ""


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


# A retry adds this number to the position; an image adds 1.
_RETRY = 1 << 40

_descriptor = -1


def begin(shared: int = -1) -> int:
    """Starts counting images at 0, or joins the counter `shared`; returns its descriptor.

    The number of repeated transfers continues from its value.
    """
    global _descriptor
    if shared >= 0 or _descriptor < 0:
        _descriptor = shared if shared >= 0 else os.memfd_create("counter")
    if shared < 0:
        os.lseek(_descriptor, -add(0), os.SEEK_CUR)
    return _descriptor


def add(images: int = 1, *, retries: int = 0) -> int:
    """Adds to the counts if `begin` was called; returns the number of images so far."""
    return _moved(images + retries * _RETRY) % _RETRY


def retries() -> int:
    """Returns the number of retried transfers of this run."""
    return _moved(0) // _RETRY


def _moved(distance: int) -> int:
    return os.lseek(_descriptor, distance, os.SEEK_CUR) if _descriptor >= 0 else 0
