"""A data set on a web server, as far as it is only read."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import BinaryIO

from imagenet_prep.storage.fetch import as_file, stream, whole
from imagenet_prep.storage.http import Http
from imagenet_prep.storage.remote import AbsentError
from imagenet_prep.storage.retry import RetryBudget, with_retries

_TIMEOUT_S = 60.0
_RETRIES = 20


class WebFolder:
    """A folder of a web server, as `Readable`.

    What asks the server raises IncompleteError where it fails too often, and StoreError where it
    refuses.
    """

    def __init__(self, base: str) -> None:
        """Begins; nothing is asked of the server."""
        self._base = base.rstrip("/")
        self._http = Http(self._base, _TIMEOUT_S)

    @property
    def as_folder(self) -> None:
        """As for `Readable`: it is none."""

    def where(self, name: str = "") -> str:
        """As for `Readable`."""
        return self._http.where(name) if name else self._base

    def size(self, name: str) -> int | None:
        """As for `Readable`."""
        try:
            return with_retries(lambda: self._http.stat(name), self._budget(name)).size
        except AbsentError:
            return None

    def list_folder(self) -> list[str]:
        """As for `Readable`; empty, since a web server cannot be listed."""
        return []

    def read(self, name: str) -> bytes:
        """As for `Readable`."""
        return whole(self._http, name, self._budget(name))

    @contextlib.contextmanager
    def opened(self, name: str) -> Iterator[BinaryIO]:
        """As for `Readable`."""
        budget = self._budget(name)
        stat = with_retries(lambda: self._http.stat(name), budget)
        with contextlib.closing(stream(self._http, name, stat, budget)) as chunks:
            yield as_file(chunks)

    def _budget(self, name: str) -> RetryBudget:
        remedy = "Run the same command again later."
        return RetryBudget(self.where(name), _RETRIES, remedy=remedy)
