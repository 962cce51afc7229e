"""Files that are packed by gzip, xz or bzip2, read without unpacking them to a disk."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, cast

from imagenet_prep.storage.remote_path import Location, open_to_read

# The errors that unpacking raises for damaged bytes.
UNPACKING_ERRORS = (OSError, EOFError, zlib.error, lzma.LZMAError)
# Python's gzip reads the zeros behind a packed file one by one, however many there are.
_MAX_PADDING_BYTES = 1 << 20


class _Padded:
    """A file as gzip reads it; OSError where it is padded with more zeros than a tape needs."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._zeros = file, 0

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self._zeros = self._zeros + 1 if data == b"\0" else 0
        if self._zeros > _MAX_PADDING_BYTES:
            raise OSError(f"behind the packed bytes are more than {_MAX_PADDING_BYTES:,} zeros")
        return data


def gunzip(file: BinaryIO) -> io.BufferedIOBase:
    """Returns the bytes of a file that is packed by gzip; to read them raises UNPACKING_ERRORS."""
    return gzip.GzipFile(fileobj=cast(Any, _Padded(file)), mode="rb")


_PACKERS: dict[bytes, Callable[..., Any]] = {
    b"\x1f\x8b": gunzip,
    b"\xfd7zXZ": lzma.open,
    b"BZh": bz2.open,
}


@contextlib.contextmanager
def unpacked(path: Location) -> Iterator[io.BufferedIOBase]:
    """Yields the bytes of a file that may be packed.

    Raises:
      UNPACKING_ERRORS: here, and where it is read.
    """
    with open_to_read(path) as opened:
        file = cast(io.BufferedReader, opened)
        head = file.peek(8)
        packers = (packer for magic, packer in _PACKERS.items() if head.startswith(magic))
        packer = next(packers, None)
        if packer is None:
            yield file
            return
        with packer(file) as stream:
            yield stream
