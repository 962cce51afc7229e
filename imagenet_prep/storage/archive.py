"""Byte ranges of archives, read by many threads at once."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Self

from imagenet_prep.core.errors import ImagenetPrepError, SourceError

# Of more archives, each is opened anew for what is read: a process may have 1,024 files open.
_MOST_KEPT_OPEN = 64


class ArchiveReader:
    """Reads byte ranges of archives; of a few, descriptors stay open, shared by all threads.

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
        with self._opened(archive) as descriptor:
            return os.fstat(descriptor).st_size

    def read(self, archive: str, offset: int, size: int) -> bytes:
        """Returns exactly `size` bytes at `offset`.

        Raises:
          SourceError: the archive ends before, or cannot be read there.
        """
        with self._opened(archive) as descriptor:
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
        with self._opened(archive) as descriptor:
            for offset, size in ranges:
                # Advice only: a file system that ignores it is merely slower.
                with contextlib.suppress(OSError):
                    os.posix_fadvise(descriptor, offset, size, os.POSIX_FADV_WILLNEED)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Closes what is open."""
        with self._lock:
            for descriptor in self._descriptors.values():
                os.close(descriptor)
            self._descriptors.clear()

    @contextlib.contextmanager
    def _opened(self, archive: str) -> Iterator[int]:
        if len(self._archives) > _MOST_KEPT_OPEN:
            descriptor = self._open(archive)
            try:
                yield descriptor
            finally:
                os.close(descriptor)
            return
        with self._lock:
            if archive not in self._descriptors:
                self._descriptors[archive] = self._open(archive)
        yield self._descriptors[archive]

    def _open(self, archive: str) -> int:
        path = self._archives[archive]
        try:
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise ImagenetPrepError(
                f"{path}: cannot be opened: {error.strerror}. Check the path and the permissions."
            ) from error
