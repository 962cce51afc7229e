"""A dataset on a web server, read-only."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

from imagenet_prep.core.regular_file import MOST_BYTES
from imagenet_prep.storage.fetch import as_file, stream, whole
from imagenet_prep.storage.http import Http
from imagenet_prep.storage.remote import AbsentError, Stat
from imagenet_prep.storage.retry import RetryBudget, with_retries

_TIMEOUT_S = 60.0
_RETRIES = 20


class WebFolder:
    """A folder on a web server, as `Readable`. Its files cannot be listed."""

    def __init__(self, base: str) -> None:
        self._base = base.rstrip("/")
        self._http = Http(self._base, _TIMEOUT_S)

    def __reduce__(self) -> tuple[Any, ...]:
        return WebFolder, (self._base,)

    @property
    def as_folder(self) -> None:
        """None: this is not a folder."""

    def where(self, name: str = "") -> str:
        """See `Readable`."""
        return self._http.where(name) if name else self._base

    def size(self, name: str) -> int | None:
        """See `Readable`."""
        try:
            return self._stat(name).size
        except AbsentError:
            return None

    def sizes(self, names: Iterable[str]) -> dict[str, int]:
        """See `Readable`."""
        return {name: size for name in names if (size := self.size(name)) is not None}

    def names(self, _folder: str) -> list[str]:
        """Returns an empty list, since a web server cannot be listed."""
        return []

    def list_folder(self, _folder: str = "") -> list[str]:
        """Returns an empty list, since a web server cannot be listed."""
        return []

    def read(
        self, name: str, offset: int = 0, size: int | None = None, most: int = MOST_BYTES
    ) -> bytes:
        """See `Readable`."""
        if size is None:
            return whole(self._http, name, self._budget(name), most)
        stat = self._stat(name)
        stop = min(offset + size, stat.size)
        return b"".join(stream(self._http, name, stat, self._budget(name), offset, stop))

    @contextlib.contextmanager
    def opened(self, name: str, stat: Stat | None = None) -> Iterator[BinaryIO]:
        """See `Readable`."""
        stat = stat or self._stat(name)
        with contextlib.closing(stream(self._http, name, stat, self._budget(name))) as chunks:
            yield as_file(chunks)

    def _stat(self, name: str) -> Stat:
        return with_retries(lambda: self._http.stat(name), self._budget(name))

    def _budget(self, name: str) -> RetryBudget:
        return RetryBudget(self.where(name), _RETRIES, remedy="Run the same command again later.")
