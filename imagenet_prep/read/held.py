"""A file that stays open, and locked if wanted, while anything refers to it."""

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
          lock: flags of fcntl.flock; 0 for no lock. The kernel releases the lock with the
            descriptor, so also when the process dies.

        Raises:
          BlockingIOError: with LOCK_NB: another process holds the lock.
          OSError: it cannot be opened.
        """
        # Network file systems allow an exclusive lock only for files that are open for writing.
        mode = os.O_RDWR if lock & fcntl.LOCK_EX else os.O_RDONLY
        self.descriptor = os.open(path, mode | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self.descriptor)
        if lock:
            fcntl.flock(self.descriptor, lock)
