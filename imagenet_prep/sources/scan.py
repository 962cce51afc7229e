"""Lists the files below a folder: links that lead out of it are refused, hidden files left out."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from imagenet_prep.core.errors import SourceError
from imagenet_prep.storage.os_errors import demand_disk
from imagenet_prep.storage.remote import stamp

_FOLLOW = (
    "If the images there shall become part of the data set, add --follow-links; else remove the "
    "link."
)


class File(NamedTuple):
    """A file below a folder: relative path, bytes, and `stamp`, which is its ETag on a server."""

    path: str
    num_bytes: int
    stamp: int | str


@contextlib.contextmanager
def read_errors(path: object, remedy: str) -> Iterator[None]:
    """Turns an OSError into a SourceError for this path, or for the one that the error names."""
    try:
        yield
    except OSError as error:
        where = path or error.filename
        demand_disk(where, error)
        raise SourceError(f"{where}: cannot be read: {error.strerror}. {remedy}") from error


def scan(folder: Path, inside: Path | None = None, hidden: list[str] | None = None) -> list[File]:
    """Returns all files below a folder, sorted by path, except hidden ones.

    Links to files are followed. A linked folder below is refused, since it may lead in a circle.

    Args:
      folder: the root of the paths.
      inside: where the folder, and all links to files, must lead; None to follow them anywhere.
      hidden: gets the paths of hidden files, and of those in hidden folders.
    """
    files: list[File] = []
    folders = [""]
    root = None if inside is None else os.path.realpath(inside)
    with read_errors(None, "Check links, permissions and the disk."):
        _refuse_out(folder, root, _FOLLOW)
        while folders:
            below = folders.pop()
            with os.scandir(folder / below) as entries:
                for entry in entries:
                    path = below + entry.name
                    if entry.name.startswith("."):
                        if hidden is not None:
                            hidden += hidden_files(folder, path)
                        continue
                    _refuse_unprintable(folder, entry.name)
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(f"{path}/")
                        continue
                    if entry.is_dir():
                        raise SourceError(
                            f"{folder / path}: is a link to a folder. Put the folder itself there."
                        )
                    status = entry.stat()
                    if not stat.S_ISREG(status.st_mode):
                        # To read a pipe would wait for whoever writes into it.
                        raise SourceError(f"{folder / path}: is no file. Remove it.")
                    if entry.is_symlink():
                        _refuse_out(folder / path, root, _FOLLOW)
                    files.append(File(path, status.st_size, stamp(status)))
    return sorted(files)


def hidden_files(folder: Path, path: str) -> list[str]:
    """Returns a hidden file, or the files of a hidden folder, by path below `folder`."""
    if (folder / path).is_symlink() or not (folder / path).is_dir():
        return [path]
    return [f"{path}/{name}" for _, _, names in os.walk(folder / path) for name in names]


def _refuse_out(path: Path, root: str | None, remedy: str) -> None:
    """Raises SourceError if a link leads out of a folder: it may name a private file."""
    if root is None:
        return
    real = Path(os.path.realpath(path))
    if not real.is_relative_to(root):
        raise SourceError(f"{path}: is a link that leads out of the source, to {real}. {remedy}")


def refuse_link_out(path: Path) -> None:
    """Raises SourceError if a list is a link that leads out of its folder.

    The content of a list becomes names of classes and images, which the dataset shows to others.
    """
    _refuse_out(path, os.path.realpath(path.parent), "Put the list itself there.")


def subfolders(folder: Path) -> list[str]:
    """Returns the sorted names of the folders in a folder, linked ones too; no hidden ones."""
    with os.scandir(folder) as entries:
        names = sorted(e.name for e in entries if e.is_dir() and not e.name.startswith("."))
    for name in names:
        _refuse_unprintable(folder, name)
    return names


def _refuse_unprintable(folder: Path, name: str) -> None:
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise SourceError(
            f"{folder}: the name {os.fsencode(name)!r} is not UTF-8. Rename it: records hold text."
        ) from error
