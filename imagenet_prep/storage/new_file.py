"""Writes new files and syncs them to the disk.

Linux reports a failed write only to descriptors that were open at that time, so the writer of a
file must also sync it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import hashlib
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Self

from imagenet_prep.core import own_file
from imagenet_prep.core.own_file import UNSUPPORTED, Kind
from imagenet_prep.storage.local_file import storage_errors, sync_folder


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """Yields a new file for writing, and syncs it on exit."""
    with open(path, "xb", buffering=1 << 20) as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def complete_file(path: Path, kind: Kind | None) -> Iterator[BinaryIO]:
    """Yields a new file that replaces `path` on exit; see `own_file.replaced`.

    Raises StoreError or IncompleteError if the system refuses.
    """
    with storage_errors("write", path), own_file.replaced(path, kind) as file:
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
        # Verbs that write no large file start a tenth faster without this import.
        from concurrent.futures import ThreadPoolExecutor

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
        self._spare = _buffer()
        self._filled = 0
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="write")
        self._writing = self._writer.submit(lambda: None)
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
        """Appends a copy of the bytes."""
        self.num_bytes += len(part)
        start = 0
        while start < len(part):
            stop = min(len(part), start + _LARGE_WRITE_BYTES - self._filled)
            after = self._filled + stop - start
            self._buffer[self._filled : after] = part[start:stop]
            self._filled, start = after, stop
            if self._filled == _LARGE_WRITE_BYTES:
                self._writing.result()
                self._writing = self._writer.submit(self._write, self._buffer, self._filled)
                self._buffer, self._spare = self._spare, self._buffer
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

    def _finish(self) -> None:
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


def _buffer() -> mmap.mmap:
    """Returns a page-aligned mapping, as O_DIRECT requires, in huge pages if possible."""
    # With 4 kB pages, the 2,000 page faults of a shard's buffers take as long as hashing 10 MB.
    buffer = mmap.mmap(-1, _LARGE_WRITE_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # the kernel may not support this
        buffer.madvise(mmap.MADV_HUGEPAGE)
    return buffer
