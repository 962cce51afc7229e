"""The files of an archive, whatever it is: a tar, a packed tar or a zip, here or on a server.

What it is, its first bytes say: ImageNetV2's archives are called .tar.gz, and some are plain tars.
"""

from __future__ import annotations

import contextlib
import io
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, BinaryIO, cast

from imagenet_prep.core.errors import SourceError
from imagenet_prep.sources import packed, tar
from imagenet_prep.sources.tar import Allowance, TarMember
from imagenet_prep.storage.remote_path import Location, RemotePath, open_to_read

_ZIP = b"PK\x03\x04"
# ObjectNet's, as its page says: who opens it has read the licence. It concerns no other archive.
_PASSWORD = b"objectnetisatestset"
# Images hardly shrink when they are packed; tars of small ones do, since a tar is padded.
_LEAST_ALLOWANCE = 1 << 30
_MOST_RATIO = 16
# A request to a server brings so much of a zip, whose files are mostly read one after the other.
_AHEAD_BYTES = 4 << 20
# What zipfile and the modules below it raise for damage, passwords and unknown methods.
_ZIP_ERRORS = (zipfile.BadZipFile, RuntimeError, NotImplementedError, ValueError)

Contents = Iterator[tuple[TarMember, Callable[[int], bytes]]]


def is_plain_tar(path: Location) -> bool:
    """Returns whether the images of an archive can be read where they lie."""
    with open_to_read(path) as file:
        head = file.read(tar.HEADER_BYTES)
    return head[257:262] == b"ustar" and not head.startswith(_ZIP)


def contents(path: Location) -> Contents:
    """Yields each file of an archive, and what reads at most so many bytes from its start.

    Only the files of a zip have no offset, which is 0. All that reads raises
    SourceError: it is no archive, is damaged, or unpacks to far more bytes than it has.
    """
    size = path.stat.size if isinstance(path, RemotePath) else path.stat().st_size
    allowance = Allowance(_LEAST_ALLOWANCE + _MOST_RATIO * size)
    with _damage_named(path), contextlib.ExitStack() as stack:
        with open_to_read(path) as file:
            is_zip = file.read(len(_ZIP)) == _ZIP
        if is_zip:
            files = _in_zip(path, allowance)
        else:
            files = tar.contents(stack.enter_context(packed.unpacked(path)), path.name, allowance)
        for member, read in files:
            yield member, partial(_read, path, read)


@contextlib.contextmanager
def _damage_named(path: Location) -> Iterator[None]:
    try:
        yield
    except (*packed.UNPACKING_ERRORS, *_ZIP_ERRORS) as error:
        raise SourceError(f"{path}: cannot be unpacked: {error}. Download it again.") from error


def _read(path: Location, read: Callable[[int], bytes], most: int) -> bytes:
    with _damage_named(path):
        return read(most)


def _in_zip(path: Location, allowance: Allowance) -> Contents:
    with contextlib.ExitStack() as stack:
        file: BinaryIO = (
            cast(BinaryIO, io.BufferedReader(_Seekable(path), _AHEAD_BYTES))
            if isinstance(path, RemotePath)
            else open_to_read(path)
        )
        archive = stack.enter_context(zipfile.ZipFile(stack.enter_context(file)))
        for info in archive.infolist():
            if info.is_dir():
                continue

            def read(most: int, info: zipfile.ZipInfo = info) -> bytes:
                with archive.open(info, pwd=_PASSWORD) as member:
                    # One byte more than the file has: only at its end, its CRC is compared.
                    data = member.read(most + 1)[:most]
                allowance.take(len(data), path.name)
                return data

            yield TarMember(info.filename, 0, info.file_size), read


class _Seekable(io.RawIOBase):
    """A file on a server that is read at any place, as zipfile wants it."""

    def __init__(self, path: RemotePath) -> None:
        self._path, self._at = path, 0
        self._size = path.demand_ranges().size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, start + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        stop = min(self._at + len(buffer), self._size)
        data = self._path.fetch(self._at, stop) if stop > self._at else b""
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)
