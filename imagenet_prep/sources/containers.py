"""Reads tars and zips; detects them by content, because some .tar.gz files are plain tars."""

from __future__ import annotations

import io
import sys
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

from imagenet_prep.sources import packed, tar
from imagenet_prep.sources.tar import Allowance
from imagenet_prep.storage.remote_path import Location, RemotePath, open_to_read

_ZIP = b"PK\x03\x04"
# Published on ObjectNet's page, next to its licence. Other archives have no password.
_PASSWORD = b"objectnetisatestset"
# Images barely compress, but the padding between small images in a tar does.
_LEAST_ALLOWANCE = 1 << 30
_MOST_RATIO = 16
_AHEAD_BYTES = 4 << 20  # bytes per request to a server; files are mostly read in order
_MOST_LIST_BYTES = 16 << 20  # about 120,000 images; the largest published archive has 50,000
_ZIP_ERRORS = (zipfile.BadZipFile, RuntimeError, NotImplementedError, ValueError)


def allowance(size: int) -> Allowance:
    """Returns the limit of the unpacked bytes of a file with `size` bytes."""
    return Allowance(_LEAST_ALLOWANCE + _MOST_RATIO * size)


def contents(path: Location, most: Callable[[str], int]) -> Iterator[tuple[str, int, bytes]]:
    """Yields the name, size and first `most(name)` bytes of each file in an archive."""
    with packed.errors(path, "Download it again.", *_ZIP_ERRORS):
        size = path.stat.size if isinstance(path, RemotePath) else path.stat().st_size
        limit = allowance(size)
        with open_to_read(path) as file:
            is_zip = file.read(len(_ZIP)) == _ZIP
        if is_zip:
            yield from _in_zip(path, limit, most)
            return
        with packed.unpacked(path) as stream:
            for member, read in tar.contents(stream, path.name, limit):
                yield member.name, member.size, read(most(member.name))


def _in_zip(
    path: Location, limit: Allowance, most: Callable[[str], int]
) -> Iterator[tuple[str, int, bytes]]:
    raw: Any = _Seekable(path) if isinstance(path, RemotePath) else open_to_read(path)
    with _Zip(raw, _AHEAD_BYTES) as opened, zipfile.ZipFile(opened) as archive:
        opened.most = sys.maxsize
        for info in (info for info in archive.infolist() if not info.is_dir()):
            data = b""
            num_bytes = most(info.filename)
            if num_bytes:
                with archive.open(info, pwd=_PASSWORD) as member:
                    # zipfile checks the CRC only at the end of the file, so read one byte more.
                    data = member.read(num_bytes + 1)[:num_bytes]
                limit.take(len(data), path.name)
            yield info.filename, info.file_size, data


class _Zip(io.BufferedReader):
    """A zip file; limits the size of its file list, because zipfile loads all of it into memory."""

    most = _MOST_LIST_BYTES

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > self.most:
            raise zipfile.BadZipFile(
                f"its list of files has {size:,} bytes, expected at most {self.most:,}"
            )
        return super().read(size)


class _Seekable(io.RawIOBase):
    """A remote file with random access for zipfile."""

    def __init__(self, path: RemotePath) -> None:
        self._path = path
        self._at = 0
        self._size = path.require_ranges().size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = max(0, (0, self._at, self._size)[whence] + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        stop = min(self._at + len(buffer), self._size)
        data = self._path.fetch(self._at, stop) if stop > self._at else b""
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)
