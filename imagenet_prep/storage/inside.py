"""Opens files below a folder without following links, which may have been planted there.

A dataset from elsewhere can contain a `.work` with links to the user's own files. Paths below
`.work` and `columns` are therefore opened one part at a time, and no part may be a link.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from imagenet_prep.core.errors import DataDamagedError, StoreError
from imagenet_prep.core.own_file import fsync_folder
from imagenet_prep.dataset import naming

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def demand_inside(name: str) -> str:
    """Returns a relative name; raises DataDamagedError if it leads outside of the dataset."""
    try:
        return naming.check_inside(name)
    except ValueError as error:
        raise DataDamagedError(
            f"{error}. Nothing was read or written there. The name comes from a manifest, receipt "
            "or similar file that this program did not write. Remove that file, or fetch it again."
        ) from None


def open_inside(root: Path, name: str, flags: int) -> int:
    """Opens a file; only `root` may be a link. The caller closes the returned descriptor."""
    folder, _, file = naming.check_inside(name).rpartition("/")
    with folder_inside(root, folder) as place, _links_refused(root, name):
        return os.open(file, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644, dir_fd=place)


def stat_inside(root: Path, name: str) -> os.stat_result:
    """Returns the stat result of a file or folder below `root`."""
    folder, _, file = naming.check_inside(name).rpartition("/")
    with folder_inside(root, folder) as place:
        status = os.stat(file, dir_fd=place, follow_symlinks=False)
    if stat.S_ISLNK(status.st_mode):
        raise refusal(root, name)
    return status


def refuse_other_kinds(root: Path, folder: str) -> None:
    """Raises DataDamagedError if a folder of a dataset exists and is a link or no folder."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        if not stat.S_ISDIR((root / folder).lstat().st_mode):
            raise DataDamagedError(str(refusal(root, folder)))


@contextlib.contextmanager
def folder_inside(root: Path, name: str = "", *, make: bool = False) -> Iterator[int]:
    """Yields a `dir_fd` for a folder below `root`; raises like `open_inside`."""
    parts = naming.check_inside(name).split("/") if name else []
    if make:
        _make_durably(root)
    place = os.open(root, _FOLDER)
    try:
        for part in parts:
            with _links_refused(root, name):
                inner = _open_folder(place, part, make=make)
            # With this order, an interrupt may leave a descriptor open, but never closes one twice.
            outer, place = place, inner
            os.close(outer)
        yield place
    finally:
        os.close(place)


def is_only_ours(status: os.stat_result) -> bool:
    """Returns whether only this user or root can have written the file with this stat result."""
    return status.st_uid in (os.geteuid(), 0) and not status.st_mode & 0o022


def refusal(root: Path, name: str = "") -> StoreError | DataDamagedError:
    """Returns the error for a path that this program did not create."""
    kind = DataDamagedError if name.partition("/")[0] == naming.COLUMNS else StoreError
    return kind(
        f"{root / name}: the file, or a folder above it, is a link or of the wrong kind. It was "
        "not opened. Remove it, but no file to which it leads, then run the same command again."
    )


def _open_folder(place: int, part: str, *, make: bool) -> int:
    try:
        return os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=place)
    except FileNotFoundError:
        if not make:
            raise
    with contextlib.suppress(FileExistsError):
        os.mkdir(part, dir_fd=place)
    # Without this sync, a crash could remove the folder and the synced files in it.
    fsync_folder(place)
    return os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=place)


def _make_durably(folder: Path) -> None:
    """Makes a folder and its missing parents, so that they survive a crash."""
    if folder.is_dir():
        return
    _make_durably(folder.parent)
    folder.mkdir(exist_ok=True)
    sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Syncs the names of the files in a folder to the disk."""
    with folder_inside(folder) as place:
        fsync_folder(place)


@contextlib.contextmanager
def _links_refused(root: Path, name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        # ENXIO: a pipe without a reader, or a socket.
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.ENXIO):
            raise refusal(root, name) from error
        raise
