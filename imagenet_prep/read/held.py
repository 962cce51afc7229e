"""A file that is open, and locked if asked for, as long as anybody refers to it."""

from __future__ import annotations

import fcntl
import os
import weakref
from pathlib import Path


class HeldFile:
    """One open file; the last reference closes it, so that no thread reads a closed descriptor.

    Attributes:
      descriptor: for os.pread and the like.
    """

    def __init__(self, path: Path, lock: int = 0) -> None:
        """Opens a file that is there.

        Args:
          path: the file.
          lock: how to lock it, as for fcntl.flock; 0 for not at all. The kernel frees the lock
            with the descriptor, so also when the process dies.

        Raises:
          BlockingIOError: with LOCK_NB: somebody else holds it.
          OSError: it cannot be opened.
        """
        # Network file systems want a file that is open for writing where a lock is exclusive.
        mode = os.O_RDWR if lock & fcntl.LOCK_EX else os.O_RDONLY
        self.descriptor = os.open(path, mode | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self.descriptor)
        if lock:
            fcntl.flock(self.descriptor, lock)
