"""Raises the limit of open files for this process above the usual default of 1,024."""

from __future__ import annotations

import contextlib
import resource

# Number of descriptors for the connections, output files and libraries of the process.
_OTHERS = 512


def allow(count: int) -> int:
    """Raises the soft limit for `count` more open files, up to the hard limit.

    Child processes inherit the limit. Returns a bound: keep a file open only if its descriptor is
    below the bound. A new file gets the lowest free descriptor, so this limits the open files.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = min(count + _OTHERS, hard)
    if soft < target:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
            soft = target
    return max(soft - _OTHERS // 2, soft // 2)
