"""Runs a command that ends when its parent process ends: see `children.bound`.

The arguments are: the parent's process ID; the signal to send to the command when the parent ends;
"deaf" (to ignore SIGTERM) or ""; the command line. Python runs this file without site-packages.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(parent: int, signum: int, hearing: str, argv: list[str]) -> None:
    """Replaces this process with the command, unless the parent has already ended."""
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)
    if hearing == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # This setting survives exec. The kernel sends the signal when the thread that started this
    # process ends, so that thread must live as long as the child.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signum)
    if os.getppid() == parent:
        os.execvp(argv[0], argv)  # noqa: S606 - the parent chose the arguments


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4:])
