"""Opens regular files alone, and reads small ones whole: whatever lies at a path may be planted.

A named pipe would be waited for without end, a device never ends, and a sparse file of some
kilobytes can claim to hold terabytes. So whoever reads a file that came from elsewhere opens it
here, and names the most bytes that it may have.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

from imagenet_prep.core.errors import DataDamagedError, UsageError

# Room for the manifest of 14 million images in 65,536 shards, which has 30 MB.
MOST_BYTES = 64 << 20
# Room for a list with a line per image of a class, a shard or a part: 1 kB for a million of them.
MOST_LIST_BYTES = 1 << 30
_PIECE_BYTES = 1 << 16
_KINDS = {stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket", stat.S_IFDIR: "a folder"}


def open_to_read(path: Path) -> int:
    """Opens a regular file; returns its descriptor, which the caller closes.

    Links are followed: where they must not be, `storage/inside` opens.
    """
    # Without O_NONBLOCK, opening a pipe waits for its writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        demand_regular(descriptor, path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def demand_regular(descriptor: int, path: Path) -> None:
    """Raises DataDamagedError unless an open file is a regular one or a folder.

    A folder is left to the read, for which the system has a better error.
    """
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise _no_file(path, mode)


def refuse_other_kinds(path: Path) -> None:
    """Raises DataDamagedError if a path leads to something that is not a regular file."""
    try:
        mode = path.stat().st_mode
    except PermissionError:
        return
    except OSError:
        if path.is_symlink():
            raise _no_file(path, 0) from None
    else:
        if not stat.S_ISREG(mode):
            raise _no_file(path, mode)


def _no_file(path: Path, mode: int) -> DataDamagedError:
    kind = _KINDS.get(stat.S_IFMT(mode), "a device") if mode else "a link that leads nowhere"
    return DataDamagedError(
        f"{path}: is {kind}, not a file. Nothing was read from it. Remove it, and get the file "
        "again."
    )


def read(path: Path, most: int = MOST_BYTES) -> bytes:
    """Returns the bytes of a small regular file; links are followed."""
    with open(open_to_read(path), "rb") as file:
        return read_whole(file, path, most)


def read_whole(file: BinaryIO, path: Path, most: int = MOST_BYTES) -> bytes:
    """Returns the rest of an open file; raises as `read`, for `path`."""
    # The size is asked first, so that what is too large is never read. What grows meanwhile, or
    # has no size (/proc), is bounded too. A read makes room for all that it is asked for.
    size = os.fstat(file.fileno()).st_size
    data = bytearray()
    while size <= most >= len(data):
        part = file.read(min(max(size, _PIECE_BYTES), most) + 1)
        if not part:
            break
        data += part
    if max(size, len(data)) > most:
        raise DataDamagedError(
            f"{path}: has {max(size, len(data)):,} bytes, expected {most:,} at most. This program "
            "did not write it so: get the file again."
        )
    return bytes(data)


def demand_own(path: Path, kind: str, beginning: bytes, at: int = 0) -> None:
    """Raises UsageError if a file was not written by the running command, or is not empty.

    Files of the command, which the message calls `kind`, have the bytes `beginning` at an offset.
    """
    try:
        if not path.is_file():
            return
        with open(path, "rb") as file:
            head = file.read(at + len(beginning))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    if head and head[at:] != beginning:
        raise UsageError(
            f"{path}: is not {kind}, so it is not replaced. Name another file, or remove this one."
        )
