"""Measures the cost of a call in this process, and in the child of the decoders (the cage)."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from imagenet_prep.codec import cage
from imagenet_prep.core.errors import BadImageError

STORED = "stored"
# The value for clear_refs of proc(5) that sets the peak to the current size.
_RESET_PEAK = "5"


class Cost(NamedTuple):
    """The end of a call, its processor time in seconds, and the peak memory of its children."""

    end: str  # STORED, or the reason for the quarantine
    detail: str
    own_s: float
    child_s: float
    peak_bytes: int
    died: bool  # whether a child died


def cost(call: Callable[[bytes], object], data: bytes) -> Cost:
    """Returns the cost of a call; no other thread may use the cage at the same time."""
    idle = [*cage._idle]
    for child in idle:
        _of(child, "clear_refs").write_text(_RESET_PEAK)
    # A child starts as a copy of this process, whose peak so far then counts as the child's.
    measured = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    most_before = max(resource.getrusage(of).ru_maxrss for of in measured)
    child_before = _child_s()
    before = time.process_time()
    end, detail = _end(call, data)
    own_s = time.process_time() - before
    child_s = _child_s() - child_before
    most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    peaks = [kilobytes(child, "VmHWM") for child in cage._idle]
    if most > most_before:
        peaks.append(most)
    died = not set(idle).issubset(cage._idle)
    return Cost(end, detail, own_s, child_s, max(peaks, default=0) << 10, died)


def _end(call: Callable[[bytes], object], data: bytes) -> tuple[str, str]:
    try:
        call(data)
    except BadImageError as error:
        return error.reason, error.detail
    return STORED, ""


def _of(child: cage._Child, name: str) -> Path:
    return Path(f"/proc/{child._process.pid}/{name}")


def kilobytes(child: cage._Child, name: str) -> int:
    """Returns a value of a child's memory, such as VmHWM, from proc(5)."""
    lines = _of(child, "status").read_text().splitlines()
    values = dict(line.split(":", 1) for line in lines)
    return int(values[name].split()[0])


def _child_s() -> float:
    """Returns the processor time of all children, both ended and idle."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    total = ended.ru_utime + ended.ru_stime
    for child in cage._idle:
        fields = _of(child, "stat").read_text().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total
