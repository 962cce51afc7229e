"""Command lines and open files of processes, which may end or close them meanwhile."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import NamedTuple


class OpenFile(NamedTuple):
    """A descriptor of a process: the path that it was opened with, and the file's inode."""

    path: str
    inode: int


def words_of(pid: int) -> list[bytes]:
    """Returns the words of a process's command line; none if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return []


def open_files(pid: int | str = "self") -> list[OpenFile]:
    """Returns the open files of a process; one that is closed meanwhile may be missing."""
    found = []
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        # The descriptor of this listing is closed already.
        with contextlib.suppress(FileNotFoundError):
            found.append(OpenFile(os.readlink(descriptor), descriptor.stat().st_ino))
    return found


def open_below(folder: Path) -> list[str]:
    """Returns the paths of this process's open files in a folder, sorted."""
    return sorted(file.path for file in open_files() if file.path.startswith(f"{folder}/"))
