"""Requests byte ranges over persistent HTTP connections.

Each image takes one request, so the CPU time per request limits the images per second. For 83 kB,
urllib3 takes 0.65 ms and http.client 0.4 ms, mostly to parse headers; this module takes 0.2 ms. It
understands only 206 responses with a length; callers use a full HTTP client for the rest.
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
                new = False
            except IndexError:
                if (opened := self._connect(parts, idle)) is None:
                    return None
                connection = opened
                new = True
            try:
                is_plain = connection.send(request)
            except OSError as error:
                connection.close()
                # Retry if the connection was idle, since servers close idle connections.
                if new or isinstance(error, TimeoutError):
                    raise UnavailableError(reason(error)) from None
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
            raise UnavailableError(reason(error)) from None


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
        while (line := self._reader.readline(allowed)) not in (b"\r\n", b"\n"):
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
            raise UnavailableError(reason(error)) from None
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
