"""Output of a command: messages, sizes, and text without terminal control characters."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

# If this variable is "json", each line on stderr is a JSON object, also from child processes.
LOG_FORMAT = "IMAGENET_PREP_LOG_FORMAT"
# This variable has the name of the verb for the JSON objects; child processes inherit it.
VERB = "IMAGENET_PREP_VERB"

# Control characters of terminals, and characters that change the text direction.
_OBEYED = [*range(0x20), *range(0x7F, 0xA0), 0x061C, 0x200E, 0x200F]
_OBEYED += [*range(0x2028, 0x202F), *range(0x2066, 0x206A)]
# Characters beyond ASCII are escaped as in JSON, so that printed JSON stays valid.
_ESCAPES = {code: f"\\x{code:02x}" if code < 0x20 else f"\\u{code:04x}" for code in _OBEYED}
_ESCAPES_BUT_LINES = {code: text for code, text in _ESCAPES.items() if chr(code) not in "\t\n"}

_messages: _Printed | None = None


def printable(text: str) -> str:
    r"""Returns text from data as one line in which control characters are escaped, e.g. as "\x1b".

    Use it for names that are inserted into a message: `escape_output` escapes all output, but must
    keep line breaks.
    """
    return text.translate(_ESCAPES)


class _Record(str):
    """A log line that is already a JSON object."""


class _Printed(io.TextIOWrapper):
    """A stream for stdout or stderr: escapes control characters, and writes JSON if requested."""

    is_log = False
    used = False

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._lock = threading.RLock()
        self._partial = ""

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as error:
            self._name(error)
            raise

    def write(self, text: str) -> int:
        try:
            return self._write(text)
        except OSError as error:
            self._name(error)
            raise

    def _name(self, error: OSError) -> None:
        """Adds the stream, e.g. if its disk is full: Python names only files opened by a path."""
        error.filename = "stderr" if self.is_log else "stdout"

    def _write(self, text: str) -> int:
        self.used = True
        if self.is_log and logs_json():
            with self._lock:
                lines = [text]
                if not isinstance(text, _Record):
                    *ended, self._partial = (self._partial + text).split("\n")
                    lines = [_as_record(line.strip("\r")) for line in ended if line.strip()]
                super().write("".join(lines))
            return len(text)
        # A progress bar starts with a carriage return, which must be kept.
        start = "\r" if text.startswith("\r") else ""
        super().write(start + text[len(start) :].translate(_ESCAPES_BUT_LINES))
        return len(text)


def open_closed_streams() -> None:
    """Opens closed streams (`2>&-`) on /dev/null, so that no file gets their descriptors."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(descriptor, True)
            stream = os.fdopen(descriptor, mode)
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)


def print_data(line: str) -> None:
    """Prints a line that other commands may read; escapes it only if stdout is a terminal."""
    if sys.stdout.isatty():
        print(printable(line))
    else:
        sys.stdout.flush()
        try:
            sys.stdout.buffer.write(f"{line}\n".encode())
        except OSError as error:
            error.filename = "stdout"
            raise


def escape_output() -> None:
    """Escapes all further output of this process as `printable` does, but keeps line breaks."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if not isinstance(stream, io.TextIOWrapper) or isinstance(stream, _Printed):
            continue  # The stream is closed, or replaced by a test.
        stream.flush()
        printed = _Printed(
            stream.buffer,
            stream.encoding,
            "backslashreplace",
            line_buffering=stream.line_buffering,
            write_through=stream.write_through,
        )
        printed.is_log = name == "stderr"
        setattr(sys, name, printed)


def has_printed() -> bool:
    """Returns whether this process has written to stdout since `escape_output`."""
    return isinstance(sys.stdout, _Printed) and sys.stdout.used


def logs_json() -> bool:
    """Returns whether the lines on stderr are JSON objects."""
    return os.environ.get(LOG_FORMAT) == "json"


def is_live() -> bool:
    """Returns whether stderr is a terminal on which a line may be overwritten."""
    return sys.stderr.isatty() and not logs_json()


def _record(message: str, level: str = "info", **fields: object) -> _Record:
    now = time.time()
    utc = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(now))}.{int(now % 1 * 1000):03d}Z"
    record = {"time": utc, "level": level, "verb": os.environ.get(VERB, ""), "message": message}
    return _Record(json.dumps({**record, **fields}, default=str) + "\n")


def _as_record(line: str) -> str:
    """Returns a line as a JSON object; a JSON object of a child process is returned unchanged."""
    with contextlib.suppress(ValueError):
        if line.startswith('{"time": ') and json.loads(line):
            return f"{line}\n"
    return _record(line)


def say_on(descriptor: int) -> None:
    """Makes `say` print to this descriptor instead of stderr."""
    global _messages
    binary = os.fdopen(descriptor, "wb")
    _messages = _Printed(binary, "utf-8", "backslashreplace", line_buffering=True)
    _messages.is_log = True


def say(
    text: object, level: str = "info", *, prefix: str = "imagenet-prep: ", **fields: object
) -> None:
    """Prints a message on stderr, preceded by the name of this program.

    stdout is flushed first, to keep the order if both streams go to the same file. A progress bar
    stays intact. `level` and `fields` appear only in a JSON log.
    """
    with contextlib.suppress(OSError, ValueError):  # `program.finish` reports the failure
        sys.stdout.flush()
    line = f"{prefix}{text}"
    stream = _messages or sys.stderr
    if logs_json():
        stream.write(_record(str(text), level, **fields))
    elif "tqdm" in sys.modules:
        sys.modules["tqdm"].tqdm.write(line, stream)
    else:
        stream.write(f"{line}\n")  # a single write, so that lines of several threads do not mix
    stream.flush()


def counted(count: int, noun: str) -> str:
    """Returns a number with its noun: "1 shard", "1,024 shards", "2 classes"."""
    several = "es" if noun.endswith("s") else "s"
    return f"{count:,} {noun}{'' if count == 1 else several}"


def in_columns(lines: Sequence[Sequence[str]], left: int) -> str:
    """Returns rows of cells as a table; the first `left` columns are left-aligned."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    table = []
    for line in lines:
        cells = [cell.rjust(width) for cell, width in zip(line, widths, strict=True)]
        cells[:left] = map(str.ljust, line[:left], widths)
        table.append("  ".join(cells).rstrip())
    return "\n".join(table)


def human_bytes(count: float) -> str:
    """Returns a size in powers of 1000, e.g. "147.9 GB"."""
    for unit in ("B", "kB", "MB"):
        if abs(count) < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
