"""Opens files below a folder without following links: what lies there may have been planted.

A data set that was unpacked from an archive or copied from elsewhere can hold a `.work` whose
files are links to the user's own files. So whatever is opened below `.work` is opened by
`open_inside`, one part of the path after the other, and none of the parts may be a link.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from imagenet_prep.core import naming
from imagenet_prep.core.errors import StoreError


def open_inside(root: Path, name: str, flags: int, mode: int = 0o644) -> int:
    """Opens a file below `root`; returns its descriptor, which the caller closes.

    Args:
      root: an existing folder that the user named; it may itself be reached through a link.
      name: relative to `root`, parts separated by "/".
      flags: as for os.open; O_CLOEXEC and O_NOFOLLOW are added.
      mode: of a file that is made.

    Raises:
      ValueError: the name leads outside, see `naming.check_inside`.
      StoreError: a part of the path below `root` is a link, or not a folder.
      OSError: as for os.open.
    """
    *folders, file = naming.check_inside(name).split("/")
    flags |= os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for folder in folders:
            inner = os.open(
                folder,
                os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW,
                dir_fd=descriptor,
            )
            os.close(descriptor)
            descriptor = inner
        return os.open(file, flags, mode, dir_fd=descriptor)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise StoreError(
                f"{root / name}: the file, or a folder above it, is a link or not what this "
                "program makes there. It was not opened. Remove it, then run the same command "
                "again."
            ) from error
        raise
    finally:
        os.close(descriptor)
