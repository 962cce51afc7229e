"""Builds command lines of child processes that import safely and end together with this process."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

_BOUND_CHILD = str(Path(__file__).with_name("bound_child.py"))


def python(*words: str, program: str = sys.executable) -> list[str]:
    """Returns a Python command line with -P, which ignores modules in the current folder."""
    return [program, "-P", *words]


def bound(
    argv: Sequence[str], signum: signal.Signals = signal.SIGKILL, *, deaf: bool = False
) -> list[str]:
    """Returns the command line of a child process that gets `signum` when this process ends.

    The kernel sends the signal, even if this process is killed. The child has its own process
    group, so Ctrl-C only reaches this process, which then stops its children in order. A `deaf`
    child ignores SIGTERM unless it installs its own handler.
    """
    how = (str(os.getpid()), str(int(signum)), "deaf" if deaf else "")
    return [sys.executable, "-I", "-S", _BOUND_CHILD, *how, *argv]
