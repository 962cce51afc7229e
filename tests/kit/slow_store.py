"""A folder that is as slow as a server, except for a client that opens many files at once."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.storage.remote import Stat
from tests.kit.command import PATIENCE_S


class SlowStore(LocalStore):
    """Opens files only after `together` of them are requested at the same time.

    Attributes:
      asked: the names of the requested files.
    """

    def __init__(self, root: Path, together: int) -> None:
        super().__init__(root)
        self.asked: list[str] = []
        self._together = threading.Barrier(together)

    @contextlib.contextmanager
    def open_file(self, name: str, stat: Stat | None = None) -> Iterator[BinaryIO]:
        self.asked.append(name)
        self._together.wait(PATIENCE_S)
        with super().open_file(name, stat) as file:
            yield file
