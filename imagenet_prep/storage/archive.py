"""Reads byte ranges of local archives in several threads."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import operator
import os
import threading
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

from imagenet_prep.core import regular_file
from imagenet_prep.core.errors import ImagenetPrepError, SourceError, StoreError
from imagenet_prep.dataset.member import damaged_list
from imagenet_prep.storage import open_files
from imagenet_prep.storage.os_errors import CHECK_DISK

_HASH_CHUNK_BYTES = 4 << 20

# The name of an archive (Range) or of a file in it (Entry), the offset and the size in bytes.
Range = tuple[str, int, int]
Entry = tuple[str, int, int]

T = TypeVar("T")


class Reads(Protocol):
    """Reads byte ranges of archives."""

    def read(self, archive: str, offset: int, size: int) -> bytes:
        """Returns exactly `size` bytes at `offset`."""


class RangeReader(Reads, Protocol):
    """Reads byte ranges of archives, and prefetches announced ranges; picklable."""

    def will_need(self, ranges: Iterable[Range]) -> None:
        """Announces the next reads of this thread, in order."""


class ArchiveReader:
    """Reads byte ranges of local archives, which stay open; picklable and thread-safe.

    If the limit of open files is reached, further archives are opened for each read.
    """

    def __init__(self, archives: dict[str, Path]) -> None:
        self._archives = archives
        self._kept_below = open_files.allow(len(archives))
        self._descriptors: dict[str, int] = {}
        self._lock = threading.Lock()
        weakref.finalize(self, _close, self._descriptors)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._archives,)

    def size(self, archive: str) -> int:
        """Returns the size of an archive in bytes."""
        return self._use(archive, lambda descriptor: os.fstat(descriptor).st_size)

    def read(self, archive: str, offset: int, size: int) -> bytes:
        """Returns exactly `size` bytes at `offset`."""
        # Fast path for an open archive: reading a header takes 2 us.
        descriptor = self._descriptors.get(archive)
        if descriptor is None:
            return self._use(archive, lambda new: self._read(new, archive, offset, size))
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
            where = f"{self._archives[archive]}: {size:,} bytes at byte {offset:,}"
            raise StoreError(f"{where}: cannot be read: {error.strerror}. {CHECK_DISK}") from error
        if len(data) < size:
            raise SourceError(
                f"{self._archives[archive]}: ends at byte {offset + len(data):,}, expected at "
                f"least {offset + size:,}. The archive is truncated: download it again."
            )
        return data

    def will_need(self, ranges: Iterable[Range]) -> None:
        """Announces ranges to the kernel, which prefetches them in disk order."""
        for archive, group in itertools.groupby(sorted(ranges), operator.itemgetter(0)):
            self._use(archive, functools.partial(_announce, group))

    def files_of(
        self,
        archive: str,
        _start: int,
        _stop: int,
        files: Callable[[Reads], Iterable[Entry]],
        **_: object,
    ) -> list[Entry]:
        """Returns the files of an archive, as listed by `files`; see `RemoteArchives.files_of`."""
        with ArchiveReader({archive: self._archives[archive]}) as reader:
            return [*files(reader)]

    def known_md5(self, _archive: str) -> None:
        """Returns None, since only the headers of a local archive are read to list its files."""

    def md5(self, archive: str) -> str:
        """Returns the md5 of an archive."""
        size = self.size(archive)
        md5 = hashlib.md5(usedforsecurity=False)
        for offset in range(0, size, _HASH_CHUNK_BYTES):
            md5.update(self.read(archive, offset, min(_HASH_CHUNK_BYTES, size - offset)))
        return md5.hexdigest()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            _close(self._descriptors)

    def _use(self, archive: str, act: Callable[[int], T]) -> T:
        descriptor = self._descriptors.get(archive)
        if descriptor is not None:
            return act(descriptor)
        descriptor = self._open(archive)
        with self._lock:
            stays_open = archive not in self._descriptors and descriptor < self._kept_below
            if stays_open:
                self._descriptors[archive] = descriptor
        try:
            return act(descriptor)
        finally:
            if not stays_open:
                os.close(descriptor)

    def _open(self, archive: str) -> int:
        if archive not in self._archives:
            raise damaged_list(f"it names {archive!r}, which is not an archive of the source")
        path = self._archives[archive]
        try:
            return regular_file.open_to_read(path)
        except OSError as error:
            raise ImagenetPrepError(
                f"{path}: cannot be opened: {error.strerror}. Check the path and the permissions."
            ) from error


def _announce(ranges: Iterable[Range], descriptor: int) -> None:
    for _, offset, size in ranges:
        # If a file system refuses this advice, reads are only slower.
        with contextlib.suppress(OSError):
            os.posix_fadvise(descriptor, offset, size, os.POSIX_FADV_WILLNEED)


def _close(descriptors: dict[str, int]) -> None:
    while descriptors:
        _, descriptor = descriptors.popitem()
        os.close(descriptor)
