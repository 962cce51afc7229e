"""Raises the limit of open files for this process: the default is 1,024, and more is allowed."""

from __future__ import annotations

import contextlib
import resource

# For the connections, output files and libraries of the process.
_OTHERS = 512


def allow(count: int) -> int:
    """Raises the soft limit for `count` more open files, up to the hard limit.

    Child processes inherit the limit. Returns the number below which a descriptor may stay open: a
    new one gets the lowest free number, so this limits the open files of the process.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = min(count + _OTHERS, hard)
    if soft < target:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
            soft = target
    return max(soft - _OTHERS // 2, soft // 2)
