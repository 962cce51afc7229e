"""A file that arrives in a folder: hashed on the way, proven, and only then under its name."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from io import FileIO
from pathlib import Path

from imagenet_prep.core.errors import DataDamagedError
from imagenet_prep.dataset.manifest import File
from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.storage.os_errors import storage_errors

# A shard that is synced only at its end holds up what comes after it.
_SYNC_BYTES = 16 << 20


@contextlib.contextmanager
def incoming(
    store: LocalStore,
    file: File,
    temporary: str,
    where: str,
    remedy: str,
    *,
    start: int = 0,
    reserved: bool = False,
    kept: tuple[type[BaseException], ...] = (),
) -> Iterator[Incoming]:
    """Yields a file to append bytes to; on leaving it is verified, synced and has its name.

    Args:
      temporary: the name under which it grows; one writer at a time.
      where: how errors call the file.
      remedy: the advice if its bytes are wrong.
      start: the bytes of an earlier attempt to continue.
      reserved: the temporary file has its full length already, to reserve the disk.
      kept: errors that leave the bytes for a later attempt.
    """
    path = store.path(temporary)
    with storage_errors("write", path):
        store.make_folder(temporary.rpartition("/")[0])
        if not start and not reserved:
            # Others may still be reading what broke off here: theirs stays theirs.
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
                # The next run would read these bytes from memory, though the disk may lack them.
                arriving.sync()
                raise
            if arriving.sha256 != file.sha256:
                raise DataDamagedError(
                    f"{where}: sha256 {arriving.sha256} arrived, expected {file.sha256}. {remedy}"
                )
            arriving.sync()
            store.publish(path, file.name)
            # The new name has changed the file's ctime.
            arriving.status = os.fstat(opened.fileno())
    except BaseException as error:
        if not isinstance(error, kept):
            with contextlib.suppress(OSError):  # the error that is on its way tells more
                path.unlink()
        raise


class Incoming:
    """A file that is arriving; it has a status once it has its name."""

    status: os.stat_result

    def __init__(self, path: Path, file: FileIO, syncer: ThreadPoolExecutor, start: int) -> None:
        """Takes the first `start` bytes of a file as if they had just come."""
        self._path = path
        self._file = file
        self._hash = hashlib.sha256()
        self._syncer = syncer
        self._syncing: Future[None] | None = None
        self._unsynced_bytes = 0
        if start:
            with storage_errors("read", path):
                # A signal would end the file object's own `truncate`; this call goes on.
                os.ftruncate(file.fileno(), start)
                hashlib.file_digest(file, lambda: self._hash)

    @property
    def sha256(self) -> str:
        """Of what has arrived, as hex digits."""
        return self._hash.hexdigest()

    def append(self, part: bytes | memoryview) -> None:
        """Writes bytes at its end."""
        with storage_errors("write", self._path), memoryview(part) as view:
            written = 0
            while written < len(view):
                with view[written:] as rest:
                    written += self._file.write(rest)
            self._hash.update(view)
            self._unsynced_bytes += len(view)
            if self._unsynced_bytes >= _SYNC_BYTES and (
                self._syncing is None or self._syncing.done()
            ):
                if self._syncing is not None:
                    self._syncing.result()
                self._syncing = self._syncer.submit(os.fdatasync, self._file.fileno())
                self._unsynced_bytes = 0

    def sync(self) -> None:
        """Syncs the bytes that have arrived; nothing can be appended any more."""
        with storage_errors("write", self._path):
            if self._syncing is not None:
                # The system tells an error once: the last sync in the background may have met it.
                self._syncing.result()
            os.fsync(self._file.fileno())
