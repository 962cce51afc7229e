"""Frames between hosts, through the pipes of ssh: a line of JSON, then the bytes it announces."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import threading
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from imagenet_prep.core import canonical

# What both ends must have in common; another one is refused with what to upgrade.
PROTOCOL = 2

# Whoever has nothing to send says so this often, and whoever hears nothing for so long gives
# up: a host that lost its power closes no connection. Longer than a switch needs to come back.
ALIVE_EVERY_S = 2.0
SILENCE_S = 30.0

CHUNK_BYTES = 1 << 20
_PIPE_BYTES = 1 << 20
_MAX_HEADER_BYTES = 1 << 20
# A manifest of 99,999 shards has 40 MB.
_MAX_BODY_BYTES = 128 << 20


class Frame(NamedTuple):
    """One message: its kind, what it says, and bytes."""

    kind: str
    fields: dict[str, Any]
    body: bytes = b""


class BrokenError(Exception):
    """The other end fell silent, or sent what no end of ours sends."""


class Channel:
    """Two descriptors; one thread reads, and closes; any thread writes."""

    def __init__(self, reads: int, writes: int, *, silence_s: float | None = SILENCE_S) -> None:
        """Takes over open descriptors.

        Args:
          reads, writes: pipes.
          silence_s: seconds without a byte that break the channel; None waits for ever.
        """
        self._reads, self._writes = reads, writes
        self._silence_s = silence_s
        self._lock = threading.Lock()
        self._buffer = bytearray()
        self._written_at = time.monotonic()
        self._closed = False
        for descriptor in (reads, writes):
            # A pipe holds 64 KiB unless asked for more, and a user may not be given more.
            with contextlib.suppress(OSError):
                fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)

    def write(self, kind: str, body: bytes | memoryview = b"", **fields: Any) -> None:
        """Sends a frame whole.

        Raises:
          OSError: the other end is gone.
        """
        header = canonical.dumps([kind, len(body), fields]) + b"\n"
        with self._lock:
            if self._closed:
                raise BrokenPipeError("the channel is closed")
            for part in (header, body):
                with memoryview(part) as view:
                    written = 0
                    while written < len(view):
                        written += os.write(self._writes, view[written:])
            self._written_at = time.monotonic()

    @contextlib.contextmanager
    def closing(self) -> Iterator[None]:
        """Refuses writers from now on; within it the thread that reads closes the descriptors.

        A number that is closed while another thread still uses it would be another file's.
        """
        with self._lock:
            self._closed = True
            yield

    def keep_alive(self) -> None:
        """Sends a sign of life where one is due.

        Raises:
          OSError: the other end is gone.
        """
        if time.monotonic() - self._written_at > ALIVE_EVERY_S:
            self.write("alive")

    def read(self) -> Frame | None:
        """Returns the next frame that is no mere sign of life, or None at the end.

        Raises:
          BrokenError: silence, or bytes that are no frame.
        """
        while True:
            frame = self._read()
            if frame is None or frame.kind != "alive":
                return frame

    def _read(self) -> Frame | None:
        while (stop := self._buffer.find(b"\n")) < 0:
            if len(self._buffer) > _MAX_HEADER_BYTES:
                raise BrokenError("no frame in what arrives")
            if not self._fill():
                return None
        try:
            kind, size, fields = json.loads(self._buffer[:stop])
            if not (isinstance(fields, dict) and 0 <= int(size) <= _MAX_BODY_BYTES):
                raise ValueError
        except (ValueError, TypeError):
            text = bytes(self._buffer[:200]).decode(errors="replace")
            raise BrokenError(f"no frame in what arrives: {text!r}") from None
        del self._buffer[: stop + 1]
        while len(self._buffer) < size:
            if not self._fill():
                return None
        body = bytes(memoryview(self._buffer)[:size])
        del self._buffer[:size]
        return Frame(str(kind), fields, body)

    def _fill(self) -> bool:
        """Reads what there is; False at the end."""
        if not select.select([self._reads], [], [], self._silence_s)[0]:
            raise BrokenError(f"silence for {self._silence_s:.0f} s")
        data = os.read(self._reads, CHUNK_BYTES)
        self._buffer += data
        return bool(data)
