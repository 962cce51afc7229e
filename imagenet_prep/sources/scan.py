"""Lists the files and images below a folder; refuses links that leave it.

Hidden files are skipped, and files that are not images are counted by extension. In custom
datasets, images are also recognised by their content, because phones write JPEGs named .HEIC.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shlex
import stat
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from imagenet_prep.core.errors import DataDamagedError, SourceError, StoreError, some
from imagenet_prep.core.terminal import printable
from imagenet_prep.dataset import formats
from imagenet_prep.dataset.formats import ending, is_hidden
from imagenet_prep.storage.local_file import require_disk
from imagenet_prep.storage.remote import stamp
from imagenet_prep.storage.remote_path import open_to_read

_FOLLOW = "To include the images there, add --follow-links; otherwise, remove the link."
_CHECK = "Check links, permissions and the disk."
_MOST_KEPT = 50
# Python's form of bytes in a name that are not UTF-8.
_UNDECODED = re.compile("[\ud800-\udfff]")


class FoundFile(NamedTuple):
    """A file below a folder: relative path, size, and mtime in ns (the ETag if remote)."""

    path: str
    num_bytes: int
    stamp: int | str


class SourceProblems:
    """Counts the problems of a source, and keeps the messages of the first 50."""

    def __init__(self) -> None:
        self.number = 0
        self._kept: list[str] = []
        self._num_unreadable = 0

    def __bool__(self) -> bool:
        return self.number > 0

    def add(self, problem: str | SourceError | StoreError | OSError, where: object = "") -> None:
        """Adds a message or an error; the message about an OSError names the path `where`."""
        if isinstance(problem, OSError):
            problem = _unreadable(where, problem, _CHECK)
        self.number += 1
        self._num_unreadable += isinstance(problem, StoreError)
        if len(self._kept) < _MOST_KEPT:
            self._kept.append(printable(str(problem)))

    def raise_all(self, where: object) -> None:
        """If there are problems, raises one error with their number and the kept messages.

        It is a StoreError if all of them are files or folders without permission: nothing is known
        about their content.
        """
        lines = sorted(self._kept)
        if self.number > 1:
            shown = f", {_MOST_KEPT} of them above" if self.number > _MOST_KEPT else ""
            advice = "Fix them and run the same command again."
            lines.append(f"{where}: {self.number:,} problems{shown}. {advice}")
        if not lines:
            return
        message = "\n".join(lines)
        if self._num_unreadable == self.number:
            raise StoreError(message)
        raise SourceError(message)


@contextlib.contextmanager
def read_errors(path: object, remedy: str = _CHECK) -> Iterator[None]:
    """Turns an OSError into an error with `path` or, if that is "", the error's own path.

    It is a SourceError if the source may be the cause, otherwise a StoreError.
    """
    try:
        yield
    except OSError as error:
        raise _unreadable(path or error.filename or "the source", error, remedy) from error


def _unreadable(where: object, error: OSError, remedy: str) -> SourceError | StoreError:
    if isinstance(error, PermissionError):
        # Returned and not raised, to be listed with the other problems of the source.
        return StoreError(f"{where}: cannot be read: {error.strerror}. {_CHECK}")
    require_disk(where, error)
    return SourceError(f"{where}: cannot be read: {error.strerror}. {remedy}")


def scan(
    folder: Path,
    inside: Path | None = None,
    hidden: list[str] | None = None,
    problems: SourceProblems | None = None,
) -> list[FoundFile]:
    """Returns all files below a folder except hidden ones, sorted by path.

    Hidden files are added to `hidden`. Problems are added to `problems`, or raised if it is None.
    Links to files must not leave `inside`, if set. Links to folders are refused: they can be loops.
    """
    files: list[FoundFile] = []
    folders = [""]
    noted = SourceProblems() if problems is None else problems
    root = None if inside is None else os.path.realpath(inside)
    while folders:
        below = folders.pop()
        try:
            if not below:
                _refuse_out(folder, root, _FOLLOW)
            with os.scandir(folder / below) as entries:
                for entry in entries:
                    path = below + entry.name
                    if is_hidden(entry.name):
                        if hidden is not None:
                            hidden += hidden_files(folder, path)
                        continue
                    try:
                        require_utf8(folder, [entry.name])
                        if entry.is_dir(follow_symlinks=False):
                            folders.append(f"{path}/")
                        else:
                            files.append(_file(folder, path, entry, root))
                    except (SourceError, OSError) as error:
                        noted.add(error, folder / path)
        except (SourceError, OSError) as error:
            noted.add(error, folder / below)
    if problems is None:
        noted.raise_all(folder)
    return sorted(files)


def _file(folder: Path, path: str, entry: os.DirEntry[str], root: str | None) -> FoundFile:
    if entry.is_dir():
        raise SourceError(f"{folder / path}: is a link to a folder. Replace it with the folder.")
    status = entry.stat()
    if not stat.S_ISREG(status.st_mode):
        # Opening a pipe would wait for a writer.
        raise SourceError(f"{folder / path}: is not a regular file. Remove it.")
    if entry.is_symlink():
        _refuse_out(folder / path, root, _FOLLOW)
    return FoundFile(path, status.st_size, stamp(status))


def hidden_files(folder: Path, path: str) -> list[str]:
    """Returns the relative path of a hidden file, or of each file in a hidden folder."""
    if (folder / path).is_symlink() or not (folder / path).is_dir():
        return [path]
    names = itertools.chain.from_iterable(names for _, _, names in os.walk(folder / path))
    return [f"{path}/{name}" for name in names]


def _refuse_out(path: Path, root: str | None, remedy: str) -> None:
    """Raises SourceError if a link points out of `root`, possibly to a private file."""
    real = Path(os.path.realpath(path))
    if root is not None and not real.is_relative_to(root):
        raise SourceError(f"{path}: is a link that leads out of the source, to {real}. {remedy}")


def refuse_link_out(path: Path) -> None:
    """Raises SourceError if a list links to a file, perhaps a private one, outside its folder."""
    _refuse_out(path, os.path.realpath(path.parent), "Replace the link with the list.")


def subfolders(folder: Path, *, any_name: bool = False) -> list[str]:
    """Returns sorted names of subfolders except hidden ones; `any_name` allows non-UTF-8 names."""
    with read_errors(folder), os.scandir(folder) as entries:
        names = sorted(e.name for e in entries if e.is_dir() and not is_hidden(e.name))
    if not any_name:
        require_utf8(folder, names)
    return names


def require_utf8(folder: object, names: Iterable[str]) -> None:
    """Raises SourceError if names of files or folders are not UTF-8."""
    odd = [
        str(os.fsencode(name)) for name in names if not name.isascii() and _UNDECODED.search(name)
    ]
    if odd:
        are = f"name {odd[0]} is" if len(odd) == 1 else f"names {some(odd)} are"
        raise SourceError(
            f"{folder}: the {are} not UTF-8. Rename it, or convert all names with convmv -r "
            f"--notest -t utf-8 -f ENCODING {shlex.quote(str(folder))} (such as -f shift_jis)."
        )


class Listing(NamedTuple):
    """The images of a folder, sorted by path, and the numbers of files that are not read."""

    images: list[FoundFile]
    ignored: Counter[str]  # files that are not images, by extension
    unread: Counter[str]  # images that cannot be decoded here, by format


def is_called_an_image(name: str) -> bool:
    """Returns whether a path has an image extension and is not hidden."""
    is_dotted = name.rpartition("/")[2].startswith(".")
    return not is_dotted and name.lower().endswith(formats.IMAGE_EXTENSIONS)


def is_image(path: Path, *, by_content: bool) -> bool:
    """Returns whether a file is an image by its name or, if `by_content`, by its content."""
    return is_called_an_image(path.name) or (by_content and _photograph(path) is not None)


def _photograph(path: Path) -> str | None:
    """Returns the format of a photograph; raises StoreError if a file cannot be read."""
    if path.name.startswith("."):
        return None
    # `scan` reports files that are not regular.
    with read_errors(path), contextlib.suppress(DataDamagedError), open_to_read(path) as file:
        name = formats.name_of(file.read(formats.HEAD_BYTES))
        return name if name in formats.PHOTOGRAPH_FORMATS else None
    return None


def below(
    folder: Path, inside: Path | None, *, by_content: bool, problems: SourceProblems | None = None
) -> Listing:
    """Lists the images below a folder and counts all other files; see `scan` and `is_image`."""
    hidden: list[str] = []
    images = []
    ignored = Counter[str]()
    unread = Counter[str]()
    for file in scan(folder, inside, hidden, problems):
        # Check the name first: for a million files, building paths takes most of the time.
        if not is_called_an_image(file.path):
            try:
                kind = _photograph(folder / file.path) if by_content else None
            except (SourceError, StoreError) as error:
                if problems is None:
                    raise
                problems.add(error)
                continue
            if kind is None:
                ignored[ending(file.path)] += 1
                continue
            unread[kind] += not formats.is_readable(kind)
        images.append(file)
    ignored.update(map(ending, hidden))
    return Listing(images, ignored, +unread)
