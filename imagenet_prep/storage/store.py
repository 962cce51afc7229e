"""Where a data set lies, whatever that is: the one interface, and who opens what an address names.

`folder` and `bucket` are stores, and `web_folder` is one that is only read; folders, `http` and
`s3` can be read by range as `Remote`.
"""

from __future__ import annotations

import contextlib
import errno
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol

from imagenet_prep.core.address import is_remote
from imagenet_prep.core.errors import StoreError
from imagenet_prep.core.regular_file import MOST_BYTES
from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.storage.remote import AbsentError, Check, Remote, Stat, exactly, unchecked

if TYPE_CHECKING:
    from imagenet_prep.dataset.manifest import File


class Readable(Protocol):
    """A dataset that is only read: files by names relative to it; picklable, safe for threads."""

    @property
    def as_folder(self) -> LocalStore | None:
        """The folder that it is, where looking is free and only its users read; else None."""

    def where(self, name: str = "") -> str:
        """Returns how messages call the data set, or a file of it."""

    def size(self, name: str) -> int | None:
        """Returns the bytes of a file, or None where there is none."""

    def sizes(self, names: Iterable[str]) -> dict[str, int]:
        """Returns the bytes of those files that are there."""

    def names(self, folder: str) -> list[str]:
        """Returns the sorted names of the files directly in `folder`."""

    def list_folder(self, folder: str = "") -> list[str]:
        """Returns the sorted names of files and folders in `folder`."""

    def read(
        self, name: str, offset: int = 0, size: int | None = None, most: int = MOST_BYTES
    ) -> bytes:
        """Returns a small file, or `size` bytes from `offset`: fewer if it ends before.

        Raises DataDamagedError if a complete file has more than `most` bytes, or is not regular.
        """

    def opened(
        self, name: str, stat: Stat | None = None
    ) -> contextlib.AbstractContextManager[BinaryIO]:
        """Yields a file to be read once, from its start.

        Raises IncompleteError if it has changed since `stats` saw it as `stat`.
        """


class Store(Readable, Protocol):
    """Where a data set lies: files that are whole or not there, by names relative to it.

    Picklable, and safe for threads, processes and machines.
    """

    @property
    def local(self) -> LocalStore:
        """What the processes of this machine share while they work on this data set."""

    def stats(self, folder: str) -> dict[str, Stat]:
        """Returns the files directly in `folder` by name, each as it is now."""

    def read_each(self, names: Iterable[str], most: int = MOST_BYTES) -> Iterator[bytes]:
        """Yields whole small files, in order; `most` as for `read`."""

    def temporary(self) -> Path:
        """Returns an unused path for `publish`."""

    def publish(
        self, temporary: Path, name: str, sha256: str | None = None, check: Check = unchecked
    ) -> None:
        """Makes a synced temporary file visible as `name`; `check` is called before each try."""

    def take_over(
        self, source: object, files: Iterable[File], stats: Mapping[str, Stat] | None = None
    ) -> None:
        """Leaves files of another dataset here too; their bytes do not pass this machine.

        They are hard links between folders, and copies that the server makes between prefixes.
        `stats` holds the files of a folder as this run has seen them before, by name.

        Raises:
          IncompleteError: a file has changed since this run has seen it.
          UsageError: the source is no place of this kind, or on another file system.
          DataDamagedError: a file is missing there, or another one.
        """

    def write(self, name: str, data: bytes) -> None:
        """Publishes a whole small file."""

    def claim(self, name: str, data: bytes) -> bytes:
        """Publishes a small file unless there is one; returns what is there now."""

    def take(self, name: str) -> bool:
        """Makes an empty work file; returns whether nobody else, on any machine, was first."""

    def remove(self, *names: str) -> None:
        """Removes files, so that no crash brings them back; absent ones are fine."""

    def verify_published(self, files: Iterable[File]) -> None:
        """Raises IncompleteError unless all these files are there as they were published."""

    def remove_tree(self, name: str) -> None:
        """Removes a folder of work files; absent is fine."""

    def lock(self) -> contextlib.AbstractContextManager[None]:
        """Holds the data set for one writing run, as far as that is needed."""


class FolderRemote:
    """A folder, as `Remote`."""

    def __init__(self, root: Path) -> None:
        self._folder = LocalStore(root)

    def where(self, name: str) -> str:
        """As for `Remote`."""
        return self._folder.where(name)

    def stat(self, name: str) -> Stat:
        """As for `Remote`."""
        with self._explained(name):
            status = self._folder.path(name).stat()
        if not stat.S_ISREG(status.st_mode):
            raise AbsentError(f"{self.where(name)}: is no file. Check the path.")
        return Stat.of(status)

    def read(self, name: str, offset: int, size: int, stat: Stat) -> Iterator[bytes]:
        """As for `Remote`."""
        with self._explained(name), self._folder.opened(name, stat) as file:
            file.seek(offset)
            yield from exactly(size, file.read)

    def files(self, folder: str) -> dict[str, Stat]:
        """As for `Remote`."""
        return self._folder.stats(folder)

    @contextlib.contextmanager
    def _explained(self, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            # An error of the code that consumes `read` does not pass through here: a generator
            # ends by GeneratorExit where its consumer fails.
            said = f"{self.where(name)}: {error.strerror}."
            if error.errno == errno.ENOENT:
                raise AbsentError(f"{said} Check the path.") from error
            raise StoreError(f"{said} Check the disk.") from error


def open_store(base: str) -> Store:
    """Returns the dataset at `base`, a folder or s3://bucket/prefix; nothing is asked yet.

    Raises UsageError if credentials cannot be loaded, or boto3 is not installed.
    """
    if base.startswith("s3://"):
        # It costs half a second, and boto3 may not be there.
        from imagenet_prep.storage.bucket import BucketStore

        return BucketStore(base)
    return LocalStore(Path(base).expanduser())


def open_readable(base: str) -> Readable:
    """Returns the dataset at a folder, s3://bucket/prefix or http(s)://…; as `open_store`."""
    if base.startswith(("http://", "https://")):
        # It takes longer to import than all that a process on another host needs otherwise.
        from imagenet_prep.storage.web_folder import WebFolder

        return WebFolder(base)
    return open_store(base)


def same_place(one: str, other: str) -> bool:
    """Returns whether two addresses, as `Store.where` tells them, mean one folder or prefix."""
    places = [where if is_remote(where) else Path(where).resolve() for where in (one, other)]
    return places[0] == places[1]


def open_remote(base: str, *, connections: int, timeout_s: float) -> Remote:
    """Returns the folder at http(s)://…, s3://bucket/prefix or a path; as `open_store`.

    Args:
      connections: reads at a time.
      timeout_s: seconds without a byte after which a read is given up.
    """
    base = base.rstrip("/")
    if base.startswith("s3://"):
        from imagenet_prep.storage.s3 import S3

        return S3(base, connections, timeout_s)
    if is_remote(base):
        from imagenet_prep.storage.http import Http

        return Http(base, timeout_s)
    return FolderRemote(Path(base).expanduser())
