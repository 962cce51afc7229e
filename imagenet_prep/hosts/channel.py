"""Starts processes on other hosts, and exchanges messages with them through the pipes of ssh.

`Process` is a process on a host, and the channel to it.

A message is a line of JSON, then the bytes it announces. A `Channel` accepts only its `messages`
and heartbeats; anything else, or silence, raises BrokenError. Output of a login shell before the
first message is skipped.

`checked` validates messages between our processes on different hosts. The other end may be hostile,
so a message must have an expected kind and exactly its fields.
"""

from __future__ import annotations

import contextlib
import enum
import fcntl
import math
import os
import select
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from imagenet_prep.core import children, strict_json
from imagenet_prep.hosts.commands import SSH_OPTIONS, Ending, Login, Tail, command_on, plain, start

# The version of the messages, which must be the same at both ends.
PROTOCOL = 5

CHUNK_BYTES = 1 << 20
MAX_TEXT = 4000
# Larger than any file, and exact in every JSON reader.
_MAX_COUNT = 1 << 53


class Cause(enum.StrEnum):
    """Why no more messages come from the other end."""

    ENDED = "ended"  # before its last message
    UNREACHED = "unreached"  # ssh itself failed
    SILENT = "silent"
    UNREADABLE = "unreadable"  # it sent an invalid message


class BrokenError(Exception):
    """The other end fell silent or sent an invalid message."""

    def __init__(self, message: str, cause: Cause = Cause.UNREADABLE) -> None:
        super().__init__(message)
        self.cause = cause


class OtherVersionError(BrokenError):
    """The other end uses a different protocol version."""


class MessageKind(NamedTuple):
    """One kind of message: a function to validate each field, and the largest size of its body."""

    fields: Mapping[str, Callable[[Any], Any]] = {}
    max_body_bytes: int = 0


Messages = Mapping[str, MessageKind]


def count(value: Any) -> int:
    """Returns an integer of at least 0; raises ValueError for anything else."""
    if type(value) is not int or not 0 <= value <= _MAX_COUNT:
        raise ValueError("expected a whole number, 0 or more")
    return value


def number(value: Any) -> float:
    """Returns a number of at least 0; raises ValueError for anything else."""
    if type(value) not in (int, float) or not 0 <= value < math.inf:
        raise ValueError("expected a number, 0 or more")
    return float(value)


def sentence(value: Any) -> str:
    """Returns text for a user as one plain line; raises ValueError for anything else."""
    if not isinstance(value, str):
        raise ValueError("expected a text")
    return plain(value)[:MAX_TEXT]


def word(value: Any) -> str:
    """Returns text for a program, such as a path; raises ValueError for anything else."""
    if not isinstance(value, str) or "\0" in value or len(value) > MAX_TEXT:
        raise ValueError(f"expected a text of at most {MAX_TEXT} characters")
    return value


def flag(value: Any) -> bool:
    """Returns a bool; raises ValueError for anything else."""
    if not isinstance(value, bool):
        raise ValueError("expected true or false")
    return value


def checked(
    messages: Messages, name: str, size: Any, fields: Any
) -> tuple[str, int, dict[str, Any]]:
    """Validates a received message; returns its kind, body size and fields."""
    if not isinstance(fields, dict):
        raise ValueError("expected a JSON object of fields")
    if fields.get("protocol", PROTOCOL) != PROTOCOL:
        theirs = plain(str(fields["protocol"])[:20])
        raise OtherVersionError(
            f"imagenet-prep uses protocol {PROTOCOL} at one end, {theirs} at the other. Install "
            "the same version on every host."
        )
    kind = messages.get(name)
    if kind is None:
        raise ValueError("this kind of message is not allowed here")
    if count(size) > kind.max_body_bytes:
        raise ValueError(f"it announces {size:,} bytes, expected at most {kind.max_body_bytes:,}")
    if fields.keys() != kind.fields.keys():
        raise ValueError(f"expected the fields {sorted(kind.fields)}")
    values = {}
    for field, check in kind.fields.items():
        try:
            values[field] = check(fields[field])
        except ValueError as error:
            raise ValueError(f"{field}: {error}") from None
    return name, size, values


# Seconds to wait for the first message: a login shell and Python start first, perhaps slowly.
START_S = 120.0
# Seconds for a process to end after it has closed its output.
_END_S = 1.0
# Number of heartbeats within the time that is treated as silence.
_SIGNS = 10

_PIPE_BYTES = 1 << 20
_MAX_HEADER_BYTES = 1 << 16
_MAX_NOISE_BYTES = 1 << 16
_SHOWN_BYTES = 200


class MessageFrame(NamedTuple):
    """One message: kind, fields and body."""

    kind: str
    fields: dict[str, Any]
    body: bytes = b""


class Channel:
    """A pair of pipes for messages. One thread reads and closes it; any thread may write."""

    def __init__(self, reads: int, writes: int, messages: Messages, *, silence_s: float) -> None:
        """Takes over two pipes; `messages` are the messages that the other end may send.

        `read` raises BrokenError after `silence_s` seconds without data. Before the first message,
        the limit is START_S if that is longer.
        """
        self._reads, self._writes = reads, writes
        self._messages = {"alive": MessageKind(), **messages}
        self._silence_s = silence_s
        self._heard = False
        self._lock = threading.Lock()
        self._buffer = bytearray()
        self._ended = threading.Event()
        self._poll = select.poll()
        self._poll.register(reads, select.POLLIN)
        self._noise_bytes = 0
        self.noise = ""  # the last line before the first message, e.g. of a login shell
        for descriptor in (reads, writes):
            # The default is 64 KiB. If the system refuses more, only speed is lost.
            with contextlib.suppress(OSError):
                fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)

    def begin(self, kind: str = "alive", body: bytes = b"", **fields: Any) -> None:
        """Starts a thread that sends a message, then heartbeats even while this process is busy."""

        def talk() -> None:
            # If the other end is gone, the thread that reads from the channel notices, too.
            with contextlib.suppress(OSError):
                # End a line that a login shell may have left open.
                self._put(b"\n")
                self.write(kind, body, **fields)
                while not self._ended.wait(self._silence_s / _SIGNS):
                    self.write("alive")

        threading.Thread(target=talk, daemon=True).start()

    def write(self, kind: str, body: bytes | memoryview = b"", **fields: Any) -> None:
        """Sends a complete message; blocks while the other end does not read."""
        self._put(strict_json.dumps([kind, len(body), fields]) + b"\n", body)

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
        """Makes further writes fail; in the block, the reading thread can close the descriptors."""
        self._ended.set()
        with self._lock:
            yield

    def read(self) -> MessageFrame | None:
        """Returns the next message that is not a heartbeat, or None at the end."""
        while (header := self._header()) is not None:
            kind, size, fields = header
            self._heard = True
            while len(self._buffer) < size:
                if not self._fill():
                    return None
            with memoryview(self._buffer) as view, view[:size] as part:
                body = bytes(part)
            del self._buffer[:size]
            if kind != "alive":
                return MessageFrame(kind, fields, body)
        return None

    def _header(self) -> tuple[str, int, dict[str, Any]] | None:
        """Returns kind, body size and fields of the next message, or None at the end."""
        while (line := self._line()) is not None:
            content = None
            with contextlib.suppress(ValueError):
                content = strict_json.loads(line)
            match content:
                case [str(kind), size, fields]:
                    try:
                        return checked(self._messages, kind, size, fields)
                    except ValueError as error:
                        raise BrokenError(f"it sent {_quoted(line)}: {error}") from None
            if line.strip():
                self._skip(line)
        return None

    def _line(self) -> bytes | None:
        while (stop := self._buffer.find(b"\n")) < 0:
            if len(self._buffer) > _MAX_HEADER_BYTES:
                raise BrokenError(f"it sent {_quoted(self._buffer)}: not a valid message")
            if not self._fill():
                return None
        line = bytes(self._buffer[:stop])
        del self._buffer[: stop + 1]
        return line

    def _skip(self, line: bytes) -> None:
        self._noise_bytes += len(line) + 1
        is_noise = not self._heard and not line.startswith(b'["')
        if not is_noise or self._noise_bytes > _MAX_NOISE_BYTES:
            raise BrokenError(f"it sent {_quoted(line)}: not a valid message")
        self.noise = plain(line[:MAX_TEXT].decode(errors="replace"))

    def _fill(self) -> bool:
        """Reads the available bytes; returns False at the end."""
        limit_s = self._silence_s if self._heard else max(START_S, self._silence_s)
        if not self._poll.poll(limit_s * 1000):
            raise BrokenError(f"it has sent nothing for {limit_s:g} s", Cause.SILENT)
        data = os.read(self._reads, CHUNK_BYTES)
        self._buffer += data
        return bool(data)


class Process:
    """A Python process on a host, and the channel to its standard input and output."""

    def __init__(
        self,
        address: str,
        python: str,
        words: Sequence[str],
        messages: Messages,
        silence_s: float,
        *,
        ssh_options: Sequence[str] = SSH_OPTIONS,
        hear: Callable[[bytes], object] | None = None,
    ) -> None:
        """Starts the module in `words`, which ends when its input is closed or this process ends.

        Both ends give up after `silence_s` seconds without data. For `hear`, see `Tail`.
        """
        self.address = address
        argv = children.python("-m", *words, str(silence_s), program=python)
        command = command_on(address, argv, ssh_options)
        self._login = Login(command)
        self._popen = start(command)
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        pipes = self._popen.stdout.fileno(), self._popen.stdin.fileno()
        self.channel = Channel(*pipes, messages, silence_s=silence_s)
        self._stderr = Tail(self._popen.stderr, hear=hear)

    def listen(
        self, take: Callable[[MessageFrame], bool | None], patience_s: float = _END_S
    ) -> tuple[BrokenError | None, Ending]:
        """Passes each message to `take` until `take` returns True, then ends the process.

        Silence or a BrokenError from `take` kills the process. Returns this error or None, and how
        the process ended.
        """
        broken = None
        try:
            while (frame := self.channel.read()) is not None:
                self._login.end()
                if take(frame):
                    break
        except BrokenError as error:
            broken = error
            self.kill()
        except OSError as error:
            broken = BrokenError(str(error), Cause.ENDED)
        finally:
            ending = self._end(patience_s)
        return broken, ending

    def _end(self, patience_s: float) -> Ending:
        self._login.end()
        try:
            self._popen.wait(patience_s)
        except subprocess.TimeoutExpired:
            self._popen.kill()
        code = self._popen.wait()
        # A child that still writes to the closed pipe ends. Then stderr ends, too.
        with self.channel.closing():
            for pipe in (self._popen.stdin, self._popen.stdout):
                assert pipe is not None
                pipe.close()
        stderr = self._stderr.text()
        # A login shell that refuses access prints the reason on its standard output.
        return Ending(code, stderr or self.channel.noise)

    def kill(self) -> None:
        """Kills the process or, if it is on a different host, the ssh process that started it."""
        self._popen.kill()


def _quoted(line: bytes | bytearray) -> str:
    return repr(plain(bytes(line[:_SHOWN_BYTES]).decode(errors="replace")))
