"""The md5 of an archive that `download` has proven, noted beside it for whoever reads it later.

A note is believed only of the very file: bytes, times and inode as they were. The time of change
(ctime) cannot be set, so neither a copied folder nor one made by somebody else brings notes along.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from imagenet_prep.core.errors import ImagenetPrepError
from imagenet_prep.dataset import naming
from imagenet_prep.storage import inside
from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.storage.ledger import Ledger

NOTES = f"{naming.WORK}/proven.jsonl"
# Thousands of downloads into one folder; more was not written by us.
_MAX_BYTES = 1 << 20
_MD5 = re.compile(r"[0-9a-f]{32}")


def note(path: Path, md5: str, status: os.stat_result) -> None:
    """Notes the md5 of a proven file. What cannot be noted is merely read again.

    Args:
      path: of the file.
      md5: hexadecimal.
      status: of the file, from when its bytes were known to be these.
    """
    with contextlib.suppress(OSError, ImagenetPrepError):
        ledger = Ledger(LocalStore(path.parent), NOTES, {path.name})
        ledger.add(path.name, status, md5=md5, **_identity(status))


def find(path: Path) -> str | None:
    """Returns the md5 that was proven of a file, or None where it is to be read for it.

    None also where the file was touched since, and where the note is damaged, a link, too large,
    or could have been written by another user.
    """
    folder = LocalStore(path.parent)
    with contextlib.suppress(OSError, ImagenetPrepError):
        status = inside.stat_inside(folder.root, NOTES)
        if inside.is_only_ours(status) and status.st_size <= _MAX_BYTES:
            proof = Ledger(folder, NOTES, {path.name}).find(path.name, path) or {}
            untouched = proof.items() >= _identity(path.stat()).items()
            match proof:
                case {"md5": str(md5)} if untouched and _MD5.fullmatch(md5):
                    return md5
    return None


def _identity(status: os.stat_result) -> dict[str, int]:
    """Returns what changes with a file's bytes, besides the mtime, which is the ledger's."""
    return {
        "num_bytes": status.st_size,
        "ctime_ns": status.st_ctime_ns,
        "inode": status.st_ino,
    }
