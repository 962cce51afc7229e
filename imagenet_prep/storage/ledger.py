"""Records of earlier runs: the verified files of a folder, and the sources of datasets.

A ledger has one note per line. A note is valid only for the file that was verified (see
`Identity`). It is not valid for a copy, or after the file was written, replaced or renamed.

`report` shows images from the sources of datasets, and its page may be published. Their locations
are not stored in the dataset, since its author could then choose which of a reader's files are
shown. They are in the user's cache folder, in one file per digest of a manifest.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any, NamedTuple, Self

from imagenet_prep.core import small_files, strict_json
from imagenet_prep.core.errors import ImagenetPrepError
from imagenet_prep.core.strict_json import Json
from imagenet_prep.dataset import schema
from imagenet_prep.storage import local_file
from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.storage.local_file import storage_errors

# The ledger of `download` and of the reader's cache.
NOTES = f"{schema.WORK}/proven.jsonl"
# Longer lines are skipped. This program writes less than 600 bytes per line.
_MAX_LINE_BYTES = 1 << 16
_USUAL_LINE_BYTES = 1 << 10
# A ledger is rewritten if it has more lines than twice the number of files plus this.
_SPARE_LINES = 64
# The maximum number of archives in one folder, including unfinished downloads.
MOST_ARCHIVES = 1000
_MD5 = re.compile(r"[0-9a-f]{32}")


class Identity(NamedTuple):
    """Identifies the state of a file: each write, rename or new link changes the ctime."""

    num_bytes: int
    mtime_ns: int
    ctime_ns: int
    inode: int

    @classmethod
    def of(cls, status: os.stat_result) -> Self:
        """Returns the identity of a file from its stat result."""
        return cls(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


class Journal:
    """A file of JSON lines, which several processes may read and append to; not thread-safe.

    `num_lines` includes lines that are not JSON. `status` is the file's stat at the last read.
    """

    status: os.stat_result

    def __init__(
        self, store: LocalStore, name: str, most_bytes: int = small_files.MOST_BYTES
    ) -> None:
        # A file of more than `most_bytes` was not written by this program: its lines are skipped.
        self._store, self._name, self._most = store, name, most_bytes
        self._inode = self._offset = self.num_lines = 0

    def news(self) -> Iterator[Any]:
        """Yields the lines added since the last call, in order, or all if the file was replaced.

        Lines that are incomplete, too long or not JSON are skipped.
        """
        with storage_errors("read", self._store.root / self._name):
            try:
                descriptor = self._store.open(self._name, os.O_RDONLY)
            except (FileNotFoundError, NotADirectoryError):
                return
            with os.fdopen(descriptor, "rb") as file:
                self.status = os.fstat(descriptor)
                inode, size = self.status.st_ino, self.status.st_size
                if inode != self._inode or size < self._offset:
                    self._inode = inode
                    self._offset = 0
                    self.num_lines = 0
                if size - self._offset > self._most:
                    self._offset, self.num_lines = size, sys.maxsize
                if size == self._offset:
                    return
                file.seek(self._offset)
                is_rest = False
                while line := file.readline(_MAX_LINE_BYTES):
                    is_end = line.endswith(b"\n")
                    if not is_end and len(line) < _MAX_LINE_BYTES:
                        return  # the rest of the line is not written yet, or never will be
                    self._offset += len(line)
                    self.num_lines += is_end
                    if is_end and not is_rest and line != b"\n":
                        try:
                            entry = strict_json.loads(line)
                        except ValueError:
                            continue
                        yield entry
                    is_rest = not is_end

    def add(self, *entries: Any) -> None:
        """Appends one line per entry; raises StoreError or OSError if that fails."""
        self._store.make_folder(self._name.rpartition("/")[0])
        descriptor = self._store.open(self._name, os.O_CREAT | os.O_RDWR | os.O_APPEND)
        with os.fdopen(descriptor, "ab") as file:
            size = os.fstat(descriptor).st_size
            # If a crash has cut off the last line, start on a new line.
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                file.write(b"\n")
            file.write(_lines(entries))

    def rewrite(self, entries: Iterable[Any]) -> None:
        """Replaces all lines of the file by these entries."""
        self._store.write(self._name, _lines(entries))


class Ledger:
    """Notes about verified files: the name, `Identity` and result of each file.

    Several threads and processes may share a ledger. If a note is lost, one file is read again.
    """

    def __init__(
        self, store: LocalStore, name: str, num_files: int, *, trusts_owner: bool = False
    ) -> None:
        """Reads the notes of at most `num_files` files.

        A much larger ledger is ignored, and replaced when a note is added. A ledger must belong to
        this user or root or, with `trusts_owner`, to the owner of the folder.
        """
        self._store, self._trusts_owner = store, trusts_owner
        most = (2 * num_files + _SPARE_LINES) * _USUAL_LINE_BYTES
        self._journal = Journal(store, name, most)
        self._notes: dict[str, Json] = {}
        self._lock = threading.RLock()
        self.reload()

    def reload(self) -> list[str]:
        """Reads the lines added since the last call; returns the names of their files."""
        # Ignore a ledger that is unreadable, a link or writable by others: it will be replaced.
        new: list[str] = []
        is_trusted = False
        with self._lock:
            try:
                for entry in self._journal.news():
                    is_trusted = is_trusted or self._is_trusted(self._journal.status)
                    match entry:
                        case {"name": str(name)} if is_trusted:
                            self._notes[name] = entry
                            new.append(name)
                    if not is_trusted:
                        self._journal.num_lines = sys.maxsize
            except (OSError, ImagenetPrepError):
                self._journal.num_lines = sys.maxsize
        return new

    def find(self, name: str, status: os.stat_result | None = None) -> Json | None:
        """Returns the note of a file, or None if there is none or the file has changed since."""
        note = self._notes.get(name, {})
        noted = [note.get(field) for field in Identity._fields]
        with contextlib.suppress(OSError, ImagenetPrepError):
            status = status or self._store.path(name).stat()
            if all(type(value) is int for value in noted) and Identity.of(status) == (*noted,):
                return note
        return None

    def sha256(
        self, name: str, opened: BufferedReader, *, again: bool = False, noted: bool = True
    ) -> str:
        """Returns an open file's sha256; reads the file if it has no note, or if `again` is set."""
        status = os.fstat(opened.fileno())
        note = {} if again else self.find(name, status) or {}
        sha256 = note.get("sha256")
        if not isinstance(sha256, str):
            sha256 = hashlib.file_digest(opened, "sha256").hexdigest()
            if noted:
                self.add({name: status}, sha256=sha256)
        return sha256

    def add(self, files: Mapping[str, os.stat_result], **result: Any) -> None:
        """Adds a note with the same result for each verified file.

        `files` are stat results from before the read. In a read-only folder, notes stay in memory.
        """
        new = {
            name: {"name": name, **Identity.of(status)._asdict(), **result}
            for name, status in files.items()
        }
        with self._lock, contextlib.suppress(OSError, ImagenetPrepError):
            self.reload()
            new = {name: note for name, note in new.items() if self._notes.get(name) != note}
            self._notes |= new
            if self._journal.num_lines + len(new) > 2 * len(self._notes) + _SPARE_LINES:
                self._journal.rewrite(self._notes.values())
            else:
                self._journal.add(*new.values())

    def _is_trusted(self, status: os.stat_result) -> bool:
        return local_file.is_only_ours(status) or (
            self._trusts_owner
            and status.st_uid == self._store.root.stat().st_uid
            and not status.st_mode & 0o022
        )


def verified_md5(path: Path) -> str | None:
    """Returns the md5 of an archive verified by `download`, or None if the archive must be read."""
    with contextlib.suppress(OSError, ImagenetPrepError):
        ledger = Ledger(LocalStore(path.parent), NOTES, MOST_ARCHIVES)
        match ledger.find(path.name):
            case {"md5": str(md5)} if _MD5.fullmatch(md5):
                return md5
    return None


def _lines(entries: Iterable[Any]) -> bytes:
    return b"".join(strict_json.dumps(entry) + b"\n" for entry in entries)


_SOURCES_FOLDER = "origins"
# A thousand archives need 200 kB.
_MAX_NOTE_BYTES = 16 << 20


@dataclass(frozen=True)
class SourceLocation:
    """The folder of a source, and the paths of its files by name."""

    root: str
    files: dict[str, str]


@dataclass(frozen=True)
class _SourceNote(SourceLocation):
    digest: str


def note_source(digest: str, origin: SourceLocation) -> None:
    """Records the source of the dataset whose manifest has this digest."""
    content = strict_json.dumps(_SourceNote(origin.root, origin.files, digest))
    # The note is optional. Some users have no home folder, or one that they cannot write to.
    with contextlib.suppress(OSError, ImagenetPrepError):
        folder = _sources_folder()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with small_files.replaced(folder / _note_name(digest), None) as file:
            # Only this user may write the file, whatever the umask.
            os.fchmod(file.fileno(), 0o600)
            file.write(content)


def find_source(digest: str) -> SourceLocation | None:
    """Returns the origin of a dataset; None if there is no note that only this user can write."""
    with contextlib.suppress(OSError, ImagenetPrepError, ValueError):
        noted = strict_json.parse_record(
            _SourceNote,
            LocalStore(_sources_folder()).read_ours(_note_name(digest), _MAX_NOTE_BYTES),
        )
        # Compare the digests: in a shared folder, the file may belong to a different dataset.
        return SourceLocation(noted.root, noted.files) if noted.digest == digest else None
    return None


def _sources_folder() -> Path:
    return schema.cache_folder() / _SOURCES_FOLDER


def _note_name(digest: str) -> str:
    return f"{digest}.json"
