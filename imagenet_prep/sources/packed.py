"""Unpacks gzip, xz and bzip2 files while they are read, without temporary files."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, cast

from imagenet_prep.core.errors import SourceError
from imagenet_prep.storage.local_file import require_disk
from imagenet_prep.storage.remote_path import Location, open_to_read

UNPACKING_ERRORS = (OSError, EOFError, zlib.error, lzma.LZMAError)
# Limits zeros after the compressed data, because Python's gzip reads them one by one.
_MAX_PADDING_BYTES = 1 << 20
_PADDED = f"it ends with more than {_MAX_PADDING_BYTES:,} zero bytes"
# An xz file sets the size of its dictionary, up to 4 GB. Files of xz -9 need 65 MB.
_MOST_XZ_BYTES = 128 << 20
_PIECE_BYTES = 1 << 16


@contextlib.contextmanager
def errors(path: Location, remedy: str, *more: type[Exception]) -> Iterator[None]:
    """Turns unpacking errors and those in `more` into SourceError.

    Raises StoreError for an error of the disk, and IncompleteError for a lack of memory.
    """
    kinds: tuple[type[Exception], ...] = (*UNPACKING_ERRORS, MemoryError, *more)
    try:
        yield
    except kinds as error:
        require_disk(path, error)
        raise SourceError(f"{path}: cannot be read: {error}. {remedy}") from error


class _Padded:
    """A gzip file that raises OSError if too many zeros follow its compressed data."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._zeros = 0

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self._zeros = self._zeros + 1 if data == b"\0" else 0
        if self._zeros > _MAX_PADDING_BYTES:
            raise OSError(_PADDED)
        return data


def gunzip(file: BinaryIO) -> io.BufferedIOBase:
    """Unpacks a gzip file; reading can raise UNPACKING_ERRORS."""
    return gzip.GzipFile(fileobj=cast(Any, _Padded(file)), mode="rb")


class _Xz(io.RawIOBase):
    """Unpacks xz with a memory limit; LZMAFile would use as much memory as the file requests."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._unpacker = self._new()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = b""
        try:
            while not data:
                packed = self._packed()
                if packed is None:
                    break
                data = self._unpacker.decompress(packed, len(buffer))
        except lzma.LZMAError as error:
            raise lzma.LZMAError(f"{error} (xz levels up to -9 can be unpacked)") from error
        buffer[: len(data)] = data
        return len(data)

    def _packed(self) -> bytes | None:
        packed = b""
        if self._unpacker.eof:
            packed = self._unpacker.unused_data.lstrip(b"\0")
            zeros = 0
            while not packed:  # zeros may follow a stream
                if zeros > _MAX_PADDING_BYTES:
                    raise OSError(_PADDED)
                piece = self._file.read(_PIECE_BYTES)
                if not piece:
                    return None
                zeros += len(piece)
                packed = piece.lstrip(b"\0")
            self._unpacker = self._new()
        elif self._unpacker.needs_input:
            packed = self._file.read(_PIECE_BYTES)
            if not packed:
                raise EOFError("it is truncated")
        return packed

    @staticmethod
    def _new() -> lzma.LZMADecompressor:
        return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MOST_XZ_BYTES)


_PACKERS: dict[bytes, Callable[..., Any]] = {
    b"\x1f\x8b": gunzip,
    b"\xfd7zXZ": lambda file: io.BufferedReader(_Xz(file)),
    b"BZh": bz2.open,
}


def is_compressed(head: bytes) -> bool:
    """Returns whether a file that begins with `head` is a gzip, xz or bzip2 file."""
    return head.startswith(tuple(_PACKERS))


@contextlib.contextmanager
def unpacked(path: Location) -> Iterator[io.BufferedIOBase]:
    """Opens a file for reading; a compressed file is unpacked while it is read."""
    with open_to_read(path) as opened:
        file = cast(io.BufferedReader, opened)
        head = file.peek(8)
        for magic, unpack in _PACKERS.items():
            if head.startswith(magic):
                file = unpack(file)
                break
        with file:
            yield file
