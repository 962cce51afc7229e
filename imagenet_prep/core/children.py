"""Processes that this one starts: what their Python imports, and that they do not outlive it."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

_BOUND_CHILD = str(Path(__file__).with_name("bound_child.py"))


def python(*words: str, program: str = sys.executable) -> list[str]:
    """Returns the command line of a Python that imports nothing from the current folder.

    Without -P, -m and -c look there first: somebody else's file select.py would run.
    """
    return [program, "-P", *words]


def bound(
    argv: Sequence[str], signum: signal.Signals = signal.SIGKILL, *, deaf: bool = False
) -> list[str]:
    """Returns the command line of a process that gets `signum` when this one ends, however.

    It has a process group of its own: Ctrl-C at a terminal reaches only this process, which
    ends its children in order. A `deaf` one ignores SIGTERM, unless it asks for it itself.
    """
    how = (str(os.getpid()), str(int(signum)), "deaf" if deaf else "")
    return [sys.executable, "-I", "-S", _BOUND_CHILD, *how, *argv]
