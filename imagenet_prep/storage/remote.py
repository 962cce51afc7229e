"""Reads files of servers and folders by byte range, with retries.

A single attempt raises `TransientError` if a retry may succeed. Functions with a budget retry; they
raise IncompleteError if no retry is left or the file has changed, and StoreError if the server
refuses. Messages never quote an exception, whose text may contain a signed URL.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import random
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar, NamedTuple, NoReturn, Self, TypeVar

from imagenet_prep.core import limits, terminal
from imagenet_prep.core.errors import DataDamagedError, IncompleteError, StoreError

if TYPE_CHECKING:
    from concurrent.futures import Future

CHUNK_BYTES = 1 << 20
# The size of a request when an archive is read completely, and the most for several images.
REQUEST_BYTES = 4 << 20


# A function that is called before a file becomes visible. If it raises, the file stays hidden.
Check = Callable[[], object]


def unchecked() -> None:
    """Does nothing: a `Check` that never fails."""


def stamp(status: os.stat_result) -> int:
    """Returns the time of the last change of a file in ns."""
    # `cp -p` and `tar` set the mtime back, and some file systems do not update the ctime.
    return max(status.st_mtime_ns, status.st_ctime_ns)


def is_newer(status: os.stat_result, time_ns: int) -> bool:
    """Returns whether a file may have been written after a time."""
    # With several links, ignore the ctime: a new hard link changes it.
    return status.st_mtime_ns > time_ns or (status.st_nlink < 2 and stamp(status) > time_ns)


class Stat(NamedTuple):
    """The state of a file in a store or on a server."""

    size: int
    validator: str  # changes whenever the file does (ETag, date); "" if there is none
    ranges: bool  # whether reads may start in the middle
    mtime_ns: int = 0  # this, `inode` and `num_links` are only set for files on a disk
    inode: int = 0
    num_links: int = 0

    @classmethod
    def of(cls, status: os.stat_result) -> Self:
        """Returns the state of a file on a disk; the validator is the time of the last change."""
        times = (status.st_mtime_ns, status.st_ino, status.st_nlink)
        return cls(status.st_size, str(stamp(status)), True, *times)

    def is_changed(self, status: os.stat_result) -> bool:
        """Returns whether a file on a disk differs from this state, apart from new hard links."""
        now = Stat.of(status)
        if now.num_links != self.num_links:
            # A new or removed link explains a new ctime.
            now = now._replace(validator=self.validator, num_links=self.num_links)
        return now != self


class TransientError(Exception):
    """A temporary failure; a retry should wait for at least `retry_after_s` seconds."""

    def __init__(self, reason: str, retry_after_s: float = 0.0) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s


class AbsentError(StoreError):
    """The file, object or bucket does not exist."""


class ChangedError(IncompleteError):
    """The file is a different one than before, or a different server of a pool has answered."""


class ObjectExistsError(StoreError):
    """The object to be created already exists."""


def changed(where: str) -> NoReturn:
    """Raises ChangedError for a file that has changed during the run."""
    raise ChangedError(
        f"{where}: it has changed since this run began. Run the same command again to read the new "
        "file from the start."
    )


def other_validator(where: str) -> NoReturn:
    """Raises ChangedError if the ETag or date of a file on a server has changed."""
    raise ChangedError(
        f"{where}: it has changed since this run began, or the address is that of a pool of "
        "servers: two answers have different ETags or dates. If the file has changed, run the same "
        "command again to read the new file from the start. If not, use the address of one server."
    )


def exactly(size: int, read: Callable[[int], bytes], most: int = CHUNK_BYTES) -> Iterator[bytes]:
    """Yields exactly `size` bytes in chunks of at most `most` bytes."""
    position = 0
    while position < size:
        chunk = read(min(most, size - position))
        if not chunk:
            raise TransientError(f"the body ended after {position:,} of {size:,} bytes")
        position += len(chunk)
        yield chunk


_FIRST_DELAY_S = 0.2
_MAX_DELAY_S = 60.0
# Give up if the server requests a longer pause than this.
_MAX_RETRY_AFTER_S = 900.0
# If many objects fail together, print this many lines at once, then one per interval.
_LINES_AT_ONCE = 5
_LINE_EVERY_S = 2.0
RESUME = (
    "Fetched data is kept: run the same command again to resume. If it fails again, try later or "
    "with more --retries."
)

# A separate generator, to leave the sequence of a seeded `random` unchanged during training.
_jitter = random.Random()

Answer = TypeVar("Answer")


@dataclass
class RetryBudget:
    """The number of retries and the delays for one operation.

    The delay doubles with each consecutive failure, with jitter to spread reconnects.
    """

    where: str  # the object being read, for messages
    retries: int  # the number of failures allowed
    ended: threading.Event = field(default_factory=threading.Event)
    remedy: str = RESUME  # the advice once the budget is spent
    failures: int = 0
    _in_a_row: int = 0

    def succeeded(self) -> None:
        """Resets the delay, because bytes have arrived."""
        self._in_a_row = 0

    def wait(self, error: TransientError) -> None:
        """Waits before the next attempt; raises IncompleteError if no attempt is left."""
        self.failures += 1
        self._in_a_row += 1
        delay = min(_MAX_DELAY_S, _FIRST_DELAY_S * 2 ** min(self._in_a_row - 1, 16))
        delay = max(delay * _jitter.uniform(0.5, 1.0), error.retry_after_s)
        failure = str(error).rstrip(".")
        failure = failure if self.where in failure else f"{self.where}: {failure}"
        if delay > _MAX_RETRY_AFTER_S:
            problem = f"and asks to wait {delay:,.0f} s"
        elif self.failures > self.retries:
            problem = f"given up after {terminal.counted(self.failures, 'failed attempt')}"
        else:
            of = "" if self.retries == sys.maxsize else f" of {self.retries}"
            if not self.ended.is_set():
                limits.add(0, retries=1)
                line = f"{failure}; retry {self.failures}{of} in {delay:.1f} s"
                _lines.say(line, object=self.where, retry=self.failures, delay_s=round(delay, 1))
            if not self.ended.wait(delay):
                return
            problem = "and the run is ending"
        raise IncompleteError(f"{failure}, {problem}. {self.remedy}", self.remedy)


class _Lines:
    """Prints lines on stderr at a limited rate; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._allowed = float(_LINES_AT_ONCE)
        self._at = 0.0
        self._withheld = 0

    def say(self, line: str, **fields: Any) -> None:
        with self._lock:
            now = time.monotonic()
            earned = (now - self._at) / _LINE_EVERY_S
            self._allowed = min(_LINES_AT_ONCE, self._allowed + earned)
            self._at = now
            if self._allowed < 1:
                self._withheld += 1
                return
            more = f" ({self._withheld:,} more retries not logged)" if self._withheld else ""
            self._allowed = self._allowed - 1
            self._withheld = 0
        with contextlib.suppress(OSError, ValueError):  # stderr may be closed
            terminal.say(line + more, "warning", **fields)


_lines = _Lines()


def with_retries(attempt: Callable[[], Answer], budget: RetryBudget) -> Answer:
    """Returns the result of `attempt`, retried within the budget."""
    while True:
        try:
            return attempt()
        except TransientError as error:
            budget.wait(error)


# A server that starts together with this program, such as one in the same pod, needs some seconds.
_STARTING_S = 3.0


class Server:
    """The server at an address, and whether it has ever answered; thread-safe."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.has_answered = False
        self._missing_since: float | None = None

    def is_missing(self) -> bool:
        """Returns whether to give up after a connection could not be made: no answer in 3 s."""
        now = time.monotonic()
        if self._missing_since is None:
            self._missing_since = now
        return not self.has_answered and now - self._missing_since >= _STARTING_S


@functools.cache
def server_at(address: str) -> Server:
    """Returns the server at an address, the same one in all parts of a process."""
    return Server(address)


@dataclass(frozen=True, kw_only=True)
class Access:
    """The limits of requests to a server."""

    connections: int = 64  # the maximum number that a process keeps open
    timeout_s: float = 60.0  # a request fails after this time without a byte
    retries: int = 20  # the number of failures allowed per operation
    remedy: str | None = None  # the advice once no retry is left; None for that of the store
    ended: threading.Event | None = None  # once set, failed requests are not retried
    has_answered: bool = False  # whether the server has answered the process that copied this


DEFAULT_ACCESS = Access()


class RemoteFolder(ABC):
    """A folder on a server; implements `Readable` by retries of single attempts.

    An attempt raises TransientError if a retry may succeed. Picklable: a copy opens its own
    connections.
    """

    as_folder = None
    remedy: ClassVar[str]

    def __init__(self, base: str, access: Access, server: Server | None = None) -> None:
        """Sends no request yet. `server` is None for a server that only this folder uses."""
        self.base = base.rstrip("/")
        self.access = access
        self.ended = access.ended or threading.Event()
        self.server = server or Server(self.base)
        self.server.has_answered |= access.has_answered

    def __reduce__(self) -> tuple[Any, ...]:
        # An event cannot be pickled.
        access = replace(self.access, ended=None, has_answered=self.server.has_answered)
        return type(self), (self.base, access)

    @abstractmethod
    def stat_once(self, name: str) -> Stat:
        """Returns the current state of a file, in one attempt."""

    @abstractmethod
    def stats_once(self, folder: str) -> dict[str, Stat]:
        """Returns the states of the files directly in `folder`, in one attempt."""

    @abstractmethod
    def read_once(self, name: str, offset: int, size: int, stat: Stat) -> Iterator[bytes]:
        """Yields exactly `size` bytes from `offset` of the file described by `stat`.

        If `stat.ranges` is False, only the complete file can be read. If `stat.validator` is "",
        any file of this size is read.
        """

    def where(self, name: str = "") -> str:
        return f"{self.base}/{name}" if name else self.base

    def budget(self, name: str) -> RetryBudget:
        """Returns a new budget for an operation on a file."""
        remedy = self.remedy if self.access.remedy is None else self.access.remedy
        return RetryBudget(self.where(name), self.access.retries, self.ended, remedy)

    def stat(self, name: str, budget: RetryBudget | None = None) -> Stat:
        return with_retries(lambda: self.stat_once(name), budget or self.budget(name))

    def stats(self, folder: str, budget: RetryBudget | None = None) -> dict[str, Stat]:
        return with_retries(lambda: self.stats_once(folder), budget or self.budget(folder))

    def size(self, name: str) -> int | None:
        try:
            return self.stat(name).size
        except AbsentError:
            return None

    def sizes(self, names: Iterable[str]) -> dict[str, int]:
        sizes = {name: size.result() for name, size in prefetch(self.size, names)}
        return {name: size for name, size in sizes.items() if size is not None}

    def chunks(
        self,
        name: str,
        stat: Stat,
        start: int = 0,
        stop: int | None = None,
        budget: RetryBudget | None = None,
        *,
        pinned: bool = True,
    ) -> Generator[bytes, None, None]:
        # A failed attempt continues at the point of failure. If the server cannot send ranges, read
        # the file from its start, and skip the bytes before that point.
        budget = budget or self.budget(name)
        stop = stat.size if stop is None else stop
        position = start
        while position < stop:
            first = position if stat.ranges else 0
            again = position - first
            try:
                for chunk in self.read_once(name, first, stop - first, stat):
                    budget.succeeded()
                    new = chunk[again:]
                    again -= len(chunk) - len(new)
                    position += len(new)
                    if new:
                        yield new
            except TransientError as error:
                budget.wait(error)
            except ChangedError:
                if pinned or not stat.validator:
                    raise
                stat = stat._replace(validator="")

    @contextlib.contextmanager
    def open_file(self, name: str, stat: Stat | None = None) -> Iterator[BinaryIO]:
        """See `Readable.open_file`; fetches only the bytes that are read."""
        current = stat or self.stat(name)
        chunks = self.chunks(name, current, pinned=stat is not None)
        with contextlib.closing(chunks):
            yield as_file(chunks)


def as_file(chunks: Iterator[bytes]) -> BinaryIO:
    """Returns chunks, such as those of a store, as a file that can be read once, in order."""
    return io.BufferedReader(_Chunks(chunks), CHUNK_BYTES)


def hashed(file: BinaryIO, hashes: Sequence[Any], most: int = sys.maxsize) -> Iterator[bytes]:
    """Hashes and yields the rest of a file in chunks, at most one chunk more than `most` bytes."""
    most += CHUNK_BYTES
    while most > 0:
        chunk = file.read(min(most, CHUNK_BYTES))
        if not chunk:
            return
        for digest in hashes:
            digest.update(chunk)
        most -= len(chunk)
        yield chunk


def require_small(where: str, size: int, most: int) -> None:
    """Raises DataDamagedError if a file has more than `most` bytes."""
    if size > most:
        raise DataDamagedError(
            f"{where}: has more than {most:,} bytes, so this program did not write it. Restore the "
            "original file."
        )


class _Chunks(io.RawIOBase):
    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._rest = memoryview(chunk)
        size = min(len(buffer), len(self._rest))
        buffer[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size


# The maximum number of results being computed or waiting to be used.
PREFETCHED = 8
Item = TypeVar("Item")


def prefetch(
    function: Callable[[Item], Answer], items: Iterable[Item], most: int = PREFETCHED
) -> Iterator[tuple[Item, Future[Answer]]]:
    """Yields each item with the future of function(item), in order; computes `most` in advance."""
    # Verbs that read no tables start a tenth faster without this import.
    from concurrent.futures import ThreadPoolExecutor

    pool = ThreadPoolExecutor(most, thread_name_prefix="ahead")
    try:
        waiting: deque[tuple[Item, Future[Answer]]] = deque()
        for item in items:
            waiting.append((item, pool.submit(function, item)))
            if len(waiting) == most:
                yield waiting.popleft()
        yield from waiting
    finally:
        # Do not wait for servers if the consumer stops early or is interrupted.
        pool.shutdown(wait=False)
