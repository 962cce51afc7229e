"""Which files of a reader's cache are proven: no rank believes what only lies there.

A cache may lie in a folder that others share, and anybody can work out what a data set's part of
it is called. So the folder must be this user's, and a file in it counts once its sha256 was
proven: when it was fetched, or by reading it once. A note beside it tells the ranks that come
later. It holds for that very file: the time of change (ctime) cannot be set.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat

from imagenet_prep.core import canonical
from imagenet_prep.core.errors import StoreError
from imagenet_prep.dataset import naming
from imagenet_prep.dataset.manifest import File
from imagenet_prep.storage import inside
from imagenet_prep.storage.folder import TEMPORARY, LocalStore
from imagenet_prep.storage.os_errors import storage_errors

_NOTES = f"{naming.WORK}/proven"
_FOLDERS = (naming.WORK, TEMPORARY, _NOTES, *naming.BESIDE)
# The notes that `_note` writes have less than 300 bytes.
_MOST_NOTE_BYTES = 4096


def take_folder(store: LocalStore) -> None:
    """Makes the folder of a data set, and sees to it that nobody else can write there.

    Raises:
      StoreError: it is another user's, or a link.
    """
    with storage_errors("create", store.root):
        store.root.mkdir(parents=True, exist_ok=True)
        if store.root.is_symlink():
            raise inside.refusal(store.root)
    for name in _FOLDERS:
        store.make_folder(name)
    for name in ("", *_FOLDERS):
        path = store.path(name)
        with storage_errors("open", path), inside.folder_inside(store.root, name) as place:
            status = os.fstat(place)
            if status.st_uid not in (os.geteuid(), 0):
                raise StoreError(
                    f"{path} belongs to another user (number {status.st_uid}), who may change what "
                    "this reader relies on. Let cache_dir, or IMAGENET_PREP_CACHE, name a folder "
                    "of your own."
                )
            if status.st_mode & 0o022:
                os.fchmod(place, stat.S_IMODE(status.st_mode) & ~0o022)


def is_proven(store: LocalStore, file: File) -> bool:
    """Returns whether a file is there with its bytes; reads it where no note says so.

    Raises:
      StoreError: it is a link, or cannot be read.
    """
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        flags = os.O_RDONLY | os.O_NONBLOCK
        with open(inside.open_inside(store.root, file.name, flags), "rb") as opened:
            status = os.fstat(opened.fileno())
            if not (stat.S_ISREG(status.st_mode) and inside.is_only_ours(status)):
                return False
            if status.st_size != file.num_bytes:
                return False
            if _noted(store, file) == _identity(file, status):
                return True
            sha256 = hashlib.file_digest(opened, "sha256").hexdigest()
            if sha256 == file.sha256 and _identity(file, os.fstat(opened.fileno())) == _identity(
                file, status
            ):
                note(store, file, status)
                return True
    return False


def note(store: LocalStore, file: File, status: os.stat_result) -> None:
    """Notes that a file of this status is proven; one without a note is merely read again."""
    with contextlib.suppress(OSError, StoreError):
        flags = os.O_CREAT | os.O_WRONLY | os.O_TRUNC
        with os.fdopen(store.open(_note_name(file), flags), "wb") as opened:
            opened.write(canonical.dumps(_identity(file, status)))


def _noted(store: LocalStore, file: File) -> object:
    with (
        contextlib.suppress(OSError, StoreError, ValueError),
        os.fdopen(store.open(_note_name(file), os.O_RDONLY), "rb") as opened,
    ):
        if inside.is_only_ours(os.fstat(opened.fileno())):
            return canonical.loads(opened.read(_MOST_NOTE_BYTES))
    return None


def _note_name(file: File) -> str:
    return f"{_NOTES}/{file.name.replace('/', '-')}"


def _identity(file: File, status: os.stat_result) -> dict[str, object]:
    return {
        "sha256": file.sha256,
        "num_bytes": status.st_size,
        "mtime_ns": status.st_mtime_ns,
        "ctime_ns": status.st_ctime_ns,
        "inode": status.st_ino,
    }
