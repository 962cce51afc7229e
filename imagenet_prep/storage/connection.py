"""Connections to servers: requests of byte ranges, limits for slow servers, and failures.

Each image takes one request, so the CPU time per request limits the images per second. For 83 kB,
urllib3 takes 0.65 ms and http.client 0.4 ms, mostly to parse headers; `Ranges` takes 0.2 ms. It
understands only 206 responses with a length; callers use a full HTTP client for the rest.

A socket's timeout restarts with each byte, so one byte per minute could block a reader forever.
Here, once an answer has started, a minimum number of bytes must arrive per timeout period.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import socket
import ssl
import time
import weakref
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Self
from urllib.parse import SplitResult, urlsplit

from imagenet_prep.core.errors import IncompleteError, StoreError
from imagenet_prep.storage.remote import Server, TransientError

_PORTS = {"http": 80, "https": 443}
_BUFFER_BYTES = 64 << 10
# A response with larger headers is refused.
_MOST_HEADER_BYTES = 64 << 10


class Ranges:
    """Requests byte ranges of files; thread-safe."""

    def __init__(self, timeout_s: float, ca_file: str) -> None:
        """Opens no connection yet. A request fails after `timeout_s` seconds without a byte."""
        self._timeout_s = timeout_s
        self._ca_file = ca_file
        self._tls: ssl.SSLContext | None = None
        self._idle: dict[str, list[Connection]] = {}
        weakref.finalize(self, _close_all, self._idle)

    def get(self, url: str, headers: Mapping[str, str]) -> Connection | None:
        """Returns a connection with the answer, as a context manager, or None.

        Returns None if the answer is not a 206 with a length, a header cannot be sent unchanged,
        the server's certificate is not trusted, or the host is unknown. `url` must be quoted, and
        `headers` must include Host and Range.
        """
        parts = urlsplit(url)
        lines = [f"GET {parts.path} HTTP/1.1", *(f"{name}: {headers[name]}" for name in headers)]
        if not all(line.isascii() and line.isprintable() for line in lines):
            return None
        request = "\r\n".join([*lines, "", ""]).encode()
        idle = self._idle.setdefault(f"{parts.scheme}://{parts.netloc}", [])
        while True:
            try:
                connection = idle.pop()
                is_new = False
            except IndexError:
                new_connection = self._connect(parts, idle)
                if new_connection is None:
                    return None
                connection = new_connection
                is_new = True
            try:
                is_plain = connection.send(request)
            except OSError as error:
                connection.close()
                # Retry if the connection was idle, since servers close idle connections.
                if is_new or isinstance(error, TimeoutError):
                    raise TransientError(reason(error)) from None
                continue
            except BaseException:
                connection.close()
                raise
            if is_plain:
                return connection
            connection.close()
            return None

    def _connect(self, parts: SplitResult, idle: list[Connection]) -> Connection | None:
        try:
            if self._tls is None and parts.scheme == "https":
                self._tls = ssl.create_default_context(cafile=self._ca_file)
            tls = self._tls if parts.scheme == "https" else None
            address = parts.hostname or "", parts.port or _PORTS[parts.scheme]
            return Connection(address, self._timeout_s, tls, idle)
        except (ssl.SSLError, socket.gaierror, FileNotFoundError, PermissionError):
            return None
        except OSError as error:
            raise TransientError(reason(error)) from None


class Connection:
    """A connection, and the answer to its last request: lower-case `headers`, an unread body."""

    def __init__(
        self,
        address: tuple[str, int],
        timeout_s: float,
        tls: ssl.SSLContext | None,
        idle: list[Connection],
    ) -> None:
        """Connects; after use as a context, the connection is added to `idle`."""
        self._idle = idle
        self._socket = socket.create_connection(address, timeout_s)
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls:
                self._socket = tls.wrap_socket(self._socket, server_hostname=address[0])
        except BaseException:
            self._socket.close()
            raise
        self._steady = SteadyReader(self._socket.makefile("rb", buffering=0), timeout_s)
        self._reader = io.BufferedReader(self._steady, _BUFFER_BYTES)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Keeps the connection if the body was read completely."""
        if self._body_bytes or self.headers.get("connection", "").lower() == "close":
            self.close()
        else:
            self._idle.append(self)

    def send(self, request: bytes) -> bool:
        """Sends a request and reads the headers; returns whether it is a 206 with a length."""
        self._socket.sendall(request)
        self._steady.begin()
        line = self._reader.readline(_MOST_HEADER_BYTES)
        if not line:
            raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
        if not line.startswith(b"HTTP/1.1 206 "):
            return False
        headers: dict[str, str] = {}
        allowed = _MOST_HEADER_BYTES
        while True:
            line = self._reader.readline(allowed)
            if line in (b"\r\n", b"\n"):
                break
            allowed -= len(line)
            if not line.endswith(b"\n") or not allowed:
                return False
            name, _, value = line.decode("latin-1").partition(":")
            name = name.lower()
            value = value.strip()
            # Join repeated headers as in RFC 9110, so that two lengths are invalid.
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        length = headers.get("content-length", "")
        if "transfer-encoding" in headers or not NUMBER.fullmatch(length):
            return False
        self.headers = headers
        self._body_bytes = int(length)
        return True

    def read(self, size: int) -> bytes:
        """Returns the next `size` bytes of the body, or fewer at its end."""
        try:
            data: bytes = self._reader.read(min(size, self._body_bytes))
        except OSError as error:
            raise TransientError(reason(error)) from None
        self._body_bytes -= len(data)
        return data

    def close(self) -> None:
        """Closes the connection."""
        with contextlib.suppress(OSError):
            self._reader.close()
        self._socket.close()


def _close_all(idle: Mapping[str, list[Connection]]) -> None:
    for connections in idle.values():
        while connections:
            connections.pop().close()


# If a hundred connections share a link of 1 Mbit/s, each of them is still faster than this.
LEAST_BYTES_PER_S = 1000
# Maximum size of an answer that is not a file. A list of 1,000 objects has 1 MB.
_MOST_ANSWER_BYTES = 32 << 20

_clock = time.monotonic


class TooSlowError(TimeoutError):
    """Bytes arrived, but too few."""


class SteadyReader(io.RawIOBase):
    """Reads from a socket, and fails if it is too slow."""

    def __init__(self, raw: io.RawIOBase, window_s: float | None) -> None:
        """Wraps an unbuffered socket; `window_s` is its timeout, or None for no limit."""
        self._raw = raw
        self._window_s = window_s
        self.begin()

    def begin(self) -> None:
        """Starts a response: its first bytes may take as long as the timeout of the socket."""
        self._answers = False
        self._waited_s = 0.0
        self._num_bytes = 0

    def readable(self) -> bool:
        """Returns True."""
        return True

    def readinto(self, buffer: Any) -> int | None:
        """Reads the available bytes, at least one."""
        start = _clock()
        size = self._raw.readinto(buffer)
        if self._window_s is None:
            return size
        if self._answers:
            # Count only the time of waiting, not the time in which the caller uses the bytes.
            self._waited_s += _clock() - start
        self._answers = True
        self._num_bytes += size or 0
        if self._waited_s >= self._window_s:
            if size and self._num_bytes < LEAST_BYTES_PER_S * self._waited_s:
                raise TooSlowError(f"{self._num_bytes:,} bytes in {self._waited_s:,.0f} s")
            self._waited_s = 0.0
            self._num_bytes = 0
        return size

    def close(self) -> None:
        """Closes the file of the socket."""
        self._raw.close()
        super().close()


class _Socket:
    def __init__(self, opened: Any) -> None:
        self._opened = opened

    def makefile(
        self, mode: str, buffering: int = -1, **_: Any
    ) -> io.RawIOBase | io.BufferedReader:
        reader = SteadyReader(self._opened.makefile(mode, buffering=0), self._opened.gettimeout())
        # botocore reads "100 Continue" unbuffered: a buffer would swallow the following answer.
        return io.BufferedReader(reader) if buffering else reader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._opened, name)


def steady_pool(kind: Any) -> Any:
    """Returns a subclass of a urllib3 pool that refuses slow servers and very large answers."""
    connection = kind.ConnectionCls

    def connect(self: Any) -> None:
        connection.connect(self)
        self.sock = _Socket(self.sock)

    def getresponse(self: Any) -> Any:
        response = connection.getresponse(self)
        # A weak proxy: a reference cycle would keep the connection until garbage collection.
        response.stream = partial(_bounded, weakref.proxy(response), type(response))
        return response

    more = {"connect": connect, "getresponse": getresponse}
    steady = type(connection.__name__, (connection,), more)
    return type(kind.__name__, (kind,), {"ConnectionCls": steady})


def _bounded(response: Any, kind: Any, *arguments: Any, **options: Any) -> Iterator[bytes]:
    """Yields the chunks of `response.stream`; raises ValueError if the answer is too large."""
    allowed = _MOST_ANSWER_BYTES
    for chunk in kind.stream(response, *arguments, **options):
        allowed -= len(chunk)
        if allowed < 0:
            response.close()
            raise ValueError(f"more than {_MOST_ANSWER_BYTES:,} bytes")
        yield chunk


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


def passes(status: int, code: str = "") -> bool:
    """Returns whether the failure with this status or S3 code is temporary."""
    return status in _PASSING or code in _PASSING_CODES or "Throttl" in code


def failure(
    where: str, error: BaseException, bundle: str, server: Server
) -> StoreError | IncompleteError | TransientError:
    """Returns TransientError for a failed connection if a retry may succeed, else StoreError.

    `bundle` is the name of the environment variable for certificate authorities. Returns
    IncompleteError if no connection could be made for some seconds to a server that has never
    answered.
    """
    causes = _causes(error)
    if any(isinstance(cause, socket.gaierror) and cause.errno in _NO_SUCH_HOST for cause in causes):
        return StoreError(
            f"{where}: {reason(error)}. Check the address (for S3, AWS_ENDPOINT_URL)."
        )
    if any(map(_is_unconnected, causes)) and server.is_missing():
        return IncompleteError(
            f"{where}: {reason(error)}. Nothing has answered at {server.address} so far. Check "
            "whether the server is up, and the address (for S3, AWS_ENDPOINT_URL)."
        )
    match = _TUNNEL.search(" ".join(map(str, causes)))
    if match and not passes(int(match[1])):
        return StoreError(f"{where}: the proxy answers {match[1]}. Check HTTPS_PROXY.")
    temporary = ssl.SSLEOFError, ConnectionError, TimeoutError
    is_temporary = any(isinstance(cause, temporary) for cause in causes)
    names = {type(cause).__name__ for cause in causes}
    if not is_temporary and names & {"SSLError", "SSLCertVerificationError"}:
        return StoreError(
            f"{where}: the connection is not trusted: {reason(error)}. Check the clock and the "
            f"address; for a private certificate authority, set {bundle}."
        )
    return TransientError(reason(error))


def _is_unconnected(error: BaseException) -> bool:
    """Returns whether an error means that no connection was made, so that no server was asked."""
    return isinstance(error, ConnectionRefusedError | socket.gaierror) or (
        isinstance(error, OSError) and error.errno in (errno.EHOSTUNREACH, errno.ENETUNREACH)
    )


def size_of_range(sent: str, offset: int, size: int, total: int | None = None) -> int:
    """Returns the number of bytes in an answer with this Content-Range; refuses a different range.

    These are `size` bytes from `offset` of a file with `total` bytes. If `total` is unknown, the
    file may end earlier. Raises TransientError for any other range.
    """
    last = offset + size - 1
    if total is None:
        match = CONTENT_RANGE.fullmatch(sent)
        total = int(match[3]) if match else offset + size
        last = min(last, total - 1)
    expected = f"bytes {offset}-{last}/{total}"
    if sent != expected:
        raise TransientError(f"the server sends {sent!r}, expected {expected!r}")
    return last + 1 - offset


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
