"""The common interface of all dataset storage, and the functions that open a path or URL."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol, TypeVar

from imagenet_prep.core import strict_json
from imagenet_prep.core.address import is_remote
from imagenet_prep.core.errors import DataDamagedError
from imagenet_prep.core.small_files import MOST_BYTES
from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.storage.remote import DEFAULT_ACCESS, Access, Check, RetryBudget, Stat, unchecked

if TYPE_CHECKING:
    from imagenet_prep.dataset.manifest import DatasetFile


class Readable(Protocol):
    """A dataset whose files can be read by their relative names; picklable and thread-safe."""

    @property
    def as_folder(self) -> LocalStore | None:
        """The local folder of the dataset, for cheap direct access; None if it is not a folder."""

    def where(self, name: str = "") -> str:
        """Returns the path or URL of the dataset or of one of its files, for messages."""

    def size(self, name: str) -> int | None:
        """Returns the size of a file in bytes, or None if it does not exist."""

    def sizes(self, names: Iterable[str]) -> dict[str, int]:
        """Returns the sizes of those files that exist."""

    def stat(self, name: str, budget: RetryBudget | None = None, /) -> Stat:
        """Returns the current state of a file; raises AbsentError if it does not exist.

        On a server, `budget` limits the retries; by default, the `Access` of the store does.
        """

    def stats(self, folder: str, budget: RetryBudget | None = None, /) -> dict[str, Stat]:
        """Returns the current state of each file directly in `folder`, keyed by file name."""

    def names(self, folder: str) -> list[str]:
        """Returns the sorted names of the files directly in `folder`."""

    def list_folder(self, folder: str = "") -> list[str]:
        """Returns the sorted names of files and folders in `folder`."""

    def read(
        self, name: str, offset: int = 0, size: int | None = None, most: int = MOST_BYTES
    ) -> bytes:
        """Returns the content of a small file, or `size` bytes from `offset` (fewer at its end).

        Raises DataDamagedError if a complete file has more than `most` bytes or is not regular.
        """

    def chunks(
        self,
        name: str,
        stat: Stat,
        start: int = 0,
        stop: int | None = None,
        budget: RetryBudget | None = None,
        /,
        *,
        pinned: bool = True,
    ) -> Generator[bytes, None, None]:
        """Yields bytes [start, stop) of the file described by `stat`, by default to its end.

        Unless `pinned`, the caller verifies the sha256. Then the file may have a different ETag
        than `stat`, since the servers of a pool often have different ETags for the same file.
        """

    def open_file(
        self, name: str, stat: Stat | None = None
    ) -> contextlib.AbstractContextManager[BinaryIO]:
        """Yields a file for one sequential read.

        Raises IncompleteError if the file has changed since `stats` returned `stat`.
        """


class Store(Readable, Protocol):
    """A dataset that can be read and written; each file is complete or absent.

    Picklable, and safe for use by several threads, processes and machines.
    """

    @property
    def local(self) -> LocalStore:
        """The folder shared by the processes of this machine while they work on this dataset."""

    def read_each(self, names: Iterable[str], most: int = MOST_BYTES) -> Iterator[bytes]:
        """Yields the contents of small files in order; `most` as for `read`."""

    def temporary(self) -> Path:
        """Returns an unused path for `publish`."""

    def publish(
        self,
        temporary: Path,
        name: str,
        sha256: str | None = None,
        check: Check = unchecked,
        *,
        durable: bool = True,
    ) -> None:
        """Makes a temporary file visible as `name`; calls `check` before each attempt.

        In a folder, a loss of power may take the name away until `settle`, unless it is `durable`.
        """

    def adopt_files(
        self, source: object, files: Iterable[DatasetFile], stats: Mapping[str, Stat] | None = None
    ) -> None:
        """Adds files of a different dataset by hard links, or by copies that the server makes.

        `stats` has the state of files earlier in this run. Raises IncompleteError if a file has
        changed since, DataDamagedError if a file is missing or different from `files`, and
        UsageError if `source` is a different kind of store.
        """

    def write(self, name: str, data: bytes, *, durable: bool = True) -> None:
        """Publishes a complete small file.

        In a folder, after a loss of power, a file that is not `durable` may be missing or damaged.
        """

    def write_if_absent(self, name: str, data: bytes) -> bytes:
        """Publishes a small file unless it exists; returns the content that it now has."""

    def try_create(self, name: str, owner: str = "") -> bool:
        """Creates a work file; returns False if a different run has already created it.

        The content starts with `owner`. It may be missing for a moment after the file is created.
        """

    def remove(self, *names: str) -> None:
        """Removes files durably; they may be absent."""

    def verify_published(self, files: Iterable[DatasetFile]) -> None:
        """Raises IncompleteError unless all these files exist as they were published."""

    def remove_tree(self, name: str) -> None:
        """Removes a folder of work files; it may be absent."""

    def lock(self, *, shared: bool = False) -> contextlib.AbstractContextManager[None]:
        """Locks the dataset during the block, if the storage needs a lock between writing runs.

        Several processes may hold a `shared` lock, but none while a different run has locked alone.
        """


def open_store(base: str, access: Access = DEFAULT_ACCESS) -> Store:
    """Returns the store at `base` (a folder or s3://bucket/prefix) without sending a request.

    Raises UsageError if credentials cannot be loaded or boto3 is not installed.
    """
    if base.startswith("s3://"):
        # This import takes half a second, and boto3 may be missing.
        from imagenet_prep.storage.bucket import BucketStore

        return BucketStore(base, access)
    return LocalStore(Path(base).expanduser())


def open_readable(base: str, access: Access = DEFAULT_ACCESS) -> Readable:
    """Returns a local folder, or the folder at an s3:// or http(s):// URL; see `open_store`."""
    if base.startswith(("http://", "https://")):
        # This import takes longer than all other imports of a process on a remote host.
        from imagenet_prep.storage.http import WebFolder

        return WebFolder(base, access)
    return open_store(base, access)


def is_inside(place: str, folder: str) -> bool:
    """Returns whether a path or URL is the same folder or prefix as `folder`, or is below it."""
    if is_remote(place) or is_remote(folder):
        return f"{place}/".startswith(f"{folder}/")
    return Path(os.path.realpath(place)).is_relative_to(os.path.realpath(folder))


def same_place(first: str, second: str) -> bool:
    """Returns whether two paths or URLs are the same folder or prefix."""
    return is_inside(first, second) and is_inside(second, first)


# Enough for the names of 300,000 shards. JSON of many small lists takes 20 times as much memory.
_MOST_NOTE_BYTES = 32 << 20
T = TypeVar("T")


def read_note(store: Store, name: str, kind: type[T]) -> T:
    """Returns the record of type `kind` from an existing work file."""
    try:
        return strict_json.parse_record(kind, store.read(name, most=_MOST_NOTE_BYTES))
    except ValueError as error:
        raise damaged_note(store, name, str(error)) from None


def damaged_note(store: Store, name: str, why: str) -> DataDamagedError:
    """Returns the error for a work file that this program did not write."""
    return DataDamagedError(
        f"{store.where(name)}: {why}. This program did not write this file; nothing was changed. "
        "If the folder was copied from elsewhere, remove its .work; or choose a different folder."
    )
