"""Stores lists of the files in remote archives for later runs.

The lists are in `imagenet-prep-lists` next to the datasets, in one folder per archive. Other users
may write there, so lists are checked, and listed names compared with the headers in the archive.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat as stat_module
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from imagenet_prep.core import address, canonical, records
from imagenet_prep.core.errors import ImagenetPrepError
from imagenet_prep.storage.archive import Entry
from imagenet_prep.storage.remote import Stat
from imagenet_prep.storage.store import Store, open_store

FOLDER = "imagenet-prep-lists"
# A list of 50,000 files has 3 MB.
_MAX_BYTES = 64 << 20
_MD5 = re.compile(r"[0-9a-f]{32}")


class Kept(NamedTuple):
    """The files in a range of an archive, and the md5 of the archive ("" if it is unknown)."""

    files: list[Entry]
    md5: str


@dataclass(frozen=True)
class _List:
    archive: str
    validator: str
    num_bytes: int
    files: list[Entry]
    md5: str


@dataclass(frozen=True)
class KeptLists:
    """The stored lists in one folder. Picklable."""

    base: str  # folder or s3:// address
    writes: bool = True  # whether new lists are stored (not in a dry run)
    believed: bool = True  # whether existing lists are read, or only overwritten

    def find(self, archive: str, stat: Stat, start: int, stop: int) -> Kept | None:
        """Returns the files in bytes [start, stop) of an archive, or None if no list is stored."""
        return self._load(archive, stat, start, stop) if self.believed else None

    def _load(self, archive: str, stat: Stat, start: int, stop: int) -> Kept | None:
        try:
            name = _name(archive, stat, start, stop)
            folder = self._store.as_folder
            # Accept no file that a different user may have written.
            read = self._store.read if folder is None else folder.read_ours
            stored = records.loads(_List, read(name, most=_MAX_BYTES))
        except (ImagenetPrepError, OSError, ValueError):
            return None
        if (stored.archive, stored.validator, stored.num_bytes) != (archive, *_identity(stat)):
            return None
        last = start
        for _, offset, size in stored.files:
            if not (last <= offset and 0 <= size <= stop - offset):
                return None
            last = offset + size
        return Kept(stored.files, stored.md5 if _MD5.fullmatch(stored.md5) else "")

    def keep(self, archive: str, stat: Stat, start: int, stop: int, kept: Kept) -> None:
        """Stores a list. Errors are ignored: without a list, the next run reads the archive."""
        if not self.writes:
            return
        content = _List(archive, *_identity(stat), *kept)
        with contextlib.suppress(ImagenetPrepError, OSError):
            if folder := self._store.as_folder:
                folder.root.mkdir(parents=True, exist_ok=True)
                status = folder.root.lstat()
                # A different user may have created the folder, or a link.
                if not stat_module.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
                    return
            self._store.write(_name(archive, stat, start, stop), canonical.dumps(content))

    def keep_md5(self, archive: str, stat: Stat, md5: str) -> None:
        """Adds the md5 of an archive to the list of its files, if there is one."""
        # A list without files would describe an empty archive.
        if kept := self._load(archive, stat, 0, stat.size):
            self.keep(archive, stat, 0, stat.size, kept._replace(md5=md5))

    @cached_property
    def _store(self) -> Store:
        return open_store(self.base)


def beside(out: str) -> str | None:
    """Returns the folder of the lists for the dataset at `out`; None if `out` is a whole bucket."""
    if not address.is_remote(out):
        return str(Path(out).expanduser().absolute().parent / FOLDER)
    above, _, prefix = out.rstrip("/").rpartition("/")
    return f"{above}/{FOLDER}" if prefix and above != "s3:/" else None


def _identity(stat: Stat) -> tuple[str, int]:
    return stat.validator, stat.size


def _name(archive: str, stat: Stat, start: int, stop: int) -> str:
    digest = canonical.digest([archive, *_identity(stat)])[:16]
    return f"{digest}/{start}-{stop}.json"
