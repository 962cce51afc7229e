"""Byte ranges from one web server, over persistent connections.

Each image is a request, so the CPU time per request limits the images per second. For 83 kB,
urllib3 takes 0.65 ms and http.client 0.4 ms, mostly to parse headers; this module takes 0.2 ms. It
only understands 206 responses with a length. For all others, the caller repeats the request with a
full HTTP client.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import socket
import ssl
import weakref
from collections.abc import Mapping
from typing import Self
from urllib.parse import SplitResult, urlsplit

from imagenet_prep.storage.remote import NUMBER, UnavailableError, reason
from imagenet_prep.storage.steady import SteadyReader

_PORTS = {"http": 80, "https": 443}
_BUFFER_BYTES = 64 << 10
# The response headers of a range are never larger.
_MOST_HEADER_BYTES = 64 << 10


class Ranges:
    """Requests ranges; thread-safe."""

    def __init__(self, timeout_s: float, ca_file: str) -> None:
        """Opens no connection yet; a request fails after `timeout_s` without a byte."""
        self._timeout_s = timeout_s
        self._ca_file = ca_file
        self._tls: ssl.SSLContext | None = None
        self._idle: dict[str, list[_Connection]] = {}
        weakref.finalize(self, _close_all, self._idle)

    def get(self, url: str, headers: Mapping[str, str]) -> Answer | None:
        """Returns the answer, which the caller closes; None unless it is a plain 206.

        It is also None if a header cannot be sent unchanged, the server's certificate is not
        trusted, or the host is unknown. The URL is quoted; the headers include Host and Range.
        """
        parts = urlsplit(url)
        lines = [f"GET {parts.path} HTTP/1.1", *(f"{name}: {headers[name]}" for name in headers)]
        if not all(line.isascii() and line.isprintable() for line in lines):
            return None
        request = "\r\n".join([*lines, "", ""]).encode()
        idle = self._idle.setdefault(f"{parts.scheme}://{parts.netloc}", [])
        while True:
            try:
                connection, new = idle.pop(), False
            except IndexError:
                if (opened := self._connect(parts)) is None:
                    return None
                connection, new = opened, True
            try:
                found = connection.send(request)
            except OSError as error:
                connection.close()
                # Servers close idle connections after a while.
                if new or isinstance(error, TimeoutError):
                    raise UnavailableError(reason(error)) from None
                continue
            except BaseException:
                connection.close()
                raise
            if (
                found is None
                or "transfer-encoding" in found
                or not NUMBER.fullmatch(found.get("content-length", ""))
            ):
                connection.close()
                return None
            return Answer(found, connection, idle)

    def _connect(self, parts: SplitResult) -> _Connection | None:
        try:
            if self._tls is None and parts.scheme == "https":
                self._tls = ssl.create_default_context(cafile=self._ca_file)
            tls = self._tls if parts.scheme == "https" else None
            return _Connection(
                parts.hostname or "", parts.port or _PORTS[parts.scheme], self._timeout_s, tls
            )
        except (ssl.SSLError, socket.gaierror, FileNotFoundError, PermissionError):
            return None
        except OSError as error:
            raise UnavailableError(reason(error)) from None


class Answer:
    """The answer to a request, with lower-case header names and an unread body."""

    def __init__(
        self, headers: dict[str, str], connection: _Connection, idle: list[_Connection]
    ) -> None:
        self.headers = headers
        self._connection = connection
        self._idle = idle
        self._left = int(headers["content-length"])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Keeps the connection if the body was read completely."""
        if self._left or self.headers.get("connection", "").lower() == "close":
            self._connection.close()
        else:
            self._idle.append(self._connection)

    def read(self, size: int) -> bytes:
        """Returns the next `size` bytes of the body, or fewer at its end."""
        try:
            data: bytes = self._connection.reader.read(min(size, self._left))
        except OSError as error:
            raise UnavailableError(reason(error)) from None
        self._left -= len(data)
        return data


class _Connection:
    def __init__(self, host: str, port: int, timeout_s: float, tls: ssl.SSLContext | None) -> None:
        self._socket = socket.create_connection((host, port), timeout_s)
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls:
                self._socket = tls.wrap_socket(self._socket, server_hostname=host)
        except BaseException:
            self._socket.close()
            raise
        self._steady = SteadyReader(self._socket.makefile("rb", buffering=0), timeout_s)
        self.reader = io.BufferedReader(self._steady, _BUFFER_BYTES)

    def send(self, request: bytes) -> dict[str, str] | None:
        """Sends a request and returns the headers of the answer; None unless it is 206."""
        self._socket.sendall(request)
        self._steady.begin()
        line = self.reader.readline(_MOST_HEADER_BYTES)
        if not line:
            raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
        if not line.startswith(b"HTTP/1.1 206 "):
            return None
        headers: dict[str, str] = {}
        left = _MOST_HEADER_BYTES
        while (line := self.reader.readline(left)) not in (b"\r\n", b"\n"):
            left -= len(line)
            if not line.endswith(b"\n") or not left:
                return None
            name, _, value = line.decode("latin-1").partition(":")
            name, value = name.lower(), value.strip()
            # Joined as in RFC 9110, so that two lengths are invalid.
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        return headers

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.reader.close()
        self._socket.close()


def _close_all(idle: Mapping[str, list[_Connection]]) -> None:
    for connections in idle.values():
        while connections:
            connections.pop().close()
