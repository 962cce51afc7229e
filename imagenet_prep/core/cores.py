"""Counts the CPU cores that this process may use."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path


def num_cores(root: Path = Path("/")) -> int:
    """Returns the number of CPU cores in the affinity of this process, or its CPU quota if lower.

    Docker and Kubernetes (`limits.cpu`) set the quota with cgroups, version 1 or 2. A quota of 1.5
    cores is rounded up to 2. `root` contains /proc and /sys.
    """
    cores = len(os.sched_getaffinity(0))
    for quota, period in _quotas(root):
        cores = min(cores, max(1, math.ceil(quota / period)))
    return cores


def _quotas(root: Path) -> Iterator[tuple[int, int]]:
    """Yields quota and period of each cgroup of this process, in microseconds of CPU time."""
    for line in _words(root / "proc/self/cgroup", "\n"):
        _, _, controllers_and_path = line.partition(":")
        controllers, _, path = controllers_and_path.partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        mounted = root / "sys/fs/cgroup"
        if controllers:
            mounted /= "cpu"
        # A container sees its own cgroup at the top. Otherwise, the groups above have quotas too.
        parts = Path(path).parts[1:]
        for depth in range(len(parts) + 1):
            group = mounted.joinpath(*parts[:depth])
            if controllers:
                words = [
                    *_words(group / "cpu.cfs_quota_us"),
                    *_words(group / "cpu.cfs_period_us"),
                ]
            else:
                words = _words(group / "cpu.max")
            # Without a limit, the quota is "max" or -1.
            if len(words) == 2 and all(map(str.isdecimal, words)) and int(words[1]):
                yield int(words[0]), int(words[1])


def _words(path: Path, separator: str | None = None) -> list[str]:
    """Returns the words of a small system file; empty if it cannot be read."""
    try:
        return path.read_text("utf-8").split(separator)
    except (OSError, UnicodeDecodeError):
        return []
