"""Limits or measures the memory of this process, for code that must not use more."""

from __future__ import annotations

import contextlib
import resource
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

ROOM_BYTES = 512 << 20


@contextlib.contextmanager
def limited_memory(room_bytes: int = ROOM_BYTES) -> Iterator[None]:
    """Lets this process map `room_bytes` more than now; a request for more gets MemoryError."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + room_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def peak_bytes(call: Callable[[], object]) -> int:
    """Calls a function; returns the most memory that Python's and NumPy's objects took meanwhile.

    For limits of a few megabytes, which `limited_memory` cannot check: there, another thread that
    starts meanwhile takes its stack from the same room.
    """
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
