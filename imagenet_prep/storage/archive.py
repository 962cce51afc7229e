"""Byte ranges of archives, read by many threads at once."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Protocol, Self

from imagenet_prep.core.errors import ImagenetPrepError, SourceError

# Of more archives, each is opened anew for what is read: a process may have 1,024 files open.
_MOST_KEPT_OPEN = 64
_HASH_CHUNK_BYTES = 4 << 20

# Name, offset and size in bytes: of an archive and a range of it, or of a file in an archive.
Range = tuple[str, int, int]
Entry = tuple[str, int, int]


class Reads(Protocol):
    """Reads byte ranges of archives."""

    def read(self, archive: str, offset: int, size: int) -> bytes:
        """Returns exactly `size` bytes at `offset`."""


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
        # Without the lock where it is open: a header is read in 2 us.
        descriptor = self._descriptors.get(archive)
        if descriptor is None:
            with self._opened(archive) as descriptor:
                return self._read(descriptor, archive, offset, size)
        return self._read(descriptor, archive, offset, size)

    def _read(self, descriptor: int, archive: str, offset: int, size: int) -> bytes:
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

    def will_need(self, ranges: Iterable[Range]) -> None:
        """Tells the kernel which ranges come soon; it reads them ahead, in the disk's order."""
        for archive, of_archive in itertools.groupby(sorted(ranges), lambda each: each[0]):
            with self._opened(archive) as descriptor:
                for _, offset, size in of_archive:
                    # Advice only: a file system that ignores it is merely slower.
                    with contextlib.suppress(OSError):
                        os.posix_fadvise(descriptor, offset, size, os.POSIX_FADV_WILLNEED)

    def files_of(
        self,
        archive: str,
        start: int,  # noqa: ARG002
        stop: int,  # noqa: ARG002
        files: Callable[[Reads], Iterable[Entry]],
        *,
        skipping: bool = False,  # noqa: ARG002
    ) -> list[Entry]:
        """Returns what `files` finds in an archive, see `RemoteArchives.files_of`."""
        with ArchiveReader({archive: self._archives[archive]}) as reader:
            return [*files(reader)]

    def known_md5(self, archive: str) -> str | None:  # noqa: ARG002
        """Returns None: to list an archive, only its headers are read."""
        return None

    def md5(self, archive: str) -> str:
        """Returns the md5 of an archive; raises as `read`."""
        size = self.size(archive)
        md5 = hashlib.md5(usedforsecurity=False)
        for offset in range(0, size, _HASH_CHUNK_BYTES):
            md5.update(self.read(archive, offset, min(_HASH_CHUNK_BYTES, size - offset)))
        return md5.hexdigest()

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
