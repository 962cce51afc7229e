"""Messages between hosts, through the pipes of ssh: a line of JSON, then the bytes it announces.

A channel knows which `messages` the other end may send. Anything else is a BrokenError, and so is
silence. What a login shell prints before the first message is skipped.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

from imagenet_prep.core import canonical
from imagenet_prep.distribute.messages import (
    CHUNK_BYTES,
    MAX_TEXT,
    BrokenError,
    Cause,
    Messages,
    checked,
)
from imagenet_prep.hosts.process import plain

# Seconds to wait for the first message: a login shell and Python start before it, perhaps on a busy
# host or a slow file system.
START_S = 120.0
# Signs of life that are sent within the time that counts as silence.
_SIGNS = 10

_PIPE_BYTES = 1 << 20
_MAX_HEADER_BYTES = 1 << 16
_MAX_NOISE_BYTES = 1 << 16
_SHOWN_BYTES = 200


class Frame(NamedTuple):
    """One message: its kind, what it says, and bytes."""

    kind: str
    fields: dict[str, Any]
    body: bytes = b""


class Channel:
    """A pair of pipes. One thread reads and closes; any thread may write.

    Attributes:
      noise: the last line before the first message, such as a login shell's greeting.
    """

    def __init__(
        self,
        reads: int,
        writes: int,
        messages: Messages,
        *,
        silence_s: float,
        start_s: float = START_S,
    ) -> None:
        """Takes over open descriptors.

        Args:
          reads, writes: pipes.
          messages: that the other end may send.
          silence_s: seconds without a byte after which the channel is broken.
          start_s: the same before the first message, if that is longer.
        """
        self._reads, self._writes = reads, writes
        self._messages = messages
        self._silence_s = silence_s
        self._start_s = max(start_s, silence_s)
        self._heard = False
        self._lock = threading.Lock()
        self._buffer = bytearray()
        self._ended = threading.Event()
        self._poll = select.poll()
        self._poll.register(reads, select.POLLIN)
        self._noise_bytes = 0
        self.noise = ""
        for descriptor in (reads, writes):
            # The default is 64 KiB. The system may refuse more, which only costs speed.
            with contextlib.suppress(OSError):
                fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)

    def begin(self, kind: str = "alive", body: bytes = b"", **fields: Any) -> None:
        """Sends a first message, and signs of life from then on; returns at once.

        Its own thread sends them. So an end that does not read blocks nobody, and an end that
        works for a long time is not taken for dead.
        """

        def talk() -> None:
            # The other end is gone; the thread that reads from the channel sees that, too.
            with contextlib.suppress(OSError):
                # Ends a line that a login shell may have left open.
                self._put(b"\n")
                self.write(kind, body, **fields)
                while not self._ended.wait(self._silence_s / _SIGNS):
                    self.write("alive")

        threading.Thread(target=talk, daemon=True).start()

    def write(self, kind: str, body: bytes | memoryview = b"", **fields: Any) -> None:
        """Sends a whole message; waits while the other end does not read.

        Raises:
          OSError: the other end is gone.
        """
        self._put(canonical.dumps([kind, len(body), fields]) + b"\n", body)

    def _put(self, *parts: bytes | memoryview) -> None:
        with self._lock:
            if self._ended.is_set():
                raise BrokenPipeError("the channel is closed")
            for part in parts:
                with memoryview(part) as view:
                    written = 0
                    while written < len(view):
                        written += os.write(self._writes, view[written:])

    @contextlib.contextmanager
    def closing(self) -> Iterator[None]:
        """Refuses writers from now on. Within it, the reading thread closes the descriptors.

        If a descriptor were closed while another thread writes to it, its number could already
        belong to another file.
        """
        self._ended.set()
        with self._lock:
            yield

    def read(self) -> Frame | None:
        """Returns the next message except signs of life, or None at the end.

        Raises:
          OtherVersionError: the other end has another version.
          BrokenError: silence, or bytes that are not one of `messages`.
        """
        while True:
            frame = self._read()
            if frame is None or frame.kind != "alive":
                return frame

    def _read(self) -> Frame | None:
        if (header := self._header()) is None:
            return None
        kind, size, fields = header
        self._heard = True
        while len(self._buffer) < size:
            if not self._fill():
                return None
        with memoryview(self._buffer) as view, view[:size] as part:
            body = bytes(part)
        del self._buffer[:size]
        return Frame(kind, fields, body)

    def _header(self) -> tuple[str, int, dict[str, Any]] | None:
        """Returns kind, size of the body and fields of the next message, or None at the end."""
        while (line := self._line()) is not None:
            if (content := _parsed(line)) is not None:
                try:
                    return checked(self._messages, *content)
                except ValueError as error:
                    raise BrokenError(f"it sent {_shown(line)}: {error}") from None
            if line.strip():
                self._skip(line)
        return None

    def _line(self) -> bytes | None:
        while (stop := self._buffer.find(b"\n")) < 0:
            if len(self._buffer) > _MAX_HEADER_BYTES:
                raise BrokenError(f"it sent {_shown(self._buffer)}: no message of imagenet-prep")
            if not self._fill():
                return None
        line = bytes(self._buffer[:stop])
        del self._buffer[: stop + 1]
        return line

    def _skip(self, line: bytes) -> None:
        self._noise_bytes += len(line) + 1
        is_noise = not self._heard and not line.startswith(b'["')
        if not is_noise or self._noise_bytes > _MAX_NOISE_BYTES:
            raise BrokenError(f"it sent {_shown(line)}: no message of imagenet-prep")
        self.noise = plain(line[:MAX_TEXT].decode(errors="replace"))

    def _fill(self) -> bool:
        """Reads what is there; False at the end."""
        limit_s = self._silence_s if self._heard else self._start_s
        if not self._poll.poll(limit_s * 1000):
            raise BrokenError(f"it has sent nothing for {limit_s:g} s", Cause.SILENT)
        data = os.read(self._reads, CHUNK_BYTES)
        self._buffer += data
        return bool(data)


def _parsed(line: bytes) -> tuple[str, Any, Any] | None:
    """Returns kind, size and fields, unchecked; None if a line is not a message."""
    try:
        content = canonical.loads(line)
    except ValueError:
        return None
    if not isinstance(content, list) or len(content) != 3 or not isinstance(content[0], str):
        return None
    return content[0], content[1], content[2]


def _shown(line: bytes | bytearray) -> str:
    return repr(plain(bytes(line[:_SHOWN_BYTES]).decode(errors="replace")))
