"""A program that becomes another one, which ends when its parent ends: see `children.bound`.

Its words are the parent's process number, the number of the signal that the parent's end sends,
"deaf" or "", and the other program's command line. Python runs this file without site-packages.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(parent: int, signum: int, hearing: str, argv: list[str]) -> None:
    """Replaces this process by another program, unless the parent has ended already."""
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)
    if hearing == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # This outlives exec. The kernel sends the signal when the thread ends that started the process,
    # so that thread has to live as long as the child may.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signum)
    if os.getppid() == parent:
        os.execvp(argv[0], argv)  # noqa: S606 - the parent has chosen the words


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4:])
