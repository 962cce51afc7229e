"""Opens regular files and reads small ones; refuses pipes, devices and huge files.

Reading a named pipe can block forever, a device has no end, and a sparse file that occupies a few
kilobytes can claim terabytes. Use these functions for files from untrusted sources.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

from imagenet_prep.core.errors import DataDamagedError

# Enough for the manifest of 14 million images in 65,536 shards, which has 30 MB.
MOST_BYTES = 64 << 20
# Enough for a list of a million images with 1 kB per line.
MOST_LIST_BYTES = 1 << 30
_PIECE_BYTES = 1 << 16
_KINDS = {stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket", stat.S_IFDIR: "a folder"}


def open_to_read(path: Path) -> int:
    """Opens a regular file, following links; returns its descriptor, which the caller closes."""
    # Without O_NONBLOCK, opening a pipe waits for its writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        demand_regular(descriptor, path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def demand_regular(descriptor: int, path: Path) -> None:
    """Raises DataDamagedError if an open file is a pipe, a socket or a device."""
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise _no_file(path, mode)


def refuse_other_kinds(path: Path) -> None:
    """Raises DataDamagedError if a path exists but does not lead to a regular file."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        # Other errors say nothing about the path: the caller reads the file, and reports them.
        if error.errno in (errno.ENOENT, errno.ELOOP) and path.is_symlink():
            raise _no_file(path, 0) from None
    else:
        if not stat.S_ISREG(mode):
            raise _no_file(path, mode)


def _no_file(path: Path, mode: int) -> DataDamagedError:
    kind = _KINDS.get(stat.S_IFMT(mode), "a device") if mode else "a broken link"
    return DataDamagedError(f"{path}: is {kind}, not a file. Remove it and get the file again.")


def read(path: Path, most: int = MOST_BYTES) -> bytes:
    """Returns the bytes of a regular file, following links; `most` is the maximum size."""
    with open(open_to_read(path), "rb") as file:
        return read_whole(file, path, most)


def read_whole(file: BinaryIO, path: Path, most: int = MOST_BYTES) -> bytes:
    """Returns the remaining bytes of an open file; raises DataDamagedError if it is too large."""
    # Check the size first, so that an oversized file is never read. The loop also limits files that
    # grow meanwhile or have no size (/proc). A read allocates the requested size.
    size = os.fstat(file.fileno()).st_size
    data = bytearray()
    while size <= most >= len(data):
        part = file.read(min(max(size, _PIECE_BYTES), most) + 1)
        if not part:
            break
        data += part
    if max(size, len(data)) > most:
        raise DataDamagedError(
            f"{path}: has {max(size, len(data)):,} bytes, expected at most {most:,}. Get the file "
            "again."
        )
    return bytes(data)
