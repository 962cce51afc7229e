"""Receives a file into a folder: hashes and verifies it before it gets its final name."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from io import FileIO
from pathlib import Path

from imagenet_prep.core.errors import DataDamagedError
from imagenet_prep.dataset.manifest import File
from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.storage.os_errors import storage_errors

# Sync after this number of bytes: a single sync at the end would delay the next file.
_SYNC_BYTES = 16 << 20


@contextlib.contextmanager
def incoming(
    store: LocalStore,
    file: File,
    temporary: str,  # name of the incomplete file, which may have only one writer at a time
    where: str,  # name of the file in messages
    remedy: str,  # the advice if its sha256 is wrong
    *,
    start: int = 0,  # number of bytes that an earlier attempt has received
    reserved: bool = False,  # whether the file already has its full length, to reserve disk space
    kept: tuple[type[BaseException], ...] = (),  # errors after which received bytes stay
) -> Iterator[Incoming]:
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
            arriving = Incoming(path, opened, syncer, start)
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


class Incoming:
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
