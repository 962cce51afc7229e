"""Writes and hashes a large file in one pass, bypassing the page cache."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import mmap
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

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
