"""One range of a remote file into a local one: retried, on the disk, hashed on the way."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Generator
from pathlib import Path

from imagenet_prep.storage.folder import storage_errors
from imagenet_prep.storage.remote import Remote, Stat, UnavailableError
from imagenet_prep.storage.retry import RetryBudget

_HASH_CHUNK_BYTES = 4 << 20


def fetch(
    remote: Remote, name: str, stat: Stat, start: int, stop: int, path: Path, budget: RetryBudget
) -> None:
    """Leaves bytes [start, stop) of a remote file at the same place of `path`, on the disk.

    A failed attempt is continued from the byte reached, or from `start` where the remote
    file cannot be read from the middle.

    Raises:
      IncompleteError: the budget is spent, the file has changed, or the disk is full.
      StoreError: the server refuses, or the disk fails.
    """
    with storage_errors("open", path):
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        position = start
        while position < stop:
            try:
                for chunk in remote.read(name, position, stop - position, stat):
                    with storage_errors("write", path):
                        _write_at(descriptor, chunk, position)
                    position += len(chunk)
                    budget.succeeded()
            except UnavailableError as error:
                if not stat.ranges:
                    position = start
                budget.wait(error)
        with storage_errors("write", path):
            os.fdatasync(descriptor)
    finally:
        os.close(descriptor)


def stream(
    remote: Remote, name: str, stat: Stat, budget: RetryBudget
) -> Generator[bytes, None, None]:
    """Yields a whole remote file in order; a failed attempt is continued where it broke off.

    Raises:
      IncompleteError: the budget is spent, or the file has changed.
      StoreError: the server refuses, or cannot read from the middle.
    """
    position = 0
    while position < stat.size:
        try:
            for chunk in remote.read(name, position, stat.size - position, stat):
                position += len(chunk)
                yield chunk
                budget.succeeded()
        except UnavailableError as error:
            budget.wait(error)


def _write_at(descriptor: int, data: bytes, position: int) -> None:
    with memoryview(data) as view:
        written = 0
        while written < len(view):
            with view[written:] as rest:
                written += os.pwrite(descriptor, rest, position + written)


class Hasher:
    """Computes a file's md5 behind the fetching, while its bytes are still in memory.

    Attributes:
      path: the file, at its full length.
    """

    def __init__(self, path: Path, *, finished: bool = True) -> None:
        """Starts; unless the file is finished, bytes are read once `finished` has named them."""
        self.path = path
        self._size = path.stat().st_size
        self._stop_of = {0: self._size} if finished else {}
        self._news = threading.Condition()
        self._md5 = hashlib.md5(usedforsecurity=False)
        self._error: OSError | None = None
        # A daemon: where the fetching fails nobody waits for what cannot come.
        self._thread = threading.Thread(target=self._run, name="md5", daemon=True)
        self._thread.start()

    def finished(self, start: int, num_bytes: int) -> None:
        """Notes that a range of the file is there."""
        with self._news:
            self._stop_of[start] = start + num_bytes
            self._news.notify()

    def hexdigest(self) -> str:
        """Returns the md5 once every range was noted.

        Raises:
          StoreError: the file cannot be read.
        """
        self._thread.join()
        with storage_errors("read", self.path):
            if self._error is not None:
                raise self._error
        return self._md5.hexdigest()

    def _run(self) -> None:
        try:
            with open(self.path, "rb", buffering=0) as file:
                position = 0
                while position < self._size:
                    with self._news:
                        while position not in self._stop_of:
                            self._news.wait()
                    stop = self._stop_of[position]
                    while position < stop:
                        data = file.read(min(_HASH_CHUNK_BYTES, stop - position))
                        if not data:
                            raise OSError(f"it ends at byte {position:,}")
                        self._md5.update(data)
                        position += len(data)
        except OSError as error:
            self._error = error
