"""Storage: byte ranges in, whole files out, nothing half visible.

A file appears under its name only after its bytes are on the disk: temporary name in
`.work/temporary`, fsync, rename, fsync of the folder. This is the only module that knows how;
`core/bucket` does the same with objects.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import mmap
import os
import shutil
import stat
import threading
import uuid
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self

from imagenet_prep.core import naming
from imagenet_prep.core.errors import (
    BusyError,
    ImagenetPrepError,
    IncompleteError,
    SourceError,
    StoreError,
)

if TYPE_CHECKING:
    from imagenet_prep.core.manifest import File

_TEMPORARY = "temporary"
_LARGE_WRITE_BYTES = 4 << 20


class Store(Protocol):
    """Where a data set lies: files that are whole or not there, by names relative to it.

    Picklable, and safe for threads, processes and machines.
    """

    @property
    def local(self) -> LocalStore:
        """What the processes of this machine share while they work on this data set."""

    def where(self, name: str = "") -> str:
        """Returns how messages call the data set, or a file of it."""

    def size(self, name: str) -> int | None:
        """Returns the bytes of a file, or None where there is none."""

    def sizes(self, names: Iterable[str]) -> dict[str, int]:
        """Returns the bytes of those files that are there."""

    def names(self, folder: str) -> list[str]:
        """Returns the sorted names of the files directly in `folder`."""

    def top(self) -> list[str]:
        """Returns the sorted names of files and folders beside the manifest."""

    def read(self, name: str) -> bytes:
        """Returns a whole small file."""

    def read_each(self, names: Iterable[str]) -> Iterator[bytes]:
        """Yields whole small files, in order."""

    def brought(self, names: Iterable[str]) -> contextlib.AbstractContextManager[Path]:
        """Yields a folder of this machine that holds those of these files that are there."""

    def temporary(self) -> Path:
        """Returns an unused path for `publish`."""

    def publish(self, temporary: Path, name: str, sha256: str | None = None) -> None:
        """Makes an fsynced temporary file visible as `name`; `sha256` is what it must have."""

    def write(self, name: str, data: bytes) -> None:
        """Publishes a whole small file."""

    def claim(self, name: str, data: bytes) -> bytes:
        """Publishes a small file unless there is one; returns what is there now."""

    def share(self, names: Iterable[str]) -> None:
        """Lets workers on other machines read these small files of `local` too."""

    def confirm(self, files: Iterable[File]) -> None:
        """Raises IncompleteError unless all these files are there as they were published."""

    def remove_tree(self, name: str) -> None:
        """Removes a folder of work files; absent is fine."""

    def lock(self) -> contextlib.AbstractContextManager[None]:
        """Holds the data set for one writing run, as far as that is needed."""


def open_store(base: str) -> Store:
    """Returns the data set at `base`, a folder or s3://bucket/prefix; nothing is asked yet.

    Raises:
      UsageError: credentials cannot be loaded, or boto3 is not installed.
    """
    if base.startswith("s3://"):
        # It costs half a second, and boto3 may not be there.
        from imagenet_prep.core.bucket import BucketStore

        return BucketStore(base)
    return LocalStore(Path(base).expanduser())


class LocalStore:
    """A folder on a local or shared file system. Picklable, safe for threads and processes.

    Attributes:
      root: the data set's folder.
    """

    def __init__(self, root: Path, called: str = "") -> None:
        """Begins; nothing is made.

        Args:
          root: the folder.
          called: how messages call it, where it stands for something else.
        """
        self.root = root
        self._called = called or str(root)

    @property
    def local(self) -> LocalStore:
        """As for `Store`: this very folder."""
        return self

    def where(self, name: str = "") -> str:
        """As for `Store`."""
        return f"{self._called}/{name}" if name else self._called

    def path(self, name: str) -> Path:
        """Returns where `name`, relative to the data set, is or would be."""
        return self.root / name

    def size(self, name: str) -> int | None:
        """Returns the bytes of a published file, or None where there is none."""
        try:
            status = self.path(name).stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return status.st_size if stat.S_ISREG(status.st_mode) else None

    def sizes(self, names: Iterable[str]) -> dict[str, int]:
        """As for `Store`."""
        return {name: size for name in names if (size := self.size(name)) is not None}

    def top(self) -> list[str]:
        """As for `Store`."""
        return sorted(path.name for path in self.root.iterdir()) if self.root.is_dir() else []

    def names(self, folder: str) -> list[str]:
        """Returns the sorted file names directly in `folder`; empty where it is absent."""
        try:
            with os.scandir(self.path(folder)) as entries:
                return sorted(entry.name for entry in entries if entry.is_file())
        except (FileNotFoundError, NotADirectoryError):
            return []

    def read(self, name: str) -> bytes:
        """Returns a whole small file.

        Raises:
          StoreError: it cannot be read.
        """
        with storage_errors("read", self.path(name)):
            return self.path(name).read_bytes()

    def read_each(self, names: Iterable[str]) -> Iterator[bytes]:
        """As for `Store`."""
        return map(self.read, names)

    def brought(self, names: Iterable[str]) -> contextlib.AbstractContextManager[Path]:  # noqa: ARG002
        """As for `Store`: they are here."""
        return contextlib.nullcontext(self.root)

    def temporary(self) -> Path:
        """Returns an unused path on the same file system for `publish` to rename."""
        folder = self.path(naming.WORK) / _TEMPORARY
        with storage_errors("create", folder):
            folder.mkdir(parents=True, exist_ok=True)
        return folder / uuid.uuid4().hex

    def remove_temporaries(self) -> None:
        """Removes what killed runs left unpublished; the caller holds the lock."""
        self.remove_tree(f"{naming.WORK}/{_TEMPORARY}")

    def publish(self, temporary: Path, name: str, sha256: str | None = None) -> None:  # noqa: ARG002
        """Makes an fsynced temporary file visible as `name`, replacing what was there."""
        target = self.path(name)
        with storage_errors("publish", target):
            target.parent.mkdir(parents=True, exist_ok=True)
            temporary.replace(target)
            _sync_folder(target.parent)

    def write(self, name: str, data: bytes) -> None:
        """Writes a whole small file atomically and durably.

        Raises:
          IncompleteError: the disk is full.
          StoreError: anything else the system refuses.
        """
        temporary = self.temporary()
        with storage_errors("write", self.path(name)):
            try:
                with open(temporary, "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                self.publish(temporary, name)
            finally:
                temporary.unlink(missing_ok=True)

    def claim(self, name: str, data: bytes) -> bytes:
        """As for `Store`; the caller holds the lock and has looked at what was there."""
        self.write(name, data)
        return data

    def share(self, names: Iterable[str]) -> None:
        """As for `Store`: they share this folder."""

    def confirm(self, files: Iterable[File]) -> None:
        """As for `Store`: a file that was synced and renamed is there."""

    def remove_tree(self, name: str) -> None:
        """Removes a folder of work files; absent is fine."""
        shutil.rmtree(self.path(name), ignore_errors=True)

    def free_bytes(self) -> int:
        """Returns the bytes that can still be written here."""
        folder = self.root
        while not folder.exists():
            folder = folder.parent
        return shutil.disk_usage(folder).free

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Holds the data set for one writing run; the kernel frees it when the run dies.

        Raises:
          BusyError: another run holds it.
          StoreError: this file system has no locks.
        """
        path = self.path(naming.WORK) / "lock"
        with storage_errors("create", path):
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            with storage_errors("lock", path):
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError as error:
                    owner = os.pread(descriptor, 200, 0).decode(errors="replace").strip()
                    raise BusyError(
                        f"{self.where()} is being written by another run ({owner or 'unknown'}). "
                        "Wait for it, or stop it, then run this again."
                    ) from error
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"pid {os.getpid()} on {os.uname().nodename}\n".encode(), 0)
            yield
        finally:
            os.close(descriptor)


class ArchiveReader:
    """Reads byte ranges of archives; one open descriptor an archive, shared by all threads.

    Picklable: a copy in another process opens its own descriptors.
    """

    def __init__(self, archives: dict[str, Path]) -> None:
        self._archives = archives
        self._descriptors: dict[str, int] = {}
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Path]:
        return self._archives

    def __setstate__(self, archives: dict[str, Path]) -> None:
        self.__init__(archives)  # type: ignore[misc]

    def size(self, archive: str) -> int:
        """Returns the bytes of an archive."""
        return os.fstat(self._descriptor(archive)).st_size

    def read(self, archive: str, offset: int, size: int) -> bytes:
        """Returns exactly `size` bytes at `offset`.

        Raises:
          SourceError: the archive ends before, or cannot be read there.
        """
        descriptor = self._descriptor(archive)
        try:
            data = os.pread(descriptor, size, offset)
            while len(data) < size:
                more = os.pread(descriptor, size - len(data), offset + len(data))
                if not more:
                    break
                data += more
        except OSError as error:
            raise SourceError(
                f"{self._archives[archive]}: cannot read {size:,} bytes at byte {offset:,}: "
                f"{error.strerror}. Check the disk that holds it."
            ) from error
        if len(data) < size:
            raise SourceError(
                f"{self._archives[archive]}: ends at byte {offset + len(data):,}, expected at "
                f"least {offset + size:,}. The archive is truncated: download it again."
            )
        return data

    def will_need(self, archive: str, ranges: Iterable[tuple[int, int]]) -> None:
        """Tells the kernel which (offset, size) ranges come soon; it reads them ahead in order."""
        descriptor = self._descriptor(archive)
        for offset, size in ranges:
            # Advice only: a file system that ignores it is merely slower.
            with contextlib.suppress(OSError):
                os.posix_fadvise(descriptor, offset, size, os.POSIX_FADV_WILLNEED)

    def _descriptor(self, archive: str) -> int:
        with self._lock:
            if archive not in self._descriptors:
                path = self._archives[archive]
                try:
                    self._descriptors[archive] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                except OSError as error:
                    raise ImagenetPrepError(
                        f"{path}: cannot be opened: {error.strerror}. "
                        "Check the path and the permissions."
                    ) from error
            return self._descriptors[archive]


class LargeFile:
    """A large file that is written once, from its start, hashed on the way, and synced.

    Written past the page cache (O_DIRECT) where the file system allows: copying 150 GB into
    the cache and waiting for it to be written back costs three times as much, and drives out
    the archives that the other workers are reading.

    Attributes:
      num_bytes: appended so far.
      sha256: hex digest of the whole; valid after `close`.
    """

    def __init__(self, path: Path) -> None:
        """Creates the file; the caller closes it.

        Raises:
          OSError: it exists, or cannot be created.
        """
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
        try:
            self._descriptor = os.open(path, flags | os.O_DIRECT, 0o644)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            path.unlink(missing_ok=True)
            self._descriptor = os.open(path, flags, 0o644)
        # A mapping begins at a page, as O_DIRECT demands. One is filled while the other is
        # hashed and written.
        self._buffer, self._spare = (mmap.mmap(-1, _LARGE_WRITE_BYTES) for _ in range(2))
        self._filled = 0
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="write")
        self._writing: Future[None] | None = None
        self._hash = hashlib.sha256()
        self.num_bytes = 0
        self.sha256 = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                self._finish()
        finally:
            self._writer.shutdown()
            os.close(self._descriptor)

    def append(self, part: bytes) -> None:
        """Appends bytes; they are copied.

        Raises:
          OSError: the disk is full or failed, now or at an earlier call.
        """
        self.num_bytes += len(part)
        start = 0
        while start < len(part):
            stop = min(len(part), start + _LARGE_WRITE_BYTES - self._filled)
            after = self._filled + stop - start
            self._buffer[self._filled : after] = part[start:stop]
            self._filled, start = after, stop
            if self._filled == _LARGE_WRITE_BYTES:
                self._wait()
                self._writing = self._writer.submit(self._write, self._buffer, self._filled)
                self._buffer, self._spare = self._spare, self._buffer
                self._filled = 0

    def _wait(self) -> None:
        if self._writing is not None:
            self._writing.result()

    def _write(self, buffer: mmap.mmap, size: int) -> None:
        with memoryview(buffer) as whole, whole[:size] as filled:
            self._hash.update(filled)
            written = 0
            while written < size:
                with filled[written:] as rest:
                    try:
                        written += os.write(self._descriptor, rest)
                    except OSError as error:
                        # Some file systems refuse O_DIRECT only here, or for an odd rest.
                        if error.errno != errno.EINVAL or not self._past_cache:
                            raise
                        self._use_cache()

    def _finish(self) -> None:
        self._wait()
        # The last bytes fill no block.
        self._use_cache()
        self._write(self._buffer, self._filled)
        os.fsync(self._descriptor)
        self.sha256 = self._hash.hexdigest()

    @property
    def _past_cache(self) -> bool:
        return bool(fcntl.fcntl(self._descriptor, fcntl.F_GETFL) & os.O_DIRECT)

    def _use_cache(self) -> None:
        flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)
        fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags & ~os.O_DIRECT)


@contextlib.contextmanager
def storage_errors(action: str, path: Path) -> Iterator[None]:
    """Turns the system's errors into ours: a full disk is resumable, the rest is not."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise IncompleteError(
                f"cannot {action} {path}: {error.strerror}. Finished shards are kept. "
                "Free some space, then run the same command again to resume."
            ) from error
        raise StoreError(f"cannot {action} {path}: {error.strerror or error}") from error


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
