"""The number of images that the workers of a run have written, for its progress within shards.

It is the position in an empty file, which the threads and processes of a run share. The kernel adds
to it, so there is no lock. An image costs 1 µs.
"""

from __future__ import annotations

import os

_descriptor = -1


def begin(shared: int = -1) -> int:
    """Begins to count at 0, or with the process that has passed on what `begin` returns there."""
    global _descriptor
    if shared >= 0 or _descriptor < 0:
        _descriptor = shared if shared >= 0 else os.memfd_create("counter")
    if shared < 0:
        os.lseek(_descriptor, 0, os.SEEK_SET)
    return _descriptor


def add(images: int = 1) -> int:
    """Counts images, if somebody has begun to; returns their number so far."""
    return os.lseek(_descriptor, images, os.SEEK_CUR) if _descriptor >= 0 else 0
