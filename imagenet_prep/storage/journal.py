"""A journal: lines of JSON that one process appends and others follow while it grows."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from imagenet_prep.core import canonical
from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.storage.os_errors import storage_errors

# Ours have less than 300.
_MAX_LINE_BYTES = 1 << 16


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
