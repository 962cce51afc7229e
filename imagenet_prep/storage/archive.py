"""Reads byte ranges of archives: local ones in several threads, remote ones in advance.

The images of a shard are scattered over the archives, so each image needs its own request, which
mostly waits for the server. A worker announces its next reads, and requests are sent in advance.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import operator
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

from imagenet_prep.core import small_files
from imagenet_prep.core.errors import ImagenetPrepError, SourceError, StoreError
from imagenet_prep.dataset.member import damaged_list
from imagenet_prep.storage import local_file
from imagenet_prep.storage.local_file import CHECK_DISK
from imagenet_prep.storage.remote import REQUEST_BYTES
from imagenet_prep.storage.remote_path import (
    MOST_CONNECTIONS,
    ArchiveListing,
    Entry,
    Location,
    RemotePath,
)

_HASH_CHUNK_BYTES = 4 << 20

# The name of an archive (Range) or of a file in it (Entry), the offset and the size in bytes.
Range = tuple[str, int, int]

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
        self._kept_below = local_file.allow_open_files(len(archives))
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
            return small_files.open_to_read(path)
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


# Limits per worker. With images of 110 kB and 20 ms per request, 32 requests reach 170 MB/s.
MOST_IN_FLIGHT = 32
MOST_BYTES = 32 << 20
# Ranges closer than this share a request: reading the gap costs less than a second request.
NEAR_BYTES = 64 << 10
# Only ranges that are read soon after each other share a request, to limit the use of memory.
_WINDOW_BYTES = MOST_BYTES // 2


class RemoteArchives:
    """Archives on a server, with the interface of `ArchiveReader`. Picklable and thread-safe.

    Each thread prefetches the ranges that it has announced.
    """

    def __init__(self, files: dict[str, RemotePath]) -> None:
        self._files = files
        self._local = threading.local()
        self._md5: dict[str, str] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return RemoteArchives, (self._files,)

    def size(self, archive: str) -> int:
        """Returns the size of an archive in bytes."""
        return self._files[archive].stat.size

    def read(self, archive: str, offset: int, size: int) -> bytes:
        """Returns exactly `size` bytes at `offset`."""
        ahead: _Prefetcher | None = getattr(self._local, "ahead", None)
        data = ahead.take((archive, offset, size)) if ahead else None
        return self._files[archive].fetch(offset, offset + size) if data is None else data

    def will_need(self, ranges: Iterable[Range]) -> None:
        """Starts prefetching this thread's next reads, in order; drops ranges announced earlier."""
        announced: _Prefetcher | None = getattr(self._local, "ahead", None)
        if announced is not None:
            announced.cancel()
        self._local.ahead = _Prefetcher(list(ranges), self._submit)

    def files_of(
        self,
        archive: str,
        start: int,
        stop: int,
        files: Callable[[Reads], Iterable[Entry]],
        *,
        is_whole: Callable[[Sequence[Entry]], bool],
        header_bytes: int = 0,
    ) -> list[Entry]:
        """Returns the files in bytes [start, stop) of an archive, from a kept list or from `files`.

        `files` takes a reader and yields the files by increasing offset. A kept list may be used
        instead if `is_whole` returns True. Each file is verified when it is read. `header_bytes` is
        set if an archive has few but large files: then `files` reads only a header of this size
        before each file, and the headers of the files in the kept list are prefetched.
        """
        path = self._files[archive]
        lists = path.site.lists
        known = kept = lists.find(str(path), path.stat, start, stop) if lists else None
        if header_bytes:
            # Prefetch the headers at the offsets in the kept list.
            starts = [offset - header_bytes for _, offset, _ in (kept.files if kept else ())]
            self.will_need((archive, first, header_bytes) for first in starts if first >= 0)
            entries = [*files(self)]
            self.will_need(())
            if kept is None or entries != kept.files:
                kept = ArchiveListing(entries, "")
        elif kept is None or not is_whole(kept.files):
            hashed = path.site.hashes and (start, stop) == (0, path.stat.size)
            one_pass = _Pass(self, archive, start, stop, hashed=hashed)
            kept = ArchiveListing([*files(one_pass)], one_pass.md5() if hashed else "")
        if lists and kept is not known:
            lists.keep(str(path), path.stat, start, stop, kept)
        if kept.md5:
            self._md5[archive] = kept.md5
        return kept.files

    def known_md5(self, archive: str) -> str | None:
        """Returns the md5 that was found while listing an archive's files, or None."""
        return self._md5.get(archive)

    def md5(self, archive: str) -> str:
        """Returns the md5 of an archive from the list of its files, or by reading the archive."""
        path = self._files[archive]
        size, lists = path.stat.size, path.site.lists
        kept = lists.find(str(path), path.stat, 0, size) if lists else None
        if kept is None or not kept.md5:
            md5 = _Pass(self, archive, 0, size, hashed=True).md5()
            if lists:
                lists.keep_md5(str(path), path.stat, md5)
            return md5
        return kept.md5

    def _submit(self, archive: str, start: int, stop: int) -> Future[bytes]:
        return self._pool.submit(self._files[archive].fetch, start, stop)

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(MOST_CONNECTIONS, thread_name_prefix="fetch")


@dataclass(eq=False)
class _Request:
    """A request for one range, or for several nearby ranges."""

    archive: str
    start: int
    stop: int
    num_ranges: int = 0  # ranges that the reader has not taken yet
    answer: Future[bytes] | None = None  # None until the request is sent

    @property
    def size(self) -> int:
        return self.stop - self.start


class _Prefetcher:
    """The requests of one thread, sent in the order in which their first bytes are read."""

    def __init__(
        self, ranges: Sequence[Range], submit: Callable[[str, int, int], Future[bytes]]
    ) -> None:
        self._submit = submit
        self._request_by_range: dict[Range, _Request] = {}
        for window in _windows([piece for piece in dict.fromkeys(ranges) if piece[2]]):
            request_by_range = _merged(window)
            self._request_by_range |= {piece: request_by_range[piece] for piece in window}
        self._waiting = deque(dict.fromkeys(self._request_by_range.values()))
        self._in_flight: set[Future[bytes]] = set()
        # The number of bytes that were requested but not taken yet.
        self._num_bytes = 0
        self._send()

    def take(self, piece: Range) -> bytes | None:
        """Returns the bytes of an announced range; None if not announced or already taken."""
        request = self._request_by_range.pop(piece, None)
        if request is None:
            return None
        # Send this request even above the limits. Otherwise the reader would wait for itself.
        while request.answer is None:
            self._send_next()
        data = request.answer.result()
        _, offset, size = piece
        if size < request.size:
            data = data[offset - request.start : offset - request.start + size]
        request.num_ranges -= 1
        if not request.num_ranges:
            self._num_bytes -= request.size
            request.answer = None
        self._send()
        return data

    def cancel(self) -> None:
        for answer in self._in_flight:
            answer.cancel()

    def _send(self) -> None:
        self._in_flight = {answer for answer in self._in_flight if not answer.done()}
        while (
            self._waiting
            and len(self._in_flight) < MOST_IN_FLIGHT
            and self._num_bytes + self._waiting[0].size <= MOST_BYTES
        ):
            self._send_next()

    def _send_next(self) -> None:
        request = self._waiting.popleft()
        request.answer = self._submit(request.archive, request.start, request.stop)
        self._in_flight.add(request.answer)
        self._num_bytes += request.size


def _merged(ranges: Iterable[Range]) -> dict[Range, _Request]:
    """Returns the request for each range; nearby ranges share a request."""
    request_by_range: dict[Range, _Request] = {}
    request: _Request | None = None
    for archive, offset, size in sorted(ranges):
        stop = offset + size
        if (
            request is None
            or request.archive != archive
            or offset - request.stop > NEAR_BYTES
            or max(stop, request.stop) - request.start > REQUEST_BYTES
        ):
            request = _Request(archive, offset, stop)
        request.stop = max(stop, request.stop)
        request.num_ranges += 1
        request_by_range[archive, offset, size] = request
    return request_by_range


def _windows(ranges: Sequence[Range]) -> Iterator[list[Range]]:
    """Splits ranges into groups; each group, with the gaps between its ranges, fits in memory."""
    stops = itertools.accumulate(size + NEAR_BYTES for _, _, size in ranges)
    in_windows = zip(ranges, (stop // _WINDOW_BYTES for stop in stops), strict=True)
    for _, window in itertools.groupby(in_windows, lambda pair: pair[1]):
        yield [piece for piece, _ in window]


class _Pass:
    def __init__(
        self, archives: RemoteArchives, archive: str, start: int, stop: int, *, hashed: bool
    ) -> None:
        pieces = [
            (archive, offset, min(REQUEST_BYTES, stop - offset))
            for offset in range(start, stop, REQUEST_BYTES)
        ]
        archives.will_need(pieces)
        self._md5 = hashlib.md5(usedforsecurity=False)
        chunks = (archives.read(*piece) for piece in pieces)
        self._chunks = self._hash(chunks) if hashed else chunks
        self._buffer = b""
        self._at = start

    def read(self, _archive: str, offset: int, size: int) -> bytes:
        """Returns `size` bytes at an offset that is not before the previous one."""
        while self._at + len(self._buffer) < offset + size:
            passed = min(offset - self._at, len(self._buffer))
            self._at += passed
            self._buffer = self._buffer[passed:] + next(self._chunks)
        start = offset - self._at
        return self._buffer[start : start + size]

    def md5(self) -> str:
        deque(self._chunks, maxlen=0)
        return self._md5.hexdigest()

    def _hash(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            self._md5.update(chunk)
            yield chunk


def open_archives(files: dict[str, Location]) -> ArchiveReader | RemoteArchives:
    """Returns a reader for the archives in `files`, which are all local or all on one server."""
    remote = {name: path for name, path in files.items() if isinstance(path, RemotePath)}
    if remote:
        return RemoteArchives(remote)
    return ArchiveReader({name: path for name, path in files.items() if isinstance(path, Path)})
