"""Makes hard links to files of a different dataset, and syncs these files."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from imagenet_prep.core import regular_file
from imagenet_prep.core.errors import DataDamagedError, UsageError
from imagenet_prep.storage.inside import folder_inside
from imagenet_prep.storage.os_errors import removed_on_failure
from imagenet_prep.storage.remote import Stat, changed

# The file systems differ or have no hard links, the file has too many links, or the kernel does not
# allow links to files of other users.
_NO_LINK = (errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK)


def hard_link(
    path: Path,
    target: Path,
    num_bytes: int,
    stat: Stat | None,
    called: tuple[str, str],
    instead: str = "copy the dataset with `imagenet-prep replicate`",
) -> None:
    """Makes a hard link `target` to a file or, if `path` is a symbolic link, to the file behind it.

    `stat` is the file's state earlier in this run, if known. `called` are the names of both
    datasets in messages, and `instead` is the advice if no link can be made.
    """
    source, where = called
    try:
        # Keep the file open: the inode number of a deleted file may be reused.
        opened = open(regular_file.open_to_read(path), "rb")  # noqa: SIM115 - until the end
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        if stat is not None:
            changed(str(path))
        raise DataDamagedError(f"{path}: missing. Run verify on {source}.") from None
    with opened:
        status = os.fstat(opened.fileno())
        if stat is not None and stat.is_changed(status):
            changed(str(path))
        if num_bytes != status.st_size:
            raise DataDamagedError(
                f"{path}: {status.st_size:,} bytes, the manifest says {num_bytes:,}. Run verify on "
                f"{source}."
            )
        # A different program may have just copied the file here without syncing it.
        os.fsync(opened.fileno())
        with removed_on_failure(target):
            try:
                # Without a folder descriptor, os.link would link the symbolic link itself.
                with folder_inside(target.parent) as folder:
                    os.link(path, target.name, dst_dir_fd=folder)
            except OSError as error:
                if error.errno not in _NO_LINK:
                    raise
                raise UsageError(
                    f"{where}: cannot create a hard link to {path} there ({error.strerror}). "
                    "Choose a folder on the same file system and run this as the owner of the "
                    f"files; or {instead}."
                ) from error
            if not os.path.samestat(status, target.lstat()):
                changed(str(path))
