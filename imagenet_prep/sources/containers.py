"""Reads tars, zips and compressed files without extracting them; detects them by content.

Some .tar.gz files are plain tars.

For plain ustar headers, this module is ten times as fast as Python's tarfile, which reads 20,000
members per second. A member with an absolute path or with .. in its path is refused.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import lzma
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple, cast

from imagenet_prep.core.errors import SourceError
from imagenet_prep.storage.archive import ArchiveReader, Reads, RemoteArchives
from imagenet_prep.storage.local_file import require_disk
from imagenet_prep.storage.remote_path import Entry, Location, RemotePath, open_to_read

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


_BLOCK = 512
HEADER_BYTES = _BLOCK  # the header of a file with a short name
MOST_HEADER_BYTES = 16 * _BLOCK  # all headers of a file with a long name: at most 4 kB on Linux
_ZERO = bytes(_BLOCK)
_REGULAR = (b"0", b"\0", b"7")
_LONG_NAME = b"L"
_PAX = b"x"
_PAX_GLOBAL = b"g"
_FOLDER = b"5"
_REFUSED = {
    b"1": "a hard link",
    b"2": "a symbolic link",
    b"3": "a device",
    b"4": "a device",
    b"6": "a pipe",
}
_MAX_EXTENDED_BYTES = 1 << 20  # a pax header may have more fields than a path
_MAX_NAME_LENGTH = 4096  # PATH_MAX on Linux; names of a megabyte each would fill the memory
_MAX_DIGITS = 19  # as in 2^63; int() raises a different error for over 4,300 digits
_DAMAGED = "It is damaged or not a tar: compare its md5 and download it again."
_TAMPERED = "The archive was tampered with: get the original one."


class TarMember(NamedTuple):
    """A regular file: its name and the byte range of its content in the archive."""

    name: str
    offset: int
    size: int


def files_of(
    archives: ArchiveReader | RemoteArchives,
    archive: str,
    start: int,
    stop: int,
    *,
    skipping: bool = False,
) -> list[TarMember]:
    """Returns the files in bytes [start, stop); if `skipping`, requests only headers."""
    files = archives.files_of(
        archive,
        start,
        stop,
        lambda r: members(r, archive, start, stop),
        is_whole=lambda files: _is_whole(archives, archive, start, stop, files),
        header_bytes=HEADER_BYTES if skipping else 0,
    )
    return [TarMember(*file) for file in files]


def _is_whole(reader: Reads, archive: str, start: int, stop: int, files: Sequence[Entry]) -> bool:
    """Returns whether `files` has no gaps: each follows its header, and the end block is last."""
    position = start
    for _, offset, size in files:
        if offset != position + HEADER_BYTES:
            return False
        position = offset + -(-size // _BLOCK) * _BLOCK
    return position + _BLOCK <= stop and reader.read(archive, position, _BLOCK) == _ZERO


def file_behind(headers: bytes, archive: str, offset: int) -> TarMember | None:
    """Parses the header bytes before `offset`; returns the file that begins there, or None."""
    for skipped in range(len(headers) % _BLOCK, len(headers), _BLOCK):
        # Start with the earliest block: headers of long names come first.
        start = offset - len(headers) + skipped
        with contextlib.suppress(SourceError):
            member = next(members(_Headers(headers, offset), archive, start, _Forward.END), None)
            if member is not None and member.offset == offset:
                return member
    return None


class _Headers(NamedTuple):
    """Implements `Reads` for the header bytes that end at byte `stop` of an archive."""

    data: bytes
    stop: int

    def read(self, archive: str, offset: int, size: int) -> bytes:
        start = offset - self.stop + len(self.data)
        data = self.data[start : start + size]
        if len(data) < size:
            raise SourceError(f"{archive}: has no header before byte {self.stop:,}")
        return data


def members(reader: Reads, archive: str, start: int, stop: int) -> Iterator[TarMember]:
    """Yields the regular files of the tar in bytes [start, stop) of an archive."""
    position = start
    extended: dict[str, str] = {}
    while True:
        where = f"{archive}: byte {position:,}"
        if position + _BLOCK > stop:
            raise SourceError(
                f"{where}: has no end-of-archive block. The tar is truncated: download it again."
            )
        header = reader.read(archive, position, _BLOCK)
        if header == _ZERO:
            _require_zeros(reader, archive, position + _BLOCK, stop)
            return
        name, size, kind = _parse(header, where)
        name = extended.get("path", name)
        if len(name) > _MAX_NAME_LENGTH:
            raise SourceError(
                f"{where}: the name {name[:64]!r}... has {len(name):,} characters, expected at "
                f"most {_MAX_NAME_LENGTH:,}. {_TAMPERED}"
            )
        size = _number(extended["size"].encode(), 10, where) if "size" in extended else size
        content = position + _BLOCK
        position = content + -(-size // _BLOCK) * _BLOCK
        if content + size > stop:
            raise SourceError(
                f"{where}: member {name!r} needs bytes up to {content + size:,}, but the tar ends "
                f"at {stop:,}. It is truncated: download it again."
            )
        if kind in (_LONG_NAME, _PAX, _PAX_GLOBAL):
            if size > _MAX_EXTENDED_BYTES:
                raise SourceError(f"{where}: extended header is too large ({size:,}). {_DAMAGED}")
            data = reader.read(archive, content, size)
            if kind == _LONG_NAME:
                extended["path"] = _text(data.rstrip(b"\0"))
            elif kind == _PAX:
                extended |= _pax_records(data, where)
            continue
        extended = {}
        if kind in _REFUSED:
            raise SourceError(f"{where}: member {name!r} is {_REFUSED[kind]}. {_TAMPERED}")
        if name.startswith("/") or ".." in name.split("/"):
            raise SourceError(f"{where}: member {name!r} points outside its folder. {_TAMPERED}")
        # Before ustar, a folder was a file with a trailing slash.
        if kind == _FOLDER or (kind == b"\0" and name.endswith("/")):
            continue
        if kind not in _REGULAR:
            raise SourceError(f"{where}: member {name!r} is of unknown kind {kind!r}. {_DAMAGED}")
        yield TarMember(name, content, size)


def _require_zeros(reader: Reads, archive: str, start: int, stop: int) -> None:
    """Raises SourceError if other bytes follow the end-of-archive block.

    They may be files: after a lost block, or of a second tar in the same file.
    """
    # Nothing is read here if the size is unknown: `_Forward.finish` does.
    sizes = () if stop == _Forward.END else range(start, stop, _PIECE_BYTES)
    for first in sizes:
        data = reader.read(archive, first, min(_PIECE_BYTES, stop - first))
        if data.strip(b"\0"):
            raise _data_behind_end(archive, start - _BLOCK)


def _data_behind_end(archive: str, end: int) -> SourceError:
    return SourceError(
        f"{archive}: byte {end:,}: data follows this end-of-archive block, and may have more "
        "files. Compare the md5 of the archive and download it again; or, if it was made from "
        "several tars, unpack it with tar --ignore-zeros and pack the files again."
    )


def _parse(header: bytes, where: str) -> tuple[str, int, bytes]:
    try:
        checksum = int(header[148:156].strip(b"\0 ") or b"0", 8)
    except ValueError:
        checksum = -1
    # The checksum field is summed as eight spaces (POSIX ustar).
    if is_compressed(header):
        raise SourceError(
            f"{where}: not a tar, but a compressed file, which cannot be read in place. Unpack it "
            "with gunzip or xz, or unpack all images into class folders and set --source to their "
            "folder."
        )
    if checksum != _sum(header[:256]) + _sum(header[256:]) - sum(header[148:156]) + 8 * 0x20:
        raise SourceError(f"{where}: not a tar header (its checksum is wrong). {_DAMAGED}")
    field = header[124:136]
    if field[0] & 0x80:
        size = int.from_bytes(field, "big") & ((1 << 95) - 1)  # GNU base-256, beyond 8 GiB
    else:
        size = _number(field.strip(b"\0 ") or b"0", 8, where)
    name = _text(header[:100].partition(b"\0")[0])
    if header[257:263] == b"ustar\0" and header[345] != 0:
        prefix = header[345:500].partition(b"\0")[0]
        name = f"{_text(prefix)}/{name}"
    return name, size, header[156:157]


def _sum(data: bytes) -> int:
    """Returns the sum of up to 256 bytes, fast: the lower half of their Adler-32 is sum + 1."""
    return (zlib.adler32(data) & 0xFFFF) - 1


def _pax_records(data: bytes, where: str) -> dict[str, str]:
    r"""Returns the path and size in a pax header with records of the form `LENGTH KEY=VALUE\n`."""
    records = {}
    start = 0
    while start < len(data):
        digits = data[start : start + _MAX_DIGITS].partition(b" ")[0]
        stop = start + int(digits) if digits.isdigit() else start
        record = data[start:stop]
        key, equals, value = record.partition(b" ")[2].partition(b"=")
        if not equals or not record.endswith(b"\n") or stop > len(data):
            raise SourceError(f"{where}: the pax header is invalid. {_DAMAGED}")
        if key in (b"path", b"size"):
            records[_text(key)] = _text(value[:-1])
        start = stop
    return records


def _number(digits: bytes, base: int, where: str) -> int:
    if digits.isdigit() and len(digits) <= _MAX_DIGITS:
        try:
            return int(digits, base)
        except ValueError:
            pass  # octal numbers have no digits 8 and 9
    kind = "octal" if base == 8 else "decimal"
    raise SourceError(
        f"{where}: a member's size is {digits[:32]!r}, expected at most {_MAX_DIGITS} {kind} "
        f"digits. {_DAMAGED}"
    )


class Allowance:
    """Limits the total unpacked size of an archive and of the archives in it."""

    def __init__(self, most_bytes: int) -> None:
        self._most = self._remaining_bytes = most_bytes

    def take(self, num_bytes: int, archive: str) -> None:
        """Counts unpacked bytes; raises SourceError if there are too many in total."""
        self._remaining_bytes -= num_bytes
        if self._remaining_bytes < 0:
            raise SourceError(f"{archive}: unpacks to more than {self._most:,} bytes")


class _Forward:
    """Reads a stream at increasing offsets, so that a compressed tar needs no unpacked copy."""

    END = 1 << 62  # the unpacked size is unknown; reading past the end raises an error

    def __init__(self, stream: io.BufferedIOBase, allowance: Allowance) -> None:
        self._stream = stream
        self._allowance = allowance
        self._position = 0

    def read(self, archive: str, offset: int, size: int) -> bytes:
        self.skip(archive, offset - self._position)
        data = self._next(archive, size)
        if len(data) < size:
            raise SourceError(f"{archive}: is truncated at byte {self._position:,}. {_DAMAGED}")
        return data

    def skip(self, archive: str, num_bytes: int) -> None:
        """Reads up to `num_bytes` bytes and discards them."""
        while num_bytes > 0 and (data := self._next(archive, min(num_bytes, 1 << 20))):
            num_bytes -= len(data)

    def finish(self, archive: str) -> None:
        """Reads the rest of the stream, which may only have zeros."""
        end = self._position - _BLOCK
        while data := self._next(archive, _PIECE_BYTES):
            if data.strip(b"\0"):
                raise _data_behind_end(archive, end)

    def _next(self, archive: str, size: int) -> bytes:
        data = self._stream.read(size)
        self._position += len(data)
        self._allowance.take(len(data), archive)
        return data


def stream_contents(
    stream: io.BufferedIOBase, archive: str, allowance: Allowance
) -> Iterator[tuple[TarMember, Callable[[int], bytes]]]:
    """Yields each file and a function that reads its start; then reads the rest of the stream."""
    reader = _Forward(stream, allowance)
    for member in members(reader, archive, 0, reader.END):

        def read(most: int, member: TarMember = member) -> bytes:
            return reader.read(archive, member.offset, min(member.size, most))

        yield member, read
    # A compressed stream has its checksum after the end of the tar.
    reader.finish(archive)


def small_files(
    path: Location, names: Sequence[str], *, max_bytes: int, max_unpacked_bytes: int, advice: str
) -> list[bytes]:
    """Reads small files in an archive or its extracted folder; error messages end with `advice`."""
    content: dict[str, bytes] = {}
    with errors(path, advice, SourceError):
        if path.is_dir():
            for name in names:
                with open_to_read(path / name) as file:
                    content[name] = file.read(max_bytes + 1)
        else:
            with unpacked(path) as stream:
                files = stream_contents(stream, path.name, Allowance(max_unpacked_bytes))
                for member, read in files:
                    for name in names:
                        if f"/{member.name}".endswith(f"/{name}"):
                            content[name] = read(max_bytes + 1)
    missing = [name for name in names if not content.get(name)]
    if missing:
        raise SourceError(f"{path}: holds no {' and no '.join(missing)}. {advice}")
    for name in names:
        if len(content[name]) > max_bytes:
            raise SourceError(f"{path}: {name} has more than {max_bytes:,} bytes. {advice}")
    return [content[name] for name in names]


def _text(name: bytes) -> str:
    # A name that is not UTF-8 must still become a unique, printable key.
    return name.decode(errors="backslashreplace")


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
    with errors(path, "Download it again.", *_ZIP_ERRORS):
        size = path.stat.size if isinstance(path, RemotePath) else path.stat().st_size
        limit = allowance(size)
        with open_to_read(path) as file:
            is_zip = file.read(len(_ZIP)) == _ZIP
        if is_zip:
            yield from _in_zip(path, limit, most)
            return
        with unpacked(path) as stream:
            for member, read in stream_contents(stream, path.name, limit):
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
