"""Lists the files below a folder: links that lead out of it are refused, hidden files left out."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import NamedTuple

from imagenet_prep.core.errors import SourceError
from imagenet_prep.storage.os_errors import demand_disk


class File(NamedTuple):
    """A file below a folder: path relative to it, bytes, and its `stamp`.

    For a file on a server, the stamp is its ETag.
    """

    path: str
    num_bytes: int
    stamp: int | str


def stamp(status: os.stat_result) -> int:
    """Returns when a file last changed, in ns.

    The mtime can be set back, as `cp -p` and `tar` do. The ctime cannot, but some file systems do
    not renew it.
    """
    return max(status.st_mtime_ns, status.st_ctime_ns)


def scan(folder: Path, inside: Path | None = None, hidden: list[str] | None = None) -> list[File]:
    """Returns all files below a folder, sorted by path; hidden ones are left out.

    Links to files are followed. A linked folder below is refused, for it may lead in a circle.

    Args:
      folder: what is listed.
      inside: where the folder, and all links to files, must lead; None to follow them anywhere.
      hidden: gets the paths of hidden files, and of those in hidden folders.
    """
    files: list[File] = []
    folders = [""]
    within = _Within(inside)
    try:
        within.demand(folder)
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
                        within.demand(folder / path)
                    files.append(File(path, status.st_size, stamp(status)))
    except OSError as error:
        demand_disk(error.filename, error)
        raise SourceError(
            f"{error.filename}: cannot be read: {error.strerror}. "
            "Check links, permissions and the disk."
        ) from error
    return sorted(files)


def hidden_files(folder: Path, path: str) -> list[str]:
    """Returns a hidden file, or the files of a hidden folder, by their paths below `folder`.

    They are counted only: links are not followed, and what cannot be read is left out.
    """
    if (folder / path).is_symlink() or not (folder / path).is_dir():
        return [path]
    return [f"{path}/{name}" for _, _, names in os.walk(folder / path) for name in names]


class _Within:
    """Refuses what leads out of a folder: a link in a source may name a private file."""

    def __init__(self, root: Path | None) -> None:
        self._root = None if root is None else os.path.realpath(root)

    def demand(self, path: Path) -> None:
        if self._root is None:
            return
        real = Path(os.path.realpath(path))
        if not real.is_relative_to(self._root):
            raise SourceError(
                f"{path}: is a link that leads out of the source, to {real}. If the images there "
                "shall become part of the data set, add --follow-links; else remove the link."
            )


def refuse_link_out(path: Path) -> None:
    """Raises SourceError where a list is a link that leads out of the folder in which it lies.

    What a list says becomes names of classes and of images, which the data set shows to others.
    """
    real = Path(os.path.realpath(path))
    if not real.is_relative_to(os.path.realpath(path.parent)):
        raise SourceError(
            f"{path}: is a link that leads out of the source, to {real}. Put the list itself there."
        )


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
