"""What a command prints: messages, sizes, and text that no terminal obeys."""

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

# "json" makes each line on stderr a JSON object, also those of child processes.
LOG_FORMAT = "IMAGENET_PREP_LOG_FORMAT"
# The verb that these objects name; a verb sets it for its child processes.
VERB = "IMAGENET_PREP_VERB"

# Characters that a terminal obeys, or that change the order in which others are shown.
_OBEYED = [*range(0x20), *range(0x7F, 0xA0), 0x061C, 0x200E, 0x200F]
_OBEYED += [*range(0x2028, 0x202F), *range(0x2066, 0x206A)]
# Characters beyond ASCII are escaped as in JSON, so that JSON that is printed stays JSON.
_ESCAPES = {code: f"\\x{code:02x}" if code < 0x20 else f"\\u{code:04x}" for code in _OBEYED}
_ESCAPES_BUT_LINES = {code: text for code, text in _ESCAPES.items() if chr(code) not in "\t\n"}


_said: _Printed | None = None


def printable(text: str) -> str:
    r"""Returns text from data as one line that no terminal obeys: "\x1b" for an escape.

    `escape_output` escapes all that is printed, but it must keep the ends of lines. Only the code
    that puts a name into a line can tell the name's ends of lines from its own.
    """
    return text.translate(_ESCAPES)


class _Record(str):
    """A line of the log that is a JSON object already."""


class _Printed(io.TextIOWrapper):
    """stdout or stderr, on which names and messages from elsewhere cannot play tricks."""

    is_log = False
    used = False

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._lock = threading.RLock()
        self._begun = ""

    def write(self, text: str) -> int:
        self.used = True
        if self.is_log and logs_json():
            with self._lock:
                lines = [text]
                if not isinstance(text, _Record):
                    *ended, self._begun = (self._begun + text).split("\n")
                    lines = [_as_record(line.strip("\r")) for line in ended if line.strip()]
                super().write("".join(lines))
            return len(text)
        # A progress bar begins with a return to the start of its line.
        start = "\r" if text.startswith("\r") else ""
        super().write(start + text[len(start) :].translate(_ESCAPES_BUT_LINES))
        return len(text)


def open_closed_streams() -> None:
    """Opens the streams that the caller has closed (`2>&-`) on the null device.

    Otherwise the first files that are opened get their numbers, and messages of libraries go there.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(descriptor, True)
            stream = os.fdopen(descriptor, mode)
            for each in (name, f"__{name}__"):
                setattr(sys, each, stream)


def print_data(line: str) -> None:
    """Prints a line that other commands read: as it is, unless a terminal shows it."""
    if sys.stdout.isatty():
        print(printable(line))
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(f"{line}\n".encode())


def escape_output() -> None:
    """Escapes from now on what this process prints, as `printable` does, but keeps lines."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if not isinstance(stream, io.TextIOWrapper) or isinstance(stream, _Printed):
            continue  # It is closed, or a test has replaced it.
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
    said = {"time": utc, "level": level, "verb": os.environ.get(VERB, ""), "message": message}
    return _Record(json.dumps({**said, **fields}, default=str) + "\n")


def _as_record(line: str) -> str:
    """Returns a line as a record, also if a child process has made one of it already."""
    with contextlib.suppress(ValueError):
        if line.startswith('{"time": ') and json.loads(line):
            return f"{line}\n"
    return _record(line)


def say_on(descriptor: int) -> None:
    """Lets `say` print there, instead of on this process's stderr."""
    global _said
    binary = os.fdopen(descriptor, "wb")
    _said = _Printed(binary, "utf-8", "backslashreplace", line_buffering=True)
    _said.is_log = True


def say(
    text: object, level: str = "info", *, prefix: str = "imagenet-prep: ", **fields: object
) -> None:
    """Prints a message to the user on stderr, under the name of this program.

    It comes after all that was printed before, also if both streams are one file, and not into a
    progress bar. `level` and `fields` are only in a log of JSON objects.
    """
    with contextlib.suppress(OSError, ValueError):  # `program.finish` reports why
        sys.stdout.flush()
    line, stream = f"{prefix}{text}", _said or sys.stderr
    if logs_json():
        stream.write(_record(str(text), level, **fields))
    elif "tqdm" in sys.modules:
        sys.modules["tqdm"].tqdm.write(line, stream)
    else:
        stream.write(f"{line}\n")  # in one piece, also where several threads do so
    stream.flush()


def counted(count: int, noun: str) -> str:
    """Returns how many of something there are: "1 shard", "1,024 shards", "2 classes"."""
    several = "es" if noun.endswith("s") else "s"
    return f"{count:,} {noun}{'' if count == 1 else several}"


def in_columns(lines: Sequence[Sequence[str]], left: int) -> str:
    """Returns lines of cells as a table, whose first `left` columns are aligned to the left."""
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
