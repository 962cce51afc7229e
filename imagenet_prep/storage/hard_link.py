"""A hard link to a file of another data set, as durable as the file itself."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

from imagenet_prep.core import regular_file
from imagenet_prep.core.errors import DataDamagedError, UsageError

# Another file system, one without links, or files of another user that the kernel protects.
_NO_LINK = (errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK)


def hard_link(
    path: Path,
    num_bytes: int,
    place: int,
    temporary: Callable[[], Path],
    called: tuple[str, str],
) -> None:
    """Links a file into a folder under its own name, in place of another file that is there.

    Args:
      path: of the file.
      num_bytes: that it must have.
      place: descriptor of the folder, which the caller syncs.
      temporary: returns an unused path on the same file system as `place`.
      called: how messages name the set of the file, and that of the folder.

    Raises:
      DataDamagedError: the file is missing, or has another size.
      UsageError: the system makes no hard link there.
      OSError: the disk fails.
    """
    source, target = called
    try:
        with open(regular_file.open_to_read(path), "rb") as opened:
            status = os.fstat(opened.fileno())
            # Another program may have copied it there a moment ago, and not have synced it.
            os.fsync(opened.fileno())
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        raise DataDamagedError(f"{path}: missing. Run verify on {source}.") from None
    if status.st_size != num_bytes:
        raise DataDamagedError(
            f"{path}: {status.st_size:,} bytes, its manifest says {num_bytes:,}. "
            f"Run verify on {source}."
        )
    try:
        try:
            os.link(path, path.name, dst_dir_fd=place)
        except FileExistsError:
            # Two names of one file: to rename the one to the other would do nothing.
            if os.path.samestat(status, os.stat(path.name, dir_fd=place, follow_symlinks=False)):
                return
            other = temporary()
            os.link(path, other)
            os.replace(other, path.name, dst_dir_fd=place)
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
        raise UsageError(
            f"{target}: the system makes no hard link to {path} there ({error.strerror}). Choose "
            "a folder on the same file system, and run this as the user who owns the files; or "
            "copy the set with `imagenet-prep replicate`."
        ) from error
