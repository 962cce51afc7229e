"""Connections that fail if the server sends too slowly, not only if it sends nothing.

A socket's timeout restarts with each byte, so one byte per minute could block a reader forever.
Here, once an answer has started, a minimum number of bytes must arrive per timeout period.
"""

from __future__ import annotations

import io
import time
import weakref
from collections.abc import Iterator
from functools import partial
from typing import Any

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


def pool(kind: Any) -> Any:
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
