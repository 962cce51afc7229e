"""The interface for reading files by byte range from web servers, S3 and folders.

Each read is a single attempt. It raises `UnavailableError` if a retry may succeed, and the caller
decides how often to retry. Messages never quote an exception, whose text may contain a signed URL.
"""

from __future__ import annotations

import os
import re
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple, NoReturn, Protocol, Self

from imagenet_prep.core.errors import IncompleteError, StoreError
from imagenet_prep.storage.steady import TooSlowError

CHUNK_BYTES = 1 << 20
# The size of a request when an archive is read completely, and the most for several images.
REQUEST_BYTES = 4 << 20
# At most 18 digits, since Python refuses to convert thousands of digits.
NUMBER = re.compile(r"[0-9]{1,18}")
CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18})")
# Temporary failures: timeout, too early, too many requests, and server errors.
_PASSING = {408, 425, 429, 500, 502, 503, 504}
# S3's codes of temporary failures: damaged or slow transfers, and concurrent requests.
_PASSING_CODES = {
    "BadDigest",
    "XAmzContentChecksumMismatch",
    "IncompleteBody",
    "RequestTimeout",
    "SlowDown",
    "ConditionalRequestConflict",
    "OperationAborted",
}
_TUNNEL = re.compile(r"Tunnel connection failed: ([0-9]{3})")
_NO_SUCH_HOST = {socket.EAI_NONAME, socket.EAI_NODATA}


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


class UnavailableError(Exception):
    """A temporary failure; a retry should wait for at least `retry_after_s` seconds."""

    def __init__(self, reason: str, retry_after_s: float = 0.0) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s


class AbsentError(StoreError):
    """The file, object or bucket does not exist."""


class ChangedError(IncompleteError):
    """The file is a different one than before, or a different server of a pool has answered."""


class TakenError(StoreError):
    """The object to be created already exists."""


class Remote(Protocol):
    """A folder of files on a server or disk; thread-safe."""

    def where(self, name: str) -> str:
        """Returns the name of a file for messages, without secrets."""

    def stat(self, name: str) -> Stat:
        """Returns the current state of a file."""

    def read(self, name: str, offset: int, size: int, stat: Stat) -> Iterator[bytes]:
        """Yields exactly `size` bytes from `offset` of the file described by `stat`.

        If `stat.ranges` is False, only the complete file can be read. If `stat.validator` is "",
        any file of this size is read.
        """

    def files(self, folder: str) -> dict[str, Stat]:
        """Returns the `Stat` of each file directly in `folder`, keyed by name; "" is the root."""


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


def passes(status: int, code: str = "") -> bool:
    """Returns whether the failure with this status or S3 code is temporary."""
    return status in _PASSING or code in _PASSING_CODES or "Throttl" in code


def failure(where: str, error: BaseException, bundle: str) -> StoreError | UnavailableError:
    """Returns UnavailableError for a failed connection if a retry may succeed, else StoreError.

    `bundle` is the name of the environment variable for certificate authorities.
    """
    causes = _causes(error)
    if any(isinstance(cause, socket.gaierror) and cause.errno in _NO_SUCH_HOST for cause in causes):
        return StoreError(
            f"{where}: {reason(error)}. Check the address (for S3, AWS_ENDPOINT_URL)."
        )
    if (match := _TUNNEL.search(" ".join(map(str, causes)))) and not passes(int(match[1])):
        return StoreError(f"{where}: the proxy answers {match[1]}. Check HTTPS_PROXY.")
    temporary = ssl.SSLEOFError, ConnectionError, TimeoutError
    is_temporary = any(isinstance(cause, temporary) for cause in causes)
    names = {type(cause).__name__ for cause in causes}
    if not is_temporary and names & {"SSLError", "SSLCertVerificationError"}:
        return StoreError(
            f"{where}: the connection is not trusted: {reason(error)}. Check the clock and the "
            f"address; for a private certificate authority, set {bundle}."
        )
    return UnavailableError(reason(error))


def exactly(size: int, read: Callable[[int], bytes], most: int = CHUNK_BYTES) -> Iterator[bytes]:
    """Yields exactly `size` bytes in chunks of at most `most` bytes."""
    position = 0
    while position < size:
        chunk = read(min(most, size - position))
        if not chunk:
            raise UnavailableError(f"the body ended after {position:,} of {size:,} bytes")
        position += len(chunk)
        yield chunk


def pause_s(retry_after: str) -> float:
    """Returns the seconds requested by a Retry-After header, which is a number or a date."""
    if NUMBER.fullmatch(retry_after):
        return float(retry_after)
    try:
        import email.utils  # this import would be a fifth of the start time of a process on a host

        date = email.utils.parsedate_tz(retry_after)
        return max(0.0, email.utils.mktime_tz(date) - time.time()) if date else 0.0
    except (ValueError, OverflowError):
        return 0.0


def reason(error: BaseException) -> str:
    """Describes a network failure without the text of the exception, which may contain a URL."""
    causes = _causes(error)
    for cause in causes:
        if isinstance(cause, TooSlowError):
            return f"the data arrived too slowly ({cause})"
    for cause in causes:
        if type(cause).__name__.endswith(("TimeoutError", "Timeout")):
            return "no data arrived in time"
        if isinstance(cause, OSError) and cause.strerror:
            return str(cause.strerror)
    if any(type(cause).__name__ == "IncompleteRead" for cause in causes):
        return "the connection was cut"
    return f"the connection failed ({type(error).__name__})"


def _causes(error: BaseException) -> list[BaseException]:
    causes: list[BaseException] = [error]
    for cause in causes:
        linked = (*cause.args, getattr(cause, "reason", None), cause.__cause__, cause.__context__)
        causes += [e for e in linked if isinstance(e, BaseException) and e not in causes]
    return causes
