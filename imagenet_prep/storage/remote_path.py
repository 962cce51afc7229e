"""Paths of files on a server, with the methods of `pathlib.Path` that are needed to find archives.

The same function can thus find archives in a folder, in a bucket and on a web server.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

from imagenet_prep.core import address, regular_file
from imagenet_prep.core.errors import StoreError, UsageError
from imagenet_prep.storage.fetch import as_file, stream
from imagenet_prep.storage.kept_lists import KeptLists
from imagenet_prep.storage.remote import AbsentError, Remote, Stat
from imagenet_prep.storage.retry import RetryBudget, with_retries
from imagenet_prep.storage.store import open_remote

# Maximum number of connections for all workers of a process. Threads start on demand.
MOST_CONNECTIONS = 128
_TIMEOUT_S = 60.0
_RETRIES = 20
# Fewer retries until the first answer, so that a mistyped address fails after ten seconds.
_RETRIES_AT_FIRST = 6
ARCHIVES = (".tar", ".tar.gz", ".tgz", ".zip")
_REMEDY = "Finished work is kept: run the same command again to resume."


@dataclass(frozen=True)
class Site:
    """A server's folder of archives. Picklable: a copy opens its own connections."""

    base: str
    lists: KeptLists | None = None  # lists of the files in archives; None to store none
    hashes: bool = True  # whether to compute the md5 when an archive is read completely

    @cached_property
    def remote(self) -> Remote:
        """The connections of this process."""
        return open_remote(self.base, connections=MOST_CONNECTIONS, timeout_s=_TIMEOUT_S)

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
        return with_retries(lambda: self.site.remote.stat(self.relative), budget)

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
        return as_file(stream(self.site.remote, self.relative, self.stat, budget))

    def demand_ranges(self) -> Stat:
        """Returns `stat`; raises StoreError if the server cannot send parts of the file."""
        if self.stat.ranges and self.stat.validator:
            return self.stat
        problem = "sends neither ETag nor date, so a change of the file would go unnoticed"
        if not self.stat.ranges:
            problem = "cannot send parts of a file (no Range)"
        raise StoreError(
            f"{self}: the server {problem}. Copy the archives to a disk first: imagenet-prep "
            f"download --base-url {self.site.base}"
        )

    def fetch(self, start: int, stop: int) -> bytes:
        """Returns bytes [start, stop), with retries."""
        where = f"{self}, bytes {start:,} to {stop:,}"
        budget = self.site.budget(where)
        data = b"".join(stream(self.site.remote, self.relative, self.stat, budget, start, stop))
        if len(data) != stop - start:
            raise StoreError(
                f"{where}: the server sent {len(data):,} bytes. Use a different server."
            )
        return data

    @cached_property
    def _files(self) -> dict[str, Stat]:
        budget = self.site.budget(str(self), _RETRIES_AT_FIRST)
        return with_retries(lambda: self.site.remote.files(self.relative), budget)

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickle the size and time too: all workers must read the same file.
        return RemotePath, (self.site, self.relative, self.__dict__.get("stat", self.known))


Location = Path | RemotePath


def open_to_read(path: Location) -> BinaryIO:
    """Opens a source file for one sequential read."""
    if isinstance(path, Path):
        return open(regular_file.open_to_read(path), "rb")
    return path.open()


def locate(text: str, lists: KeptLists | None, *, hashes: bool) -> Location:
    """Returns the folder or file of --source; a URL with an archive's extension is a file."""
    if not address.is_remote(text):
        return Path(text).expanduser()
    base = text.rstrip("/")
    name = ""
    if base.endswith(ARCHIVES):
        base, _, name = base.rpartition("/")
    return RemotePath(Site(base, lists, hashes), name)
