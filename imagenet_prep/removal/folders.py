"""The folders that a search looks through, each under one path."""

from __future__ import annotations

import contextlib
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from imagenet_prep.core.address import absolute, is_remote
from imagenet_prep.core.errors import UsageError
from imagenet_prep.core.terminal import counted
from imagenet_prep.dataset import schema
from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.storage.remote import Stat
from imagenet_prep.storage.store import Readable, open_readable

# Folders of `.work` for files that are not complete yet; the last ones are those of exports.
_INCOMPLETE = re.compile(r"incoming|temporary|parts-.*", re.DOTALL)
# What finished commands leave in `.work`, also outside datasets.
_LEFT = re.compile(r"lock|locks|.*\.jsonl|hashes-.*", re.DOTALL)


class Folder(NamedTuple):
    """A folder of a searched place, with the state of its files by name."""

    store: Readable
    files: Mapping[str, Stat]

    @property
    def where(self) -> str:
        """The location, for messages."""
        return self.store.where()

    @property
    def is_dataset(self) -> bool:
        """Whether the folder has a manifest."""
        return schema.MANIFEST in self.files

    def all_files(self) -> dict[str, Stat]:
        """Returns the state of all files, also of those in the subfolders of a dataset."""
        files = dict(self.files)
        if self.is_dataset:
            columns = (
                f"{schema.COLUMNS}/{name}" for name in self.store.list_folder(schema.COLUMNS)
            )
            for below in (*schema.BESIDE, schema.COLUMNS, *columns):
                stats = self.store.stats(below)
                files.update((f"{below}/{name}", stat) for name, stat in stats.items())
        return files

    def hashes(self) -> list[str]:
        """Returns the names of the folders of `.work` that have hashes of pictures."""
        return [name for name in self.store.list_folder(schema.WORK) if name.startswith("hashes-")]

    def unfinished(self) -> list[str]:
        """Returns what a killed or running command has left in `.work`; it may have images."""
        files = self.store.names(schema.WORK)
        folders = [
            name
            for name in {*self.store.list_folder(schema.WORK)} - {*files}
            if _has_files(self.store, f"{schema.WORK}/{name}")
        ]
        left = filter(self._is_unfinished, sorted([*files, *folders]))
        return [f"{schema.WORK}/{name}" for name in left]

    def _is_unfinished(self, name: str) -> bool:
        # A finished dataset keeps notes and lists there, which are deleted with it.
        if _INCOMPLETE.fullmatch(name):
            return True
        return not (self.is_dataset or _LEFT.fullmatch(name))


@dataclass
class SearchedFolders:
    """All folders of some places, without those that belong to a dataset or to `.work`.

    Links are not followed, since one could lead to `/`.

    Attributes:
      problems_of: a context in which errors become problems of the place with this name.
      by_place: the folders by their location; a local one is the path without links.
    """

    problems_of: Callable[[str], contextlib.AbstractContextManager[None]]
    by_place: dict[str, Folder] = field(default_factory=dict)
    _searched: list[str] = field(default_factory=list)  # places of which all folders are known
    _links: list[Path] = field(default_factory=list)  # links to folders
    _identities: set[object] = field(default_factory=set)  # of the folders in `by_place`

    def add(self, place: str) -> Iterator[Folder]:
        """Yields the new folders of a place; raises UsageError if the place does not exist."""
        place = real(place)
        if self.has(place):
            return
        self._searched.append(place)
        for folder in self._walk(place):
            identity = _identity(folder)
            if identity not in self._identities:
                self._identities.add(identity)
                self.by_place[folder.where] = folder
                yield folder

    def has(self, place: str) -> bool:
        """Returns whether a place is, or is in, a place that was added."""
        return any(is_below(real(place), other) for other in self._searched)

    def links_out(self) -> Iterator[str]:
        """Yields a sentence for each link to a folder that was not searched."""
        for link in self._links:
            if link.is_dir() and not self.has(str(link)):
                yield (
                    f"{link}: is a link to {real(str(link))}, which was not searched. Name this "
                    "folder with --search."
                )

    def _walk(self, place: str) -> Iterator[Folder]:
        if not is_remote(place) and not Path(place).is_dir():
            raise UsageError(f"--search {place}: there is no such folder")
        pending = [place.rstrip("/") or "/"]
        while pending:
            store = _open_folder(pending.pop())
            with self.problems_of(store.where()):
                found = Folder(store, store.stats(""))
                yield found
                below = {*store.list_folder()} - found.files.keys() - _parts_of(found)
                local = store.as_folder
                for name in sorted(below, reverse=True):
                    if local is None:
                        pending.append(store.where(name))
                    elif local.path(name).is_symlink():
                        self._links.append(local.path(name))
                    else:
                        pending.append(str(local.path(name)))


def real(place: str) -> str:
    """Returns a local path as an absolute path without links; an address is returned unchanged."""
    return place if is_remote(place) else os.path.realpath(absolute(place))


def is_below(place: str, other: str) -> bool:
    """Returns whether a location is `other`, or is in it."""
    return f"{place.rstrip('/')}/".startswith(f"{other.rstrip('/')}/")


def hard_links_elsewhere(paths: Iterable[Path]) -> Iterator[str]:
    """Yields a sentence for each file that has hard links besides these paths of local files."""
    names: dict[tuple[int, int], set[tuple[int, int, str]]] = defaultdict(set)
    links: dict[tuple[int, int], tuple[int, Path]] = {}
    for path in paths:
        with contextlib.suppress(OSError):
            status = path.stat()
            # A bind mount has a second path of the same folder.
            folder = path.parent.stat()
            file = status.st_dev, status.st_ino
            names[file].add((folder.st_dev, folder.st_ino, path.name))
            links[file] = (status.st_nlink, path)
    for file, (number, path) in sorted(links.items()):
        if number > len(names[file]):
            more = counted(number - len(names[file]), "hard link")
            yield (
                f"{path}: has {more} in folders that were not searched. Name these folders "
                "with --search."
            )


def _identity(folder: Folder) -> object:
    """Returns what is equal for all paths of a folder: a bind mount gives it a second one."""
    local = folder.store.as_folder
    if local is None:
        return folder.where
    status = local.root.stat()
    return status.st_dev, status.st_ino


class _ListedFolder(LocalStore):
    """A local folder whose files may have any name, if a listing of the folder gave it.

    A dataset opens its own folder, which refuses names from its manifest that lead elsewhere.
    """

    def path(self, name: str = "") -> Path:
        return self.root / name


def _open_folder(place: str) -> Readable:
    store = open_readable(place)
    return _ListedFolder(store.as_folder.root) if store.as_folder else store


def _has_files(store: Readable, folder: str) -> bool:
    """Returns whether there are files below a folder; some servers list empty ones in buckets."""
    if store.names(folder):
        return True
    return any(_has_files(store, f"{folder}/{name}") for name in store.list_folder(folder))


def _parts_of(folder: Folder) -> set[str]:
    """Returns the names of subfolders that belong to a dataset, or that a command uses."""
    if folder.is_dataset:
        return {schema.WORK, schema.COLUMNS, *schema.BESIDE}
    return {schema.WORK}
