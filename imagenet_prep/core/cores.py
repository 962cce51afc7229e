"""Counts the CPU cores that this process may use."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sys
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
