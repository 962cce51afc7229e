"""Compiles the library of calls.c, arms it in a forked process, and reads its record."""

from __future__ import annotations

import ctypes
import enum
import errno
import json
import os
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

# The order is that of `enum kind` in calls.c. `create` is an open that makes a file.
KINDS = (
    "write",
    "pwrite",
    "fsync",
    "fdatasync",
    "rename",
    "link",
    "unlink",
    "fallocate",
    "open",
    "create",
    "read",
    "pread",
    "ftruncate",
    "mkdir",
    "syncfs",
    "stat",
    "list",
)
SHORT = "short"
STOP = "stop"
_SOURCE = Path(__file__).with_name("calls.c")
_FLAGS = ("-std=gnu11", "-O2", "-shared", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra")
_ENTRY = struct.Struct("=iiiiqqq")


class Change(enum.IntEnum):
    """A change of a file or folder, in the order of `enum change` in calls.c."""

    WRITTEN = 0
    CUT = 1
    SYNCED = 2
    CREATED = 3
    RENAMED = 4
    LINKED = 5
    UNLINKED = 6
    FOLDER_MADE = 7
    FOLDER_REMOVED = 8
    FOLDER_SYNCED = 9
    ALL_SYNCED = 10


class Entry(NamedTuple):
    """One line of the record, in the order in which the changes were made.

    Attributes:
      change: the kind of change.
      inode: of the file; 0 if only names were changed.
      offset: of the written bytes; the new size of a truncated file.
      mtime_ns: of the file after it.
      name: the changed path, "" if it was an open file.
      other: the new path of a renamed or linked file.
      data: the written bytes.
    """

    change: Change
    inode: int
    offset: int
    mtime_ns: int
    name: str
    other: str
    data: bytes


def build(folder: Path) -> Path:
    """Compiles the library into a folder; skips the test if there is no compiler."""
    # Not for those who only arm it, in a process that is to be quick.
    import pytest

    from tests.kit.codec.native import GCC, missing, zig

    zigs = zig(f"{os.uname().machine}-linux-gnu.2.17")
    compiler = next((each for each in (GCC, zigs) if missing(each) is None), None)
    if compiler is None:
        pytest.skip("no C compiler here")
    library = folder / "calls.so"
    command = [*compiler, *_FLAGS, "-U_FORTIFY_SOURCE", "-o", str(library), str(_SOURCE)]
    made = subprocess.run(command, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    return library


def arm(settings: dict[str, Any]) -> None:
    """Arms the preloaded library in this process, which was just forked.

    Args:
      settings: `folder` below which calls count; `note`, where `disarm` leaves what it counted;
        `fail`, as (kind, number, error, whether all later calls of that kind fail, too); and
        `record`, the file to which all changes are appended.
    """
    library = ctypes.CDLL(None)
    if path := settings.get("record"):
        # Opened before anything counts, and never closed.
        library.calls_record(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
    kind, number, error, goes_on = settings.get("fail", (KINDS[0], 0, "EIO", False))
    code = {SHORT: -1, STOP: -2}.get(error) or getattr(errno, error)
    folder = os.fsencode(settings["folder"])
    library.calls_arm(folder, KINDS.index(kind), ctypes.c_long(number), code, int(goes_on))


def disarm(settings: dict[str, Any]) -> None:
    """Disarms the library, and notes the number of calls and of failed calls."""
    library = ctypes.CDLL(None)
    library.calls_count.restype = library.calls_disarm.restype = ctypes.c_long
    failed = library.calls_disarm()
    counts = {kind: library.calls_count(number) for number, kind in enumerate(KINDS)}
    Path(settings["note"]).write_text(json.dumps({"failed": failed, "counts": counts}))


def entries(record: Path) -> Iterator[Entry]:
    """Yields the recorded changes."""
    data = record.read_bytes()
    position = 0
    while position < len(data):
        change, *sizes, inode, offset, mtime_ns = _ENTRY.unpack_from(data, position)
        position += _ENTRY.size
        parts = []
        for size in sizes:
            parts.append(data[position : position + size])
            position += size
        name, other = map(os.fsdecode, parts[:2])
        yield Entry(Change(change), inode, offset, mtime_ns, name, other, parts[2])
