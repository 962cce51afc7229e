"""Paths of files on a server, and stored lists of the files in remote archives.

The paths have the methods of `pathlib.Path` that are needed to find archives. The same function can
thus find archives in a folder, in a bucket and on a web server.

The lists, for later runs, are in `imagenet-prep-lists` next to the datasets, in one folder per
archive. Other users may write there, so lists are checked, and listed names compared with the
headers in the archive.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import stat as stat_module
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from imagenet_prep.core import address, small_files, strict_json
from imagenet_prep.core.errors import ImagenetPrepError, StoreError, UsageError
from imagenet_prep.dataset import formats
from imagenet_prep.storage.remote import AbsentError, Access, RetryBudget, Stat, as_file
from imagenet_prep.storage.store import Readable, Store, open_readable, open_store

LISTS_FOLDER = "imagenet-prep-lists"
# A list of 50,000 files has 3 MB.
_MAX_LIST_BYTES = 64 << 20
_MD5 = re.compile(r"[0-9a-f]{32}")


class ArchiveListing(NamedTuple):
    """The files in a range of an archive, and the md5 of the archive ("" if it is unknown)."""

    files: list[Entry]
    md5: str


@dataclass(frozen=True)
class _StoredListing:
    archive: str
    validator: str
    num_bytes: int
    files: list[Entry]
    md5: str


@dataclass(frozen=True)
class ListingFolder:
    """The stored lists in one folder. Picklable."""

    base: str  # folder or s3:// address
    writes: bool = True  # whether new lists are stored (not in a dry run)
    believed: bool = True  # whether existing lists are read, or only overwritten

    def find(self, archive: str, stat: Stat, start: int, stop: int) -> ArchiveListing | None:
        """Returns the files in bytes [start, stop) of an archive, or None if no list is stored."""
        return self._load(archive, stat, start, stop) if self.believed else None

    def _load(self, archive: str, stat: Stat, start: int, stop: int) -> ArchiveListing | None:
        try:
            name = _list_name(archive, stat, start, stop)
            folder = self._store.as_folder
            # Accept no file that a different user may have written.
            read = self._store.read if folder is None else folder.read_ours
            stored = strict_json.parse_record(_StoredListing, read(name, most=_MAX_LIST_BYTES))
        except (ImagenetPrepError, OSError, ValueError):
            return None
        if (stored.archive, stored.validator, stored.num_bytes) != (archive, *_identity(stat)):
            return None
        last = start
        for _, offset, size in stored.files:
            if not (last <= offset and 0 <= size <= stop - offset):
                return None
            last = offset + size
        return ArchiveListing(stored.files, stored.md5 if _MD5.fullmatch(stored.md5) else "")

    def keep(self, archive: str, stat: Stat, start: int, stop: int, kept: ArchiveListing) -> None:
        """Stores a list. Errors are ignored: without a list, the next run reads the archive."""
        if not self.writes:
            return
        content = _StoredListing(archive, *_identity(stat), *kept)
        with contextlib.suppress(ImagenetPrepError, OSError):
            folder = self._store.as_folder
            if folder:
                folder.root.mkdir(parents=True, exist_ok=True)
                status = folder.root.lstat()
                # A different user may have created the folder, or a link.
                if not stat_module.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
                    return
            self._store.write(_list_name(archive, stat, start, stop), strict_json.dumps(content))

    def keep_md5(self, archive: str, stat: Stat, md5: str) -> None:
        """Adds the md5 of an archive to the list of its files, if there is one."""
        # A list without files would describe an empty archive.
        kept = self._load(archive, stat, 0, stat.size)
        if kept:
            self.keep(archive, stat, 0, stat.size, kept._replace(md5=md5))

    @cached_property
    def _store(self) -> Store:
        return open_store(self.base)


def lists_folder(out: str) -> str | None:
    """Returns the folder of the lists for the dataset at `out`; None if `out` is a whole bucket."""
    if not address.is_remote(out):
        return str(Path(out).expanduser().absolute().parent / LISTS_FOLDER)
    above, _, prefix = out.rstrip("/").rpartition("/")
    return f"{above}/{LISTS_FOLDER}" if prefix and above != "s3:/" else None


def _identity(stat: Stat) -> tuple[str, int]:
    return stat.validator, stat.size


def _list_name(archive: str, stat: Stat, start: int, stop: int) -> str:
    digest = strict_json.digest([archive, *_identity(stat)])[:16]
    return f"{digest}/{start}-{stop}.json"


Entry = tuple[str, int, int]

# Maximum number of connections for all workers of a process. Threads start on demand.
MOST_CONNECTIONS = 128
_RETRIES = 20
# Fewer retries until the first answer, so that a mistyped address fails after ten seconds.
_RETRIES_AT_FIRST = 6
_REMEDY = "Finished work is kept: run the same command again to resume."


@dataclass(frozen=True)
class Site:
    """A server's folder of archives. Picklable: a copy opens its own connections."""

    base: str
    lists: ListingFolder | None = None  # lists of the files in archives; None to store none
    hashes: bool = True  # whether to compute the md5 when an archive is read completely

    @cached_property
    def store(self) -> Readable:
        """The connections of this process."""
        return open_readable(self.base, Access(connections=MOST_CONNECTIONS))

    def budget(self, where: str, retries: int = _RETRIES) -> RetryBudget:
        """Returns the retry budget of one read."""
        return RetryBudget(where, retries, remedy=_REMEDY)

    def __reduce__(self) -> tuple[Any, ...]:
        return Site, (self.base, self.lists, self.hashes)


@dataclass(frozen=True)
class RemotePath:
    """A file or folder of a `Site`.

    Methods raise IncompleteError if the server does not answer, and StoreError if it refuses.
    """

    site: Site
    relative: str = ""  # path below the site's folder; "" is the folder itself
    known: Stat | None = field(default=None, compare=False)  # its state in a listing

    @property
    def name(self) -> str:
        """The last part of the path."""
        return str(self).rpartition("/")[2]

    @property
    def suffix(self) -> str:
        """The file extension, including the dot."""
        return Path(self.name).suffix

    @property
    def parent(self) -> RemotePath:
        """The parent folder. The parent of the site's folder is the folder itself."""
        return RemotePath(self.site, self.relative.rpartition("/")[0])

    def __truediv__(self, name: str) -> RemotePath:
        listed = self.__dict__.get("_files", {})
        relative = f"{self.relative}/{name}" if self.relative else name
        return RemotePath(self.site, relative, listed.get(name))

    def __str__(self) -> str:
        return f"{self.site.base}/{self.relative}" if self.relative else self.site.base

    @cached_property
    def stat(self) -> Stat:
        """The state of the file at first access; later reads must find the file unchanged."""
        if self.known is not None:
            return self.known
        budget = self.site.budget(str(self), _RETRIES_AT_FIRST)
        return self.site.store.stat(self.relative, budget)

    def is_file(self) -> bool:
        """Returns whether the file exists."""
        try:
            return bool(self.relative and self.stat)
        except AbsentError:
            return False

    def is_dir(self) -> bool:
        """Returns whether the path can be listed and contains a file."""
        try:
            return self.known is None and "stat" not in self.__dict__ and bool(self._files)
        except UsageError:
            return False

    def iterdir(self) -> Iterator[RemotePath]:
        """Yields the files directly in this folder."""
        for name in self._files:
            yield self / name

    def open(self, _mode: str = "rb") -> BinaryIO:
        """Returns the file, for one sequential read."""
        budget = self.site.budget(str(self))
        return as_file(self.site.store.chunks(self.relative, self.stat, 0, None, budget))

    def require_ranges(self) -> Stat:
        """Returns `stat`; raises StoreError if the server cannot send parts of the file."""
        if self.stat.ranges and self.stat.validator:
            return self.stat
        problem = "sends neither ETag nor date, so a change of the file would go unnoticed"
        if not self.stat.ranges:
            problem = "cannot send parts of a file (no Range)"
        raise StoreError(
            f"{self}: the server {problem}. Copy the archives to a disk first: imagenet-prep "
            f"download --base-url {shlex.quote(self.site.base)} --into ARCHIVES"
        )

    def fetch(self, start: int, stop: int) -> bytes:
        """Returns bytes [start, stop), with retries."""
        where = f"{self}, bytes {start:,} to {stop:,}"
        budget = self.site.budget(where)
        data = b"".join(self.site.store.chunks(self.relative, self.stat, start, stop, budget))
        if len(data) != stop - start:
            raise StoreError(
                f"{where}: the server sent {len(data):,} bytes. Use a different server."
            )
        return data

    @cached_property
    def _files(self) -> dict[str, Stat]:
        budget = self.site.budget(str(self), _RETRIES_AT_FIRST)
        return self.site.store.stats(self.relative, budget)

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickle the size and time too: all workers must read the same file.
        return RemotePath, (self.site, self.relative, self.__dict__.get("stat", self.known))


Location = Path | RemotePath


def open_to_read(path: Location) -> BinaryIO:
    """Opens a source file for one sequential read."""
    if isinstance(path, Path):
        return open(small_files.open_to_read(path), "rb")
    return path.open()


def locate(text: str, lists: ListingFolder | None, *, hashes: bool) -> Location:
    """Returns the folder or file of --source; a URL with an archive's extension is a file."""
    if not address.is_remote(text):
        return Path(text).expanduser()
    base = text.rstrip("/")
    name = ""
    if base.endswith(formats.ARCHIVE_EXTENSIONS):
        base, _, name = base.rpartition("/")
    return RemotePath(Site(base, lists, hashes), name)
