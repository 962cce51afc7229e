"""What was proven of the files of a folder, in a file of lines that survives a kill."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any

from imagenet_prep.core import canonical, regular_file
from imagenet_prep.core.canonical import Json
from imagenet_prep.core.errors import DataDamagedError, ImagenetPrepError
from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.storage.os_errors import storage_errors

# Ours have less than 300.
_MAX_LINE_BYTES = 1 << 16
# Room for the largest data set, proven eight times.
_MAX_BYTES = regular_file.MOST_BYTES


class Journal:
    """One file below a folder: reads its new lines, and appends. For one thread at a time."""

    def __init__(self, root: Path, name: str) -> None:
        """Begins at the start of the file; nothing is read or made.

        Args:
          root: the folder, which may be missing.
          name: of the file, relative to the folder.
        """
        self._store, self._name = LocalStore(root), name
        self._inode = 0
        self._offset = 0

    def news(self) -> Iterator[Any]:
        """Yields the lines that were added since the last call, in order.

        A line that is incomplete, too long or not JSON is skipped. If another file has replaced
        this one, that is read from its start.

        Raises:
          DataDamagedError: it is too large.
          StoreError: it cannot be read, or is a link.
        """
        with storage_errors("read", self._store.path(self._name)):
            try:
                descriptor = self._store.open(self._name, os.O_RDONLY)
            except (FileNotFoundError, NotADirectoryError):
                return
            with os.fdopen(descriptor, "rb") as file:
                status = os.fstat(descriptor)
                if status.st_ino != self._inode or status.st_size < self._offset:
                    self._inode, self._offset = status.st_ino, 0
                if status.st_size == self._offset:
                    return
                if status.st_size > _MAX_BYTES:
                    raise DataDamagedError(
                        f"{self._store.path(self._name)}: has {status.st_size:,} bytes, expected "
                        f"{_MAX_BYTES:,} at most. Remove it: what it says was proven is read again."
                    )
                file.seek(self._offset)
                is_rest = False
                while line := file.readline(_MAX_LINE_BYTES):
                    is_end = line.endswith(b"\n")
                    if not is_end and len(line) < _MAX_LINE_BYTES:
                        return  # the rest of the line is not yet written, or never will be
                    self._offset += len(line)
                    if is_end and not is_rest and line != b"\n":
                        try:
                            entry = canonical.loads(line)
                        except ValueError:
                            continue
                        yield entry
                    is_rest = not is_end

    def add(self, entry: Any) -> None:
        """Appends one line.

        Raises:
          StoreError: it is a link.
          OSError: it cannot be written.
        """
        self._store.make_folder(self._name.rpartition("/")[0])
        descriptor = self._store.open(self._name, os.O_CREAT | os.O_RDWR | os.O_APPEND)
        try:
            line = canonical.dumps(entry) + b"\n"
            size = os.fstat(descriptor).st_size
            # If a crash has cut off the last line, the new one begins on its own line.
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                line = b"\n" + line
            os.write(descriptor, line)
        finally:
            os.close(descriptor)


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
        self._proofs: dict[str, Json] = {}
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

    def find(self, name: str, path: Path) -> Json | None:
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
