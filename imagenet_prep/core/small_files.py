"""Opens, reads and writes small files; refuses pipes, devices, huge files and planted links.

Reading a named pipe can block forever, a device has no end, and a sparse file that occupies a few
kilobytes can claim terabytes. Use these functions for files from untrusted sources.

A file at a path of the user is written complete or not at all, and never through a link. The folder
may belong to a group, and other users may put links and files into it at any time. So the temporary
file has a random name, is created exclusively, and is opened, renamed and removed relative to the
opened folder. An existing file is only replaced if a command of this program has written it.
"""

from __future__ import annotations

import codecs
import contextlib
import csv
import errno
import fcntl
import os
import re
import shlex
import stat
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

from imagenet_prep.core.errors import DataDamagedError, StoreError, UsageError

# Enough for the manifest of 14 million images in 65,536 shards, which has 30 MB.
MOST_BYTES = 64 << 20
# Enough for a list of a million images with 1 kB per line.
MOST_LIST_BYTES = 1 << 30
_PIECE_BYTES = 1 << 16
DELIMITERS = ",;\t"  # of CSV files
_LINE = re.compile(r"[^\r\n]*(?:\r\n?|\n)|[^\r\n]+\Z")
# The first line of a file from Excel may name the delimiter.
_NAMED_DELIMITER = re.compile(rf'"?sep=([{DELIMITERS}])"?\1*(?:[\r\n]|\Z)', re.IGNORECASE)
_HEADER = re.compile(r"[\r\n]*([^\r\n]*)")
UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_KINDS = {stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket", stat.S_IFDIR: "a folder"}


def csv_rows(text: str, *, strict: bool = True) -> Iterator[tuple[int, list[str]]]:
    """Yields the rows of a CSV file that are not empty, each with the number of its last line.

    The delimiter is a comma, a semicolon or a tab: the most frequent one of the header, or that of
    a first line such as `sep=;`. Spreadsheets write semicolons in countries where the decimal
    separator is a comma. For an empty row, they may write only delimiters.

    Raises:
      csv.Error: a row is invalid; the message names its line. If `strict`, also if quotes are not
        closed, or if text follows them.
    """
    named = _NAMED_DELIMITER.match(text)
    header = _HEADER.match(text)
    assert header is not None
    delimiter = named[1] if named else max(DELIMITERS, key=header[1].count)
    # Line by line, because a copy of all lines takes four times the size of the file.
    lines = (match[0] for match in _LINE.finditer(text))
    rows = csv.reader(lines, delimiter=delimiter, strict=strict)
    try:
        if named:
            next(rows)
        for row in rows:
            if any(map(str.strip, row)):
                yield rows.line_num, row
    except csv.Error as error:
        raise csv.Error(f"line {rows.line_num:,}: {error}") from None


def not_utf_8(path: object, error: UnicodeDecodeError, offset: int = 0) -> str:
    """Returns the sentences about a text file that is not UTF-8, with the way to convert it.

    `error` is about the part of the file at `offset`. A file in UTF-16 already fails at its start.
    """
    at = offset + error.start
    convert = f"-t UTF-8 {shlex.quote(str(path))} > NEW"
    if error.object.startswith(UTF_16):
        return (
            f"{path}: is UTF-16, as Excel and PowerShell save Unicode text. Save it as UTF-8 (in "
            f"Excel: CSV UTF-8), or run: iconv -f UTF-16 {convert}"
        )
    return (
        f"{path}: is not UTF-8 text (byte {at:,}). Save it as UTF-8 (in Excel: CSV UTF-8). For a "
        f"file from Windows, run: iconv -f CP1252 {convert}"
    )


def open_to_read(path: Path) -> int:
    """Opens a regular file, following links; returns its descriptor, which the caller closes."""
    # Without O_NONBLOCK, opening a pipe waits for its writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        require_regular(descriptor, path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def require_regular(descriptor: int, path: Path) -> None:
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
    return DataDamagedError(
        f"{path}: is {kind}, not a file. Replace it by the file, or name another."
    )


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


_PARTIAL = re.compile(r"\.[0-9a-f]{1,32}\.partial")
_NO_LINK = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
# A system call that the file system does not have fails with one of these errors.
UNSUPPORTED = (errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


class FileKind(NamedTuple):
    """A kind of file that commands write, recognised by the bytes `beginning` at offset `at`.

    `name` completes "expected ..." in messages.
    """

    name: str
    beginning: bytes
    at: int = 0


def _require_writable(path: Path) -> None:
    """Raises StoreError if this user cannot write the file, before a command works for hours."""
    folder = path.absolute().parent
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    effective = os.access in os.supports_effective_ids
    if folder.is_dir() and not os.access(folder, os.W_OK | os.X_OK, effective_ids=effective):
        raise StoreError(
            f"cannot write {path}: no permission to write in {folder}. Choose a different file."
        )


def require_own(path: Path, kind: FileKind | None) -> None:
    """Raises UsageError if the running command must not write a file at `path`.

    Raises StoreError if the user has no permission. The command may create a file, and replace an
    empty file or one of its own kind. `kind` is None only for a name that belongs to this program.
    """
    if path.exists() and not path.is_file():
        raise UsageError(f"{path}: is a folder, a pipe or a device. Choose the name of a file.")
    _require_writable(path)
    if kind is None:
        return
    try:
        with open(open_to_read(path), "rb") as file:
            head = file.read(kind.at + len(kind.beginning))
    except FileNotFoundError:
        return
    except (OSError, DataDamagedError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"{path}: cannot be read: {reason}. Choose a different file.") from error
    if head and head[kind.at :] != kind.beginning:
        raise UsageError(
            f"{path}: is not {kind.name}, so it is not replaced. Choose a different file or remove "
            "this one."
        )


@contextlib.contextmanager
def replaced(path: Path, kind: FileKind | None) -> Iterator[BinaryIO]:
    """Yields a new file that replaces `path` on exit, synced; until then, an existing file stays.

    A link at `path` is replaced, not followed. Raises UsageError like `require_own`, and OSError if
    the system refuses.
    """
    require_own(path, kind)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _remove_killed(folder, path.name)
        partial, file = _create(folder, path.name)
        # Other processes do not remove the file while it is open, because it is locked.
        with file:
            try:
                yield file
                file.flush()
                os.fsync(file.fileno())
                _require_same(folder, partial, file, path)
                os.replace(partial, path.name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(partial, dir_fd=folder)
                raise
        fsync_folder(folder)
    finally:
        os.close(folder)


def fsync_folder(descriptor: int) -> None:
    """Syncs an open folder, unless its file system can only sync files (DrvFs, vboxsf, CIFS)."""
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise


def _create(folder: int, name: str) -> tuple[str, BinaryIO]:
    """Returns the name of a new temporary file in a folder, and the file, which is locked."""
    while True:
        partial = f".{name}.{uuid.uuid4().hex}.partial"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        descriptor = os.open(partial, flags, 0o666, dir_fd=folder)
        # If locks are not supported, no process removes temporary files.
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Another run may have removed the file before it was locked.
        if os.fstat(descriptor).st_nlink > 0:
            return partial, open(descriptor, "wb", buffering=1 << 20)
        os.close(descriptor)


def _require_same(folder: int, partial: str, file: BinaryIO, path: Path) -> None:
    """Raises OSError if a different user has put another file in place of the temporary one."""
    found = os.stat(partial, dir_fd=folder, follow_symlinks=False)
    if not os.path.samestat(found, os.fstat(file.fileno())):
        reason = "a different process has replaced the temporary file"
        raise OSError(errno.EBUSY, reason, str(path))


def _remove_killed(folder: int, name: str) -> None:
    """Removes the temporary files of killed runs for the file `name` of a folder."""
    with os.scandir(folder) as entries:
        listed = [entry.name for entry in entries]
    for partial in listed:
        if partial.startswith(f".{name}.") and _PARTIAL.fullmatch(partial, len(name) + 1):
            remove_killed(folder, partial)


def remove_killed(folder: int, partial: str) -> None:
    """Removes a temporary file below an open folder, unless a process still writes it."""
    with contextlib.suppress(OSError):
        descriptor = os.open(partial, os.O_RDONLY | _NO_LINK, dir_fd=folder)
        try:
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(partial, dir_fd=folder)
        finally:
            os.close(descriptor)
