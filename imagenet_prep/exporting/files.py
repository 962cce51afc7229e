"""Writes the files of an export: a few large files, or one file per image."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from imagenet_prep.engine import Output
from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.storage.local_file import removed_on_failure, require_inside, storage_errors
from imagenet_prep.storage.new_file import FolderSync, LargeFile
from imagenet_prep.storage.store import Store

SUMS = "SHA256SUMS"  # lists all files of an export


class Piece(NamedTuple):
    """Bytes to append to a file; `sha256` is set if they are the complete file."""

    name: str
    data: bytes
    sha256: str = ""


class Files(NamedTuple):
    """The files that were written for one part of an export."""

    num_bytes: int
    sums: list[str]  # one line per file, in the format of sha256sum
    outputs: tuple[Output, ...]  # files that still have to be published
    sizes: list[int]  # of each file, if each file is an image
    settle: FolderSync | None = None  # see engine.Output


def sum_line(name: str, sha256: str) -> str:
    """Returns the line for a file in a list of SHA-256 sums, in the format of sha256sum."""
    return f"{sha256}  {name}\n"


def name_in(line: bytes) -> str:
    """Returns the file name in a line of a list of SHA-256 sums."""
    return line.decode().rstrip("\n").partition("  ")[2]


def write_few(store: Store, pieces: Iterable[Piece]) -> Files:
    """Appends pieces to large files, which are published in the order of their first pieces."""
    files: dict[str, LargeFile] = {}
    paths = {}
    with contextlib.ExitStack() as failing, contextlib.ExitStack() as opened:
        for name, data, _ in pieces:
            if name not in files:
                path = paths[name] = store.temporary()
                failing.enter_context(removed_on_failure(path))
                failing.enter_context(storage_errors("write", path))
                files[name] = opened.enter_context(LargeFile(path))
            files[name].append(data)
        opened.close()  # This computes the SHA-256 of each file.
        return Files(
            sum(file.num_bytes for file in files.values()),
            [sum_line(name, file.sha256) for name, file in files.items()],
            tuple(Output(paths[name], name, file.sha256) for name, file in files.items()),
            [],
        )


class Tree:
    """Writes images into a folder that is hidden until `show` is called; thread-safe, picklable."""

    def __init__(self, folder: LocalStore, unseen: str) -> None:
        self._folder, self._unseen = folder, unseen  # `unseen` is a folder below `.work`
        self._folders: set[str] = set()  # folders that exist and are not links

    def write(self, pieces: Iterable[Piece]) -> Files:
        """Writes pieces as `write_each` does; the result's `settle` syncs the folder to disk."""
        self._folder.make_folder(self._unseen)
        path = self._folder.path(self._unseen)
        with storage_errors("write", path):
            settle = FolderSync(path)
            return write_each(self._write, pieces)._replace(settle=settle)

    def _write(self, name: str, data: bytes) -> None:
        folder, _, file = self._place(name).rpartition("/")
        if folder not in self._folders:
            self._folder.make_folder(folder)
            self._folders.add(folder)
        if not file:
            return
        # Overwrite files of a killed run.
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        # Buffered, because a raw write on a nearly full disk may be partial without an error.
        with open(os.open(f"{self._folder.root}/{folder}/{file}", flags, 0o644), "wb") as opened:
            opened.write(data)

    def _place(self, name: str) -> str:
        require_inside(name.rstrip("/"))
        top = f"{self._folder.root}/{name.partition('/')[0]}"
        return name if Path(top).is_dir() else f"{self._unseen}/{name}"

    def sizes(self, names: Iterable[str]) -> dict[str, int]:
        """Returns the sizes of the files that exist."""
        paths = {name: Path(self._folder.root, self._place(name)) for name in names}
        return {name: path.stat().st_size for name, path in paths.items() if path.is_file()}

    def show(self) -> None:
        """Moves the folders of all splits to their final names."""
        for name in self._folder.list_folder(self._unseen):
            self._folder.rename(f"{self._unseen}/{name}", name)


def forget_lost(store: Store, tree: Tree | None, sizes: Mapping[str, Sequence[int]]) -> None:
    """Removes the list of each part with lost or truncated images, so the part is rewritten.

    `sizes` has the image sizes of each finished part, by the name of the part's list.
    """
    names = {}
    for sums in sizes:
        with store.open_file(sums) as lines:
            names[sums] = [*map(name_in, lines)]
    actual = (tree or store).sizes(itertools.chain.from_iterable(names.values()))
    store.remove(*(sums for sums in sizes if [*map(actual.get, names[sums])] != [*sizes[sums]]))


def write_each(write: Callable[[str, bytes], None], pieces: Iterable[Piece]) -> Files:
    """Writes each piece as a file, or creates a folder if its name ends with a slash."""
    sizes = []
    sums = []
    for name, data, digest in pieces:
        write(name, data)
        if not name.endswith("/"):
            sizes.append(len(data))
            sums.append(sum_line(name, digest))
    return Files(sum(sizes), sums, (), sizes)
