"""How many files this process may have open: the system starts it with 1,024, and allows more."""

from __future__ import annotations

import contextlib
import resource

# For all else that a process has open: connections, files that are written, libraries.
_OTHERS = 512


def allow(count: int) -> int:
    """Lets this process have this many more files open, as far as the system allows it.

    Only the soft limit is raised. Processes that this one starts inherit it, and none of the
    descriptors that need it. Returns the number below which a descriptor may stay open: a new one
    has the lowest free number, so this counts all open files of the process.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(count + _OTHERS, hard)
    if soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    return max(soft - _OTHERS // 2, soft // 2)
