"""Lists the files of a folder that any process opens, reported by the kernel (inotify)."""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
from collections.abc import Iterator
from pathlib import Path

_OPENED = 0x20  # IN_OPEN
_EVENT = struct.Struct("iIII")


@contextlib.contextmanager
def opened(root: Path) -> Iterator[set[str]]:
    """Yields the set to which the end of the block adds the paths below `root` that were opened.

    Folders are named if they are listed; the name of `root` itself is ".".
    """
    libc = ctypes.CDLL(None, use_errno=True)
    watching = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    assert watching >= 0, os.strerror(ctypes.get_errno())
    try:
        # Folders are listed before any is watched, because listing opens them.
        folders = [root, *(path for path in root.rglob("*") if path.is_dir())]
        watched = {
            libc.inotify_add_watch(watching, os.fsencode(path), _OPENED): path for path in folders
        }
        assert min(watched) > 0, os.strerror(ctypes.get_errno())
        found: set[str] = set()
        yield found
        with contextlib.suppress(BlockingIOError):
            while events := os.read(watching, 1 << 16):
                for number, name in _parsed(events):
                    found.add(str((watched[number] / name).relative_to(root)))
    finally:
        os.close(watching)


def _parsed(events: bytes) -> Iterator[tuple[int, str]]:
    """Yields (number of the folder, name in it); the name "" is the folder itself."""
    while events:
        number, mask, _, length = _EVENT.unpack_from(events)
        assert not mask & 0x4000, "more was opened than the kernel keeps"  # IN_Q_OVERFLOW
        name, events = events[_EVENT.size :][:length], events[_EVENT.size + length :]
        yield number, os.fsdecode(name.rstrip(b"\0"))
