"""Fetches files into a folder: hashes and verifies each file before it gets its final name.

Functions raise IncompleteError if no retry is left, the file has changed or the disk is full, and
StoreError if the server refuses or the disk fails.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import queue
import threading
import uuid
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from io import FileIO
from pathlib import Path

from imagenet_prep.core.errors import DataDamagedError
from imagenet_prep.dataset.manifest import DatasetFile
from imagenet_prep.storage.folder import TEMPORARY, LocalStore
from imagenet_prep.storage.local_file import storage_errors
from imagenet_prep.storage.remote import RetryBudget, Stat
from imagenet_prep.storage.store import Readable

# Sync after this number of bytes: a single sync at the end would delay the next file.
_SYNC_BYTES = 16 << 20


@contextlib.contextmanager
def incoming(
    store: LocalStore,
    file: DatasetFile,
    temporary: str,  # name of the incomplete file, which may have only one writer at a time
    where: str,  # name of the file in messages
    remedy: str,  # the advice if its sha256 is wrong
    *,
    start: int = 0,  # number of bytes that an earlier attempt has received
    reserved: bool = False,  # whether the file already has its full length, to reserve disk space
    kept: tuple[type[BaseException], ...] = (),  # errors after which received bytes stay
) -> Iterator[IncomingFile]:
    """Yields a file to append bytes to; on exit, verifies, syncs and renames it."""
    path = store.path(temporary)
    with storage_errors("write", path):
        store.make_folder(temporary.rpartition("/")[0])
        if not start and not reserved:
            # Create a new file: others may still be reading the unfinished one.
            path.unlink(missing_ok=True)
        descriptor = store.open(temporary, os.O_CREAT | os.O_RDWR)
    try:
        with (
            os.fdopen(descriptor, "r+b", buffering=0) as opened,
            ThreadPoolExecutor(1) as syncer,
        ):
            arriving = IncomingFile(path, opened, syncer, start)
            try:
                yield arriving
            except kept:
                # Sync now, so that the next run does not resume after bytes that are not on disk.
                arriving.sync()
                raise
            if arriving.sha256 != file.sha256:
                raise DataDamagedError(
                    f"{where}: sha256 {arriving.sha256} arrived, expected {file.sha256}. {remedy}"
                )
            arriving.sync()
            store.publish(path, file.name)
            # Read the status only now, because renaming changes the ctime.
            arriving.status = os.fstat(opened.fileno())
    except BaseException as error:
        if not isinstance(error, kept):
            with contextlib.suppress(OSError):  # the original error says more
                path.unlink()
        raise


class IncomingFile:
    """A file being received; `status` is set once it has its final name."""

    status: os.stat_result

    def __init__(self, path: Path, file: FileIO, syncer: ThreadPoolExecutor, start: int) -> None:
        """Hashes the first `start` bytes of the file, and truncates the file after them."""
        self._path = path
        self._file = file
        self._hash = hashlib.sha256()
        self._syncer = syncer
        self._syncing = syncer.submit(lambda: None)
        self._unsynced_bytes = 0
        if start:
            with storage_errors("read", path):
                # A signal would interrupt the file object's own `truncate`, but not this call.
                os.ftruncate(file.fileno(), start)
                hashlib.file_digest(file, lambda: self._hash)

    @property
    def sha256(self) -> str:
        """The sha256 of the bytes received so far, in hex."""
        return self._hash.hexdigest()

    def append(self, part: bytes | memoryview) -> None:
        """Appends bytes to the file."""
        with storage_errors("write", self._path), memoryview(part) as view:
            written = 0
            while written < len(view):
                with view[written:] as rest:
                    written += self._file.write(rest)
            self._hash.update(view)
            self._unsynced_bytes += len(view)
            if self._unsynced_bytes >= _SYNC_BYTES and self._syncing.done():
                self._syncing.result()
                self._syncing = self._syncer.submit(os.fdatasync, self._file.fileno())
                self._unsynced_bytes = 0

    def sync(self) -> None:
        """Syncs the received bytes; nothing can be appended afterwards."""
        with storage_errors("write", self._path):
            # The system reports each error once, perhaps to the last sync in the background.
            self._syncing.result()
            os.fsync(self._file.fileno())


_HASH_CHUNK_BYTES = 4 << 20


def fetch(
    source: Readable, name: str, stat: Stat, start: int, stop: int, path: Path, budget: RetryBudget
) -> None:
    """Copies bytes [start, stop) of a file to the same position in `path`, and syncs it."""
    with storage_errors("write", path), open(path, "r+b") as file:
        file.seek(start)
        file.writelines(source.chunks(name, stat, start, stop, budget))
        file.flush()
        os.fdatasync(file.fileno())


def contents(source: Readable, file: DatasetFile, remedy: str) -> Generator[bytes, None, None]:
    """Yields a complete file after checking its size; does not verify its bytes."""
    stat = source.stat(file.name)
    if stat.size != file.num_bytes:
        raise DataDamagedError(
            f"{source.where(file.name)}: {stat.size:,} bytes, expected {file.num_bytes:,}. {remedy}"
        )
    yield from source.chunks(file.name, stat, pinned=False)


def bring(
    source: Readable,
    file: DatasetFile,
    store: LocalStore,
    remedy: str,
    temporary: str = "",  # "" for a new name
    *,
    reserved: bool = False,
) -> os.stat_result:
    """Copies a file to a folder under the same name and verifies it; see `incoming`."""
    where = source.where(file.name)
    temporary = temporary or f"{TEMPORARY}/{uuid.uuid4().hex}"
    with incoming(store, file, temporary, where, remedy, reserved=reserved) as arriving:
        for chunk in contents(source, file, remedy):
            arriving.append(chunk)
    return arriving.status


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
        stop_by_start: dict[int, int] = {}
        try:
            with open(self.path, "rb", buffering=0) as file:
                while position < self._size:
                    while position not in stop_by_start:
                        start, stop_by_start[start] = self._ranges.get()
                    stop = stop_by_start[position]
                    while position < stop:
                        data = file.read(min(_HASH_CHUNK_BYTES, stop - position))
                        if not data:
                            raise OSError(f"it ends at byte {position:,}")
                        md5.update(data)
                        position += len(data)
            self._md5.set_result(md5.hexdigest())
        except BaseException as error:  # noqa: BLE001 - `hexdigest` raises it
            self._md5.set_exception(error)
