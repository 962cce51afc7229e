"""Remote files read by byte range: the interface of http(s), S3 and folders, and their faults.

A read is one attempt. What may go better next time is `UnavailableError`, and the caller
decides how often; everything else is explained to the user at once. Credentials are in no
URL that is shown or stored: messages are made of the base, the name and the system's own
words, never of an exception's text, which may hold a signed address.
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
# A request of an archive's reader has no more, unless a single image does; a pass asks for as many.
REQUEST_BYTES = 4 << 20
# Numbers of 64 bits: Python refuses to convert thousands of digits.
NUMBER = re.compile(r"[0-9]{1,18}")
CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18})")
# RFC 9110, 15: time-out, too early, too many requests; 5xx is the server's own trouble.
_PASSING = {408, 425, 429, 500, 502, 503, 504}
# S3's words for bytes that arrived changed or too slowly, and for two requests at the same time.
_PASSING_CODES = {
    *("BadDigest", "XAmzContentChecksumMismatch", "IncompleteBody", "RequestTimeout", "SlowDown"),
    *("ConditionalRequestConflict", "OperationAborted"),
}
_TUNNEL = re.compile(r"Tunnel connection failed: ([0-9]{3})")
_NO_SUCH_HOST = {socket.EAI_NONAME, socket.EAI_NODATA}


# Called right before something is made visible; its error ends that.
Check = Callable[[], object]


def unchecked() -> None:
    """Lets anything be made visible."""


def stamp(status: os.stat_result) -> int:
    """Returns when a file last changed, in ns.

    The mtime can be set back, as `cp -p` and `tar` do. The ctime cannot, but some file systems do
    not renew it.
    """
    return max(status.st_mtime_ns, status.st_ctime_ns)


def is_newer(status: os.stat_result, time_ns: int) -> bool:
    """Returns whether a file may have been written after a time.

    A new hard link changes the ctime, so that of a file with several links shows nothing.
    """
    return status.st_mtime_ns > time_ns or (status.st_nlink < 2 and stamp(status) > time_ns)


class Stat(NamedTuple):
    """A file of a store, or on a server, as it is now.

    Attributes:
      size: bytes.
      validator: changes whenever the file does (ETag, date); "" where nothing tells.
      ranges: whether it can be read from the middle.
      mtime_ns, inode, num_links: of a file on a disk.
    """

    size: int
    validator: str
    ranges: bool
    mtime_ns: int = 0
    inode: int = 0
    num_links: int = 0

    @classmethod
    def of(cls, status: os.stat_result) -> Self:
        """Returns the size of a file on a disk, and its stamp as the validator."""
        times = (status.st_mtime_ns, status.st_ino, status.st_nlink)
        return cls(status.st_size, str(stamp(status)), True, *times)

    def is_changed(self, status: os.stat_result) -> bool:
        """Returns whether a file on a disk was changed since; a hard link is no change."""
        now = Stat.of(status)
        if now.num_links != self.num_links:
            # The link, or its removal, explains a new ctime.
            now = now._replace(validator=self.validator, num_links=self.num_links)
        return now != self


class UnavailableError(Exception):
    """An attempt failed in a way that passes (a cut, a stall, 429, 5xx); the pause may be 0 s."""

    def __init__(self, reason: str, retry_after_s: float = 0.0) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s


class AbsentError(StoreError):
    """There is no such file, object or bucket."""


class TakenError(StoreError):
    """An object that was to be made is there already."""


class Remote(Protocol):
    """A folder of files somewhere else; safe for threads."""

    def where(self, name: str) -> str:
        """Returns how messages call a file; holds no secret."""

    def stat(self, name: str) -> Stat:
        """Returns what the file is now."""

    def read(self, name: str, offset: int, size: int, stat: Stat) -> Iterator[bytes]:
        """Yields exactly `size` bytes from `offset` of the file that `stat` describes.

        Without `stat.ranges` the offset is 0 and the size that of the whole.
        """

    def files(self, folder: str) -> dict[str, Stat]:
        """Returns the files directly in a folder below, "" for all of it, by name."""


def changed(where: str) -> NoReturn:
    """Raises what a file that is not the one that was begun with means."""
    raise IncompleteError(
        f"{where}: it has changed since this run began. Run the same command again: what was read "
        "of the old file is dropped, and the new one is read from its start."
    )


def passes(status: int, code: str = "") -> bool:
    """Returns whether a refusal may pass; after any other one, each retry would fail as well."""
    return status in _PASSING or code in _PASSING_CODES or "Throttl" in code


def failure(where: str, error: BaseException, bundle: str) -> StoreError | UnavailableError:
    """Returns the error for a failed connection: UnavailableError only if a retry may succeed.

    `bundle` is the variable that names certificate authorities.
    """
    causes = _causes(error)
    if any(isinstance(each, socket.gaierror) and each.errno in _NO_SUCH_HOST for each in causes):
        return StoreError(
            f"{where}: {reason(error)}. Check the address, and for S3 AWS_ENDPOINT_URL."
        )
    if (match := _TUNNEL.search(" ".join(map(str, causes)))) and not passes(int(match[1])):
        return StoreError(f"{where}: the proxy answers {match[1]}. Check HTTPS_PROXY.")
    if any(isinstance(each, ssl.SSLEOFError | ConnectionError | TimeoutError) for each in causes):
        return UnavailableError(reason(error))
    if any(type(each).__name__ in ("SSLError", "SSLCertVerificationError") for each in causes):
        return StoreError(
            f"{where}: no trusted connection: {reason(error)}. Check the clock and the address; "
            f"for a private certificate authority set {bundle}."
        )
    return UnavailableError(reason(error))


def exactly(size: int, read: Callable[[int], bytes], most: int = CHUNK_BYTES) -> Iterator[bytes]:
    """Yields `size` bytes in chunks of at most `most`."""
    left = size
    while left:
        chunk = read(min(most, left))
        if not chunk:
            raise UnavailableError(f"the body ended after {size - left:,} of {size:,} bytes")
        left -= len(chunk)
        yield chunk


def pause_s(retry_after: str) -> float:
    """Returns the seconds that a Retry-After header asks for: a number or a date."""
    if NUMBER.fullmatch(retry_after):
        return float(retry_after)
    try:
        import email.utils  # A fifth of the time in which a process on another host starts.

        date = email.utils.parsedate_tz(retry_after)
        return max(0.0, email.utils.mktime_tz(date) - time.time()) if date else 0.0
    except (ValueError, OverflowError):
        return 0.0


def reason(error: BaseException) -> str:
    """Returns the system's words for a network failure; the exception's own may hold a URL."""
    seen = _causes(error)
    for each in seen:
        if isinstance(each, TooSlowError):
            return f"too few bytes came in time ({each})"
    for each in seen:
        if isinstance(each, TimeoutError) or type(each).__name__.endswith(
            ("TimeoutError", "Timeout")
        ):
            return "no byte came in time"
        if isinstance(each, OSError) and each.strerror:
            return str(each.strerror)
    if any(type(each).__name__ == "IncompleteRead" for each in seen):
        return "the connection was cut"
    return f"the connection failed ({type(error).__name__})"


def _causes(error: BaseException) -> list[BaseException]:
    """Returns an error and all errors that it was made of or raised from."""
    seen: list[BaseException] = [error]
    for each in seen:
        linked = (*each.args, getattr(each, "reason", None), each.__cause__, each.__context__)
        seen += [e for e in linked if isinstance(e, BaseException) and e not in seen]
    return seen
