"""Runs decoders of other projects in child processes with few rights (the cage).

Only decoder.c reads images in this process. Functions of this package that need Pillow or libjpeg
first call `require_cage`. Outside the cage, it raises OutsideError, and the caller sends the same
image to a child process, which runs the same function (caged.py). A child that dies or exceeds a
limit makes one bad image, and the next image gets a new child.

A child can open no file or socket (core/confinement). It may use LIGHT_BYTES of memory. If that is
not enough, it gets HEAVY_BYTES, but at most half of the workers do this at a time (core/limits).
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import math
import os
import resource
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from imagenet_prep.core import children, ending, limits, strict_json
from imagenet_prep.core.errors import BadImageError, ImagenetPrepError

if TYPE_CHECKING:
    import numpy.typing as npt

T = TypeVar("T")

LIGHT_BYTES = 128 << 20
HEAVY_BYTES = 900_000_000
MOST_CPU_S = 10
# Reasons of bad images.
TOO_EXPENSIVE = "too_expensive"
DECODER_DIED = "decoder_died"
_UNDECODABLE = "undecodable"
# Kinds of messages from a child.
READY = "ready"
RESULT = "result"
BAD = "bad"
NO_MEMORY = "memory"
TURN = "turn"
FAILED = "failed"
GO = "go"  # the answer to TURN

_LENGTHS = struct.Struct("<IQ")  # of a message's JSON text, and of the bytes that follow it
_MOST_TEXT_BYTES = 1 << 16
# Pixels of 64 million RGB pixels, or an encoded image.
_MOST_BYTES = 1 << 28
_PIPE_BYTES = 1 << 20
# Variables that an interpreter needs. A child gets no others, which may hold credentials.
_VARIABLES = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "IMAGENET_PREP_JPEG")
_ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MALLOC_ARENA_MAX"), "1")


class OutsideError(Exception):
    """A decoder of another project was needed outside the cage."""


class Message(NamedTuple):
    """A message of a child: its kind, JSON values, and bytes such as an encoded image."""

    kind: str
    values: Any
    data: bytes


_is_inside = False


def enter() -> None:
    """Marks this process as a cage, in which all decoders may run."""
    global _is_inside
    _is_inside = True


def is_inside() -> bool:
    """Returns whether this process is a cage."""
    return _is_inside


def require_cage() -> None:
    """Raises OutsideError unless this process is a cage."""
    if not _is_inside:
        raise OutsideError


def run(function: str, kind: type[T], data: bytes, /, **arguments: Any) -> tuple[T, bytes]:
    """Runs a function of caged.py on an image in a child; returns its value, as `kind`, and bytes.

    Raises BadImageError as the function does, and for an image that exceeds a limit of the cage.
    """
    with contextlib.ExitStack() as stack:
        allowance = _Allowance(stack)
        try:
            message = _ask(function, data, arguments, allowance)
        except _PerhapsMemoryError:
            if allowance.has_turn:
                raise
            allowance.take_turn()
            message = _ask(function, data, arguments, allowance)
    return _parse(kind, message.values), message.data


def array(data: bytes, dtype: type[np.generic], shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Returns the bytes of a result as an array; BadImageError if they do not have its size."""
    expected = np.dtype(dtype).itemsize * math.prod(shape)
    if min(shape) < 1 or len(data) != expected:
        raise _wrong_answer(f"{len(data):,} bytes, expected {shape} pixels")
    return np.frombuffer(data, dtype).reshape(shape)


def _parse(kind: type[T], values: Any) -> T:
    try:
        return strict_json.parse(kind, values)
    except ValueError as error:
        raise _wrong_answer(str(error)) from None


def _wrong_answer(detail: str) -> BadImageError:
    return BadImageError(DECODER_DIED, f"its decoder sent a wrong answer: {detail}")


class _Allowance:
    """The processor time that an image has left, and its right to much memory, for all its tries.

    The right ends when `stack` closes.
    """

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        self.has_turn = False
        self.left_s: float = MOST_CPU_S

    def take_turn(self) -> None:
        """Waits for the turn, unless it is taken already."""
        if not self.has_turn:
            self._stack.enter_context(limits.turn())
            self.has_turn = True


def missing_means() -> list[str]:
    """Starts a child; returns the means of confinement that this kernel lacks."""
    with _borrowed() as child:
        return child.missing


class _PerhapsMemoryError(BadImageError):
    """A bad image, unless the child had too little memory: many decoders do not say so."""


def _ask(
    function: str, data: bytes, arguments: Mapping[str, Any], allowance: _Allowance
) -> Message:
    """Returns the result of a child; raises BadImageError."""
    with _borrowed() as child:
        message = child.ask(function, data, arguments, allowance)
    if message.kind == RESULT:
        return message
    if message.kind == BAD:
        reason, detail = _parse(tuple[str, str], message.values)
        if reason != _UNDECODABLE:
            raise BadImageError(reason, detail)
        raise _PerhapsMemoryError(reason, detail)
    if message.kind == NO_MEMORY:
        detail = f"needs more than {HEAVY_BYTES:,} bytes of memory"
        raise _PerhapsMemoryError(TOO_EXPENSIVE, detail)
    if message.kind == FAILED:
        raise _PerhapsMemoryError(DECODER_DIED, f"its decoder failed: {message.values}")
    if child.exit_code == -signal.SIGXCPU:
        raise BadImageError(TOO_EXPENSIVE, f"needs more than {MOST_CPU_S} s of processor time")
    raise _PerhapsMemoryError(DECODER_DIED, f"its decoder ended with exit code {child.exit_code}")


class _Child:
    """A child process, used by one thread at a time."""

    def __init__(self) -> None:
        path = os.pathsep.join(filter(None, sys.path))
        kept = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
        self._process = subprocess.Popen(
            children.python("-m", "imagenet_prep.codec.caged"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={**kept, **_ONE_THREAD, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
            start_new_session=True,
            bufsize=0,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        for pipe in (self._process.stdin, self._process.stdout):
            # A pipe of the default size, 64 kB, would need many switches between the processes.
            with contextlib.suppress(OSError):
                fcntl.fcntl(pipe.fileno(), fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        ready = self._read()
        if ready.kind != READY:
            self.close()
            raise ImagenetPrepError(
                f"the process that decodes images other than usual JPEGs does not start: "
                f"exit code {self.exit_code}",
                f"Find the reason with: {sys.executable} -m imagenet_prep.codec.caged",
            )
        # The size of the child before the first image, and the means of confinement that it lacks.
        self._base_bytes, self.missing = strict_json.parse(tuple[int, list[str]], ready.values)

    @property
    def exit_code(self) -> int:
        """The exit code of a child that has ended; -N if signal N has ended it."""
        return self._process.wait()

    @property
    def is_alive(self) -> bool:
        """Whether the child can take another image."""
        return self._process.poll() is None

    def ask(
        self, function: str, data: bytes, arguments: Mapping[str, Any], allowance: _Allowance
    ) -> Message:
        """Runs a function; takes the turn if the child requests it for a large image."""
        self._limit_memory(allowance)
        before = self._limit_cpu(allowance.left_s)
        self._write([function, arguments], data)
        message = self._read()
        while message.kind == TURN:
            allowance.take_turn()
            self._limit_memory(allowance)
            self._write(GO)
            message = self._read()
        if self.is_alive:
            allowance.left_s -= self._used_s() - before
        return message

    def close(self) -> None:
        """Ends the child."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _limit_memory(self, allowance: _Allowance) -> None:
        most = self._base_bytes + HEAVY_BYTES
        now = most if allowance.has_turn else self._base_bytes + LIGHT_BYTES
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(self._process.pid, resource.RLIMIT_AS, (now, most))

    def _limit_cpu(self, more_s: float) -> float:
        """Allows more seconds of processor time than the child has used; returns those."""
        used_s = self._used_s()
        limits = int(used_s + more_s) + 1, resource.RLIM_INFINITY
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(self._process.pid, resource.RLIMIT_CPU, limits)
        return used_s

    def _used_s(self) -> float:
        """Returns the processor time that the child has used; 0 if it has ended."""
        try:
            with open(f"/proc/{self._process.pid}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _write(self, values: Any, data: bytes = b"") -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # reading then finds the end of the child
            write(self._process.stdin, values, data)

    def _read(self) -> Message:
        """Returns the next message; an empty one if the child has ended."""
        assert self._process.stdout is not None
        try:
            received, data = read(self._process.stdout)
            kind, values = strict_json.parse(tuple[str, Any], received)
            return Message(kind, values, data)
        except (EOFError, ValueError):
            self.close()
            return Message("", None, b"")


def write(pipe: Any, values: Any, data: bytes | memoryview = b"") -> None:
    """Writes JSON values and bytes to an unbuffered pipe, for `read`."""
    text = strict_json.dumps(values)
    for part in (_LENGTHS.pack(len(text), len(data)) + text, data):
        view = memoryview(part)
        while view:
            view = view[pipe.write(view) or 0 :]


def read(pipe: Any) -> tuple[Any, bytes]:
    """Returns the next JSON values and bytes of a pipe; raises EOFError if they are too large."""
    size, num_bytes = _LENGTHS.unpack(_read_exactly(pipe, _LENGTHS.size))
    if size > _MOST_TEXT_BYTES or num_bytes > _MOST_BYTES:
        raise EOFError
    values = strict_json.loads(_read_exactly(pipe, size))
    return values, _read_exactly(pipe, num_bytes)


def _read_exactly(file: Any, size: int) -> bytes:
    """Reads `size` bytes from an unbuffered pipe; raises EOFError if it ends before."""
    parts = []
    while size:
        part = file.read(min(size, _PIPE_BYTES))
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


_idle: list[_Child] = []
_idle_lock = threading.Lock()


@contextlib.contextmanager
def _borrowed() -> Iterator[_Child]:
    """Yields a child that no other thread uses."""
    with _idle_lock:
        child = _idle.pop() if _idle else None
    if child is None:
        child = _Child()
    try:
        yield child
    except BaseException:
        child.close()  # its pipes may hold a part of a message
        raise
    if child.is_alive:
        with _idle_lock:
            _idle.append(child)


def _forget_children() -> None:
    """Makes a forked process start its own children."""
    global _idle_lock
    _idle_lock = threading.Lock()
    _idle.clear()


def _close_children() -> None:
    """Ends all idle children, so that none is left when this process has ended."""
    with _idle_lock:
        children = [*_idle]
        _idle.clear()
    for child in children:
        child.close()


os.register_at_fork(after_in_child=_forget_children)
atexit.register(_close_children)
ending.before(_close_children)
