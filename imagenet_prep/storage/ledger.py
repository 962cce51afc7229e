"""What was proven of the files of a folder, and whether they have been touched since."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Container
from pathlib import Path
from typing import Any

from imagenet_prep.core.errors import ImagenetPrepError
from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.storage.journal import Journal


class Ledger:
    """Proofs, one a line: a file's name, its time when it was proven, and what was found.

    Several processes may read what one writes, while it grows. What was written by another hand
    proves nothing: a line counts only for a known name, and while the file has that very time.
    """

    def __init__(self, store: LocalStore, name: str, files: Container[str]) -> None:
        """Reads what is there.

        Args:
          store: the folder.
          name: of the ledger, relative to it.
          files: names that it may speak of.

        Raises:
          StoreError: it cannot be read, or is a link.
        """
        self._journal = Journal(store.root, name)
        self._files = files
        self._proofs: dict[str, dict[str, Any]] = {}
        self.reload()

    def reload(self) -> list[str]:
        """Reads what was added since; returns the names that it speaks of.

        Raises:
          StoreError: it cannot be read.
        """
        new = []
        for entry in self._journal.news():
            match entry:
                case {"name": str(name), "mtime_ns": time_ns} if name in self._files:
                    if type(time_ns) is int:
                        self._proofs[name] = entry
                        new.append(name)
        return new

    def find(self, name: str, path: Path) -> dict[str, Any] | None:
        """Returns what was proven of a file, or None where it was touched since, or never proven.

        Args:
          name: as it was added.
          path: where the file is now.
        """
        proof = self._proofs.get(name)
        try:
            untouched = proof is not None and proof["mtime_ns"] == path.stat().st_mtime_ns
        except OSError:
            return None
        return proof if untouched else None

    def add(self, name: str, status: os.stat_result, **found: Any) -> None:
        """Notes that a file is proven.

        A note that is lost costs reading the file once more, and a folder that may only be read
        can still be checked: so where it cannot be written, only this object knows it.

        Args:
          name: of the file.
          status: of it, from before it was read, since whatever is written meanwhile is unproven.
          **found: what was found, as JSON.
        """
        self._proofs[name] = {"name": name, "mtime_ns": status.st_mtime_ns, **found}
        with contextlib.suppress(OSError, ImagenetPrepError):
            self._journal.add(self._proofs[name])
