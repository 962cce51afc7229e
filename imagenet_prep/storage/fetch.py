"""Reads remote files with retries, as ranges or as complete, verified files.

Functions raise IncompleteError if no retry is left, the file has changed or the disk is full, and
StoreError if the server refuses or the disk fails.
"""

from __future__ import annotations

import hashlib
import io
import os
import queue
import sys
import threading
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, BinaryIO

from imagenet_prep.core.errors import DataDamagedError
from imagenet_prep.core.regular_file import MOST_BYTES
from imagenet_prep.dataset.manifest import File
from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.storage.incoming import incoming
from imagenet_prep.storage.os_errors import storage_errors
from imagenet_prep.storage.remote import (
    CHUNK_BYTES,
    ChangedError,
    Remote,
    Stat,
    UnavailableError,
)
from imagenet_prep.storage.retry import RetryBudget, with_retries

_HASH_CHUNK_BYTES = 4 << 20


def stream(
    remote: Remote,
    name: str,
    stat: Stat,
    budget: RetryBudget,
    start: int = 0,
    stop: int | None = None,
    *,
    pinned: bool = True,
) -> Generator[bytes, None, None]:
    """Yields bytes [start, stop) of a remote file in order, by default to its end.

    Unless `pinned`, the caller verifies the sha256. Then the file may have a different ETag than
    `stat`, since the servers of a pool often have different ETags for the same file.
    """
    # A failed attempt continues at the point of failure. If the server cannot send ranges, read the
    # file from its start, and skip the bytes before that point.
    stop = stat.size if stop is None else stop
    position = start
    while position < stop:
        first = position if stat.ranges else 0
        again = position - first
        try:
            for chunk in remote.read(name, first, stop - first, stat):
                budget.succeeded()
                new = chunk[again:]
                again -= len(chunk) - len(new)
                position += len(new)
                if new:
                    yield new
        except UnavailableError as error:
            budget.wait(error)
        except ChangedError:
            if pinned or not stat.validator:
                raise
            stat = stat._replace(validator="")


def as_file(chunks: Iterator[bytes]) -> BinaryIO:
    """Returns chunks, such as those of `stream`, as a file that can be read once, in order."""
    return io.BufferedReader(_Chunks(chunks), CHUNK_BYTES)


def hashed(file: BinaryIO, hashes: Sequence[Any], most: int = sys.maxsize) -> Iterator[bytes]:
    """Hashes and yields the rest of a file in chunks, at most one chunk more than `most` bytes."""
    most += CHUNK_BYTES
    while most > 0 and (chunk := file.read(min(most, CHUNK_BYTES))):
        for digest in hashes:
            digest.update(chunk)
        most -= len(chunk)
        yield chunk


def fetch(
    remote: Remote, name: str, stat: Stat, start: int, stop: int, path: Path, budget: RetryBudget
) -> None:
    """Copies bytes [start, stop) of a remote file to the same position in `path`, and syncs it."""
    with storage_errors("write", path), open(path, "r+b") as file:
        file.seek(start)
        file.writelines(stream(remote, name, stat, budget, start, stop))
        file.flush()
        os.fdatasync(file.fileno())


def whole(remote: Remote, name: str, budget: RetryBudget, most: int = MOST_BYTES) -> bytes:
    """Returns the content of a remote file of at most `most` bytes."""
    stat = with_retries(lambda: remote.stat(name), budget)
    demand_small(remote.where(name), stat.size, most)
    try:
        return b"".join(stream(remote, name, stat, budget))
    except ChangedError:
        # All bytes come from one answer, so they are one version of the file.
        any_server = stat._replace(validator="")
        return with_retries(lambda: b"".join(remote.read(name, 0, stat.size, any_server)), budget)


def demand_small(where: str, size: int, most: int) -> None:
    """Raises DataDamagedError if a file has more than `most` bytes."""
    if size > most:
        raise DataDamagedError(
            f"{where}: has more than {most:,} bytes, so this program did not write it. Restore the "
            "original file."
        )


def contents(
    remote: Remote, file: File, budget: RetryBudget, remedy: str
) -> Generator[bytes, None, None]:
    """Yields a complete remote file after checking its size; does not verify its bytes."""
    stat = with_retries(lambda: remote.stat(file.name), budget)
    if stat.size != file.num_bytes:
        raise DataDamagedError(
            f"{remote.where(file.name)}: {stat.size:,} bytes, expected {file.num_bytes:,}. {remedy}"
        )
    yield from stream(remote, file.name, stat, budget, pinned=False)


def bring(
    remote: Remote,
    file: File,
    store: LocalStore,
    temporary: str,
    budget: RetryBudget,
    remedy: str,
    *,
    reserved: bool = False,
) -> os.stat_result:
    """Copies a remote file to a folder under the same name and verifies it; see `incoming`."""
    where = remote.where(file.name)
    with incoming(store, file, temporary, where, remedy, reserved=reserved) as arriving:
        for chunk in contents(remote, file, budget, remedy):
            arriving.append(chunk)
    return arriving.status


class _Chunks(io.RawIOBase):
    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            if (chunk := next(self._chunks, None)) is None:
                return 0
            self._rest = memoryview(chunk)
        size = min(len(buffer), len(self._rest))
        buffer[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size


class Hasher:
    """Computes the md5 of a file during the download, while its bytes are still in memory."""

    def __init__(self, path: Path, *, finished: bool = True) -> None:
        """Starts the thread, which waits for reported ranges unless the file is `finished`."""
        self.path = path
        self._size = path.stat().st_size
        self._ranges: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()
        if finished:
            self.finished(0, self._size)
        self._md5: Future[str] = Future()
        # A daemon thread does not block the exit if it waits for bytes of a failed download.
        threading.Thread(target=self._run, name="md5", daemon=True).start()

    def finished(self, start: int, num_bytes: int) -> None:
        """Reports that a range of the file is complete."""
        self._ranges.put((start, start + num_bytes))

    def hexdigest(self) -> str:
        """Waits until all ranges are reported and hashed; returns the md5."""
        with storage_errors("read", self.path):
            return self._md5.result()

    def _run(self) -> None:
        md5 = hashlib.md5(usedforsecurity=False)
        position = 0
        stop_of: dict[int, int] = {}
        try:
            with open(self.path, "rb", buffering=0) as file:
                while position < self._size:
                    while position not in stop_of:
                        start, stop_of[start] = self._ranges.get()
                    stop = stop_of[position]
                    while position < stop:
                        data = file.read(min(_HASH_CHUNK_BYTES, stop - position))
                        if not data:
                            raise OSError(f"it ends at byte {position:,}")
                        md5.update(data)
                        position += len(data)
            self._md5.set_result(md5.hexdigest())
        except BaseException as error:  # noqa: BLE001 - `hexdigest` raises it
            self._md5.set_exception(error)
