"""Opens files below a folder without following links: what lies there may have been planted.

A data set that was unpacked from an archive or copied from elsewhere can hold a `.work` whose
files are links to the user's own files. So whatever is opened below `.work` is opened by
`open_inside`, one part of the path after the other, and none of the parts may be a link.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from imagenet_prep.core.errors import DataDamagedError, StoreError
from imagenet_prep.dataset import naming

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def demand_inside(name: str) -> str:
    """Returns the name of a file or object unchanged: what every store asks of every name."""
    try:
        return naming.check_inside(name)
    except ValueError as error:
        raise DataDamagedError(
            f"{error}. Nothing was read or written there. Whatever holds this name (a manifest, "
            "a receipt in .work, a file's own name) was not made by this program: remove it, or "
            "fetch it again."
        ) from None


def open_inside(root: Path, name: str, flags: int) -> int:
    """Opens a file below `root`, which may be a link; the caller closes the descriptor."""
    folder, _, file = naming.check_inside(name).rpartition("/")
    with folder_inside(root, folder) as place, _links_refused(root / name):
        return os.open(file, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644, dir_fd=place)


def stat_inside(root: Path, name: str) -> os.stat_result:
    """Returns what the system knows of a file or folder below `root`."""
    folder, _, file = naming.check_inside(name).rpartition("/")
    with folder_inside(root, folder) as place:
        status = os.stat(file, dir_fd=place, follow_symlinks=False)
    if stat.S_ISLNK(status.st_mode):
        raise refusal(root / name)
    return status


@contextlib.contextmanager
def folder_inside(root: Path, name: str, *, make: bool = False) -> Iterator[int]:
    """Yields the descriptor of a folder below `root`, for `dir_fd`; raises as `open_inside`."""
    parts = naming.check_inside(name).split("/") if name else []
    if make:
        _make_durably(root)
    place = os.open(root, _FOLDER)
    try:
        for part in parts:
            with _links_refused(root / name):
                inner = _open_folder(place, part, make=make)
            # In this order: an interrupt in between may leave one open, and closes none twice.
            outer, place = place, inner
            os.close(outer)
        yield place
    finally:
        os.close(place)


def is_only_ours(status: os.stat_result) -> bool:
    """Returns whether nobody but this user, and root, can have written a file of this status."""
    return status.st_uid in (os.geteuid(), 0) and not status.st_mode & 0o022


def refusal(path: Path) -> StoreError:
    """Returns what is said of a path that is not what this program makes."""
    return StoreError(
        f"{path}: the file, or a folder above it, is a link or not what this program makes "
        "there. It was not opened. Remove it, then run the same command again."
    )


def _open_folder(place: int, part: str, *, make: bool) -> int:
    try:
        return os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=place)
    except FileNotFoundError:
        if not make:
            raise
    with contextlib.suppress(FileExistsError):
        os.mkdir(part, dir_fd=place)
    # A crash would else take the folder away, with files in it that were synced.
    os.fsync(place)
    return os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=place)


def _make_durably(folder: Path) -> None:
    """Makes a folder and those above it where they are absent; a crash does not take them away."""
    if folder.is_dir():
        return
    _make_durably(folder.parent)
    folder.mkdir(exist_ok=True)
    sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Leaves on the disk which names a folder has."""
    place = os.open(folder, _FOLDER)
    try:
        os.fsync(place)
    finally:
        os.close(place)


@contextlib.contextmanager
def _links_refused(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        # ENXIO: a pipe that nobody reads, or a socket.
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.ENXIO):
            raise refusal(path) from error
        raise
