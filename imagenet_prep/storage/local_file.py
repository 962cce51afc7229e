"""Opens, locks, writes and syncs local files; refuses planted links and explains errors.

A dataset from elsewhere can contain a `.work` with links to the user's own files. Paths below
`.work` and `columns` are therefore opened one part at a time, and no part may be a link. The kernel
releases locks when the process ends.

Linux reports a failed write only to descriptors that were open at that time, so the writer of a
file must also sync it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import functools
import hashlib
import io
import mmap
import os
import resource
import stat
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Self

from imagenet_prep.core import small_files
from imagenet_prep.core.errors import (
    BusyError,
    DataDamagedError,
    ImagenetPrepError,
    IncompleteError,
    StoreError,
    kept_work,
    of_memory,
)
from imagenet_prep.core.small_files import UNSUPPORTED, FileKind, fsync_folder
from imagenet_prep.dataset import schema

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

# A wrong path, or a wrong size or offset in a file, can cause these errors.
_CAUSED_BY_INPUT = (
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.EINVAL,
    errno.EOVERFLOW,
)
CHECK_DISK = (
    "Check the disk or the file server, and the permissions, then run the same command again."
)


@contextlib.contextmanager
def storage_errors(action: str, path: Path) -> Iterator[None]:
    """Translates an OSError into IncompleteError if the disk is full, otherwise into StoreError."""
    try:
        yield
    except OSError as error:
        raise _explained(action, path, error) from error


def _explained(action: str, path: Path, error: OSError) -> IncompleteError | StoreError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return IncompleteError(
            f"cannot {action} {path}: {error.strerror}. {kept_work()}Free some space, then run the "
            "same command again."
        )
    advice = ". Raise the limit: ulimit -n" if error.errno == errno.EMFILE else ""
    return StoreError(f"cannot {action} {path}: {error.strerror or error}{advice}")


class ReadableFile(io.FileIO):
    """An unbuffered file for reading; its errors are StoreErrors that name the file."""

    def __init__(self, descriptor: int, path: Path) -> None:
        super().__init__(descriptor)
        self._path = path

    def readinto(self, buffer: memoryview) -> int | None:  # type: ignore[override]
        """Reads bytes into a buffer; returns their number."""
        try:
            return super().readinto(buffer)
        except OSError as error:
            require_disk(self._path, error)
            raise _explained("read", self._path, error) from error


def require_disk(where: object, error: Exception) -> None:
    """Raises StoreError if the system could not read a file, or IncompleteError for lack of memory.

    The file may then be undamaged. Libraries also raise an OSError, without a number, for damaged
    data.
    """
    lack = of_memory(error)
    if lack is not None:
        raise IncompleteError(f"{where}: cannot be read: {lack}") from error
    if isinstance(error, OSError) and error.errno not in (None, *_CAUSED_BY_INPUT):
        message = f"{where}: cannot be read: {error.strerror}. {CHECK_DISK}"
        raise StoreError(message, CHECK_DISK) from error


@contextlib.contextmanager
def removed_on_failure(*paths: Path) -> Iterator[None]:
    """Removes unfinished files if the block fails."""
    try:
        yield
    except BaseException:
        for path in paths:
            # Ignore a second error: the first one says more.
            with contextlib.suppress(OSError):
                path.unlink()
        raise


FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def require_inside(name: str) -> str:
    """Returns a relative name; raises DataDamagedError if it leads outside of the dataset."""
    try:
        return schema.require_relative_name(name)
    except ValueError as error:
        raise DataDamagedError(
            f"{error}. Nothing was read or written there. The name comes from a manifest, receipt "
            "or similar file that this program did not write. Remove that file, or fetch it again."
        ) from None


def open_inside(root: Path, name: str, flags: int, opened: OpenFolder | None = None) -> int:
    """Opens a file; only `root` may be a link. The caller closes the returned descriptor.

    `opened` is the folder of the file, if the caller has opened it.
    """
    folder, _, file = schema.require_relative_name(name).rpartition("/")
    with opened or folder_inside(root, folder) as place, _links_refused(root, name):
        return os.open(file, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644, dir_fd=place)


def stat_inside(root: Path, name: str, opened: OpenFolder | None = None) -> os.stat_result:
    """Returns the stat result of a file or folder below `root`; `opened` as for `open_inside`."""
    folder, _, file = schema.require_relative_name(name).rpartition("/")
    with opened or folder_inside(root, folder) as place:
        status = os.stat(file, dir_fd=place, follow_symlinks=False)
    if stat.S_ISLNK(status.st_mode):
        raise refusal(root, name)
    return status


def refuse_other_kinds(root: Path, folder: str) -> None:
    """Raises DataDamagedError if a folder of a dataset exists and is a link or no folder."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        if not stat.S_ISDIR((root / folder).lstat().st_mode):
            raise DataDamagedError(str(refusal(root, folder)))


@contextlib.contextmanager
def folder_inside(root: Path, name: str = "", *, make: bool = False) -> Iterator[int]:
    """Yields a `dir_fd` for a folder below `root`; raises like `open_inside`."""
    parts = schema.require_relative_name(name).split("/") if name else []
    if make:
        _make_durably(root)
    place = os.open(root, FOLDER)
    try:
        for part in parts:
            with _links_refused(root, name):
                inner = _open_folder(place, part, make=make)
            # With this order, an interrupt may leave a descriptor open, but never closes one twice.
            outer, place = place, inner
            os.close(outer)
        yield place
    finally:
        os.close(place)


class OpenFolder:
    """A folder below `root` that stays open until the last reference to this object is gone.

    An open folder cannot become a link, so only its opening has to refuse links. Several threads
    may use the descriptor at the same time, but not to list the folder: they share its position.
    """

    def __init__(self, root: Path, name: str, *, make: bool) -> None:
        """Opens the folder as `folder_inside` does."""
        self._path = root / name
        with folder_inside(root, name, make=make) as place:
            self._status = os.fstat(place)
            self._descriptor = os.dup(place)
        weakref.finalize(self, os.close, self._descriptor)

    def __enter__(self) -> int:
        """Returns the `dir_fd`, which is valid in the block."""
        return self._descriptor

    def __exit__(self, *_: object) -> None:
        """Closes nothing: other blocks may use the folder."""

    def is_there(self) -> bool:
        """Returns whether the folder was not removed, renamed or replaced, and is no link."""
        try:
            status = self._path.lstat()
        except OSError:
            return False
        return os.path.samestat(status, self._status)


def is_only_ours(status: os.stat_result) -> bool:
    """Returns whether only this user or root can have written the file with this stat result."""
    return status.st_uid in (os.geteuid(), 0) and not status.st_mode & 0o022


def refusal(root: Path, name: str = "") -> StoreError | DataDamagedError:
    """Returns the error for a path that this program did not create."""
    kind = DataDamagedError if name.partition("/")[0] == schema.COLUMNS else StoreError
    return kind(
        f"{root / name}: the file, or a folder above it, is a link or of the wrong kind. It was "
        "not opened. Remove it, but no file to which it leads, then run the same command again."
    )


def _open_folder(place: int, part: str, *, make: bool) -> int:
    try:
        return os.open(part, FOLDER | os.O_NOFOLLOW, dir_fd=place)
    except FileNotFoundError:
        if not make:
            raise
    with contextlib.suppress(FileExistsError):
        os.mkdir(part, dir_fd=place)
    # Without this sync, a crash could remove the folder and the synced files in it.
    fsync_folder(place)
    return os.open(part, FOLDER | os.O_NOFOLLOW, dir_fd=place)


def _make_durably(folder: Path) -> None:
    """Makes a folder and its missing parents, so that they survive a crash."""
    if folder.is_dir():
        return
    _make_durably(folder.parent)
    folder.mkdir(exist_ok=True)
    sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Syncs the names of the files in a folder to the disk."""
    with folder_inside(folder) as place:
        fsync_folder(place)


@contextlib.contextmanager
def _links_refused(root: Path, name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        # ENXIO: a pipe without a reader, or a socket.
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.ENXIO):
            raise refusal(root, name) from error
        raise


_ATTEMPTS = 10
_PAUSE_S = 0.1


class NoLocksError(StoreError):
    """The file system has no locks."""


@contextlib.contextmanager
def locked(
    open_file: Callable[[], int], *, path: Path, where: str, shared: bool = False
) -> Iterator[int]:
    """Locks a file and writes this process's pid and host to it; yields its descriptor.

    Several processes may hold a `shared` lock. `where` is for messages.
    """
    operation = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    descriptor = _locked(open_file, path, where, operation)
    try:
        with storage_errors("write", path):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"pid {os.getpid()} on {os.uname().nodename}\n".encode(), 0)
        yield descriptor
    finally:
        os.close(descriptor)


def flock(descriptor: int, path: Path, operation: int = fcntl.LOCK_EX) -> None:
    """Locks an open file or folder, as `fcntl.flock` does; raises BlockingIOError like it."""
    try:
        fcntl.flock(descriptor, operation)
    except OSError as error:
        if error.errno not in (errno.ENOLCK, *UNSUPPORTED):
            raise
        raise NoLocksError(
            f"cannot lock {path}: {error.strerror}. Mount this file system with locks (Lustre: "
            "-o flock; NFS: start its lock service), or use a folder on a different file system."
        ) from error


def try_lock(descriptor: int, path: Path, operation: int = fcntl.LOCK_EX) -> bool:
    """Locks an open file or folder until this process ends; returns False if already locked."""
    with storage_errors("lock", path):
        try:
            flock(descriptor, path, operation | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def _locked(open_file: Callable[[], int], path: Path, where: str, operation: int) -> int:
    failure: ImagenetPrepError = _busy(where, "several short ones")
    # Try again if the previous owner removes the lock file or its folder at this moment.
    for _ in range(_ATTEMPTS):
        try:
            descriptor = open_file()
        except StoreError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
            failure = error
            continue
        with contextlib.ExitStack() as closing:
            closing.callback(os.close, descriptor)
            if not try_lock(descriptor, path, operation):
                owner = os.pread(descriptor, 200, 0).decode(errors="replace").strip()
                failure = _busy(where, owner if owner.isprintable() else "")
                if operation == fcntl.LOCK_EX:
                    raise failure
                # At its end, the last process of a shared run holds the lock alone for a moment.
                time.sleep(_PAUSE_S)
                continue
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(path.lstat(), os.fstat(descriptor)):
                    closing.pop_all()
                    return descriptor
    raise failure


def _busy(where: str, owner: str) -> BusyError:
    return BusyError(
        f"{where} is being written by a different run ({owner or 'unknown'}). Wait for it or stop "
        "it, then run the same command again."
    )


# Number of descriptors for the connections, output files and libraries of the process.
_OTHER_DESCRIPTORS = 512


def allow_open_files(count: int) -> int:
    """Raises the soft limit for `count` more open files, up to the hard limit.

    Child processes inherit the limit. Returns a bound: keep a file open only if its descriptor is
    below the bound. A new file gets the lowest free descriptor, so this limits the open files.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = min(count + _OTHER_DESCRIPTORS, hard)
    if soft < target:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
            soft = target
    return max(soft - _OTHER_DESCRIPTORS // 2, soft // 2)


@contextlib.contextmanager
def new_file(path: Path, *, durable: bool = True) -> Iterator[BinaryIO]:
    """Yields a new file for writing; if `durable`, syncs it on exit."""
    with open(path, "xb", buffering=1 << 20) as file:
        yield file
        file.flush()
        if durable:
            os.fsync(file.fileno())


@contextlib.contextmanager
def complete_file(path: Path, kind: FileKind | None) -> Iterator[BinaryIO]:
    """Yields a new file that replaces `path` on exit; see `small_files.replaced`.

    Raises StoreError or IncompleteError if the system refuses.
    """
    with storage_errors("write", path), small_files.replaced(path, kind) as file:
        yield file


def sync(path: Path) -> None:
    """Syncs the output of a library: a file, or a folder with all its contents."""
    contents = [entry for entry in path.rglob("*") if entry.is_file() or entry.is_dir()]
    for entry in [*contents, path, path.parent]:
        if entry.is_dir():
            sync_folder(entry)
            continue
        descriptor = os.open(entry, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class FolderSync:
    """Syncs the file system of a folder, which is much faster than syncing 1,000 small files.

    It reports write errors since its creation (from Linux 5.8 on), so create it before the files.
    """

    def __init__(self, folder: Path) -> None:
        self._descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._folder = folder

    def __call__(self) -> None:
        """Syncs the file system, once; raises OSError if the disk is full or fails."""
        try:
            if ctypes.CDLL(None, use_errno=True).syncfs(self._descriptor):
                number = ctypes.get_errno()
                if number in UNSUPPORTED:
                    sync(self._folder)
                    return
                raise OSError(number, os.strerror(number), str(self._folder))
        finally:
            os.close(self._descriptor)


_LARGE_WRITE_BYTES = 4 << 20


class LargeFile:
    """A large file that is written once, from its start, and hashed at the same time.

    It bypasses the page cache (O_DIRECT) if the file system allows: copying 150 GB into the cache
    and writing it back takes three times as long, and evicts the archives that other workers read.
    `num_bytes` is the size so far; `sha256` is valid once the file is closed.
    """

    def __init__(self, path: Path) -> None:
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
        try:
            self._descriptor = os.open(path, flags | os.O_DIRECT, 0o644)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            path.unlink(missing_ok=True)
            self._descriptor = os.open(path, flags, 0o644)
        # One buffer is filled while the other is hashed and written.
        self._buffer = _buffer()
        self._filled = 0
        # None for a file of less than one buffer, which needs no thread.
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
            if self._writing is not None:
                self._writing.exception()
            os.close(self._descriptor)

    def append(self, part: bytes) -> None:
        """Appends a copy of the bytes."""
        self.num_bytes += len(part)
        start = 0
        while start < len(part):
            stop = min(len(part), start + _LARGE_WRITE_BYTES - self._filled)
            after = self._filled + stop - start
            self._buffer[self._filled : after] = part[start:stop]
            self._filled, start = after, stop
            if self._filled == _LARGE_WRITE_BYTES:
                if self._writing is not None:
                    self._writing.result()
                self._writing = _writers().submit(self._write, self._buffer, self._filled)
                self._buffer = _buffer()
                self._filled = 0

    def _write(self, buffer: mmap.mmap, size: int) -> None:
        with memoryview(buffer) as whole, whole[:size] as filled:
            self._hash.update(filled)
            written = 0
            while written < size:
                with filled[written:] as rest:
                    try:
                        written += os.write(self._descriptor, rest)
                    except OSError as error:
                        # Some file systems refuse O_DIRECT only here, or for an unaligned end.
                        if error.errno != errno.EINVAL or not self._use_cache():
                            raise
        _free_buffers.append(buffer)

    def _finish(self) -> None:
        if self._writing is not None:
            self._writing.result()
        # The last bytes do not fill a block, as O_DIRECT requires.
        self._use_cache()
        self._write(self._buffer, self._filled)
        # Sync here, because a descriptor opened later may miss an error.
        os.fsync(self._descriptor)
        self.sha256 = self._hash.hexdigest()

    def _use_cache(self) -> bool:
        """Turns O_DIRECT off; returns whether it was on."""
        flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)
        fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags & ~os.O_DIRECT)
        return bool(flags & os.O_DIRECT)


@functools.cache
def _writers() -> ThreadPoolExecutor:
    """Returns the threads that write large files, each for one file at a time."""
    # Verbs that write no large file start a tenth faster without this import.
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor(thread_name_prefix="write")


# Buffers of finished files: the kernel clears the pages of a new one, which takes longer than all
# other work on a shard of a few kilobytes.
_free_buffers: deque[mmap.mmap] = deque(maxlen=4)


def _buffer() -> mmap.mmap:
    """Returns a page-aligned mapping, as O_DIRECT requires, in huge pages if possible."""
    with contextlib.suppress(IndexError):
        return _free_buffers.pop()
    # With 4 kB pages, the 2,000 page faults of a shard's buffers take as long as hashing 10 MB.
    buffer = mmap.mmap(-1, _LARGE_WRITE_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # the kernel may not support this
        buffer.madvise(mmap.MADV_HUGEPAGE)
    return buffer
