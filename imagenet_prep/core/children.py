"""Processes that this one starts: what their Python imports, and that they do not outlive it."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

# 1 is PR_SET_PDEATHSIG, which outlives exec. The kernel sends it when the thread ends that
# started the process, so that thread has to live as long as the child may.
_BOUND = """\
import ctypes, os, signal, sys
if os.getpgrp() != os.getpid():
    os.setpgid(0, 0)
if sys.argv[3] == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
ctypes.CDLL(None).prctl(1, int(sys.argv[2]))
if os.getppid() == int(sys.argv[1]):
    os.execvp(sys.argv[4], sys.argv[4:])
"""


def python(*words: str, program: str = sys.executable) -> list[str]:
    """Returns the command line of a Python that imports nothing from the current folder.

    Without -P both -m and -c look there first: a file called select.py in a folder that
    somebody else may write to would run.

    Args:
      *words: e.g. "-m", a module and its arguments.
      program: the interpreter, where it is that of another host.
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
    return [sys.executable, "-I", "-S", "-c", _BOUND, *how, *argv]
