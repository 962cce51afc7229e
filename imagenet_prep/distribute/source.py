"""The dataset to replicate, in a folder or a bucket: its manifest and the bytes of its files."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from imagenet_prep.core import regular_file
from imagenet_prep.core.address import is_remote
from imagenet_prep.core.errors import IncompleteError, StoreError, UsageError
from imagenet_prep.dataset import column, naming
from imagenet_prep.dataset.manifest import File
from imagenet_prep.distribute.pace import Pace
from imagenet_prep.storage.fetch import contents
from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.storage.ledger import Journal
from imagenet_prep.storage.remote import AbsentError, Access
from imagenet_prep.storage.store import open_readable


class Original:
    """The dataset to replicate; thread-safe. `data` is its manifest at the start of the run."""

    def __init__(
        self, base: str, *, connections: int, timeout_s: float, retries: int, bytes_per_s: float
    ) -> None:
        """Reads the manifest. `bytes_per_s` limits the total rate; 0 means no limit."""
        if not is_remote(base):
            regular_file.refuse_other_kinds(Path(base).expanduser() / naming.MANIFEST)
        self.base = base
        remedy = "Files that have arrived are kept: run the same command again to resume."
        access = Access(
            connections=connections, timeout_s=timeout_s, retries=retries, remedy=remedy
        )
        self._store = open_readable(base, access)
        self._pace = Pace(bytes_per_s)
        self.columns: dict[str, bytes] = {}  # column.json of each column to copy, by column name
        try:
            self.data = self._read(naming.MANIFEST)
        except AbsentError as error:
            raise UsageError(
                f"{error} Without {naming.MANIFEST}, it is not a dataset of imagenet-prep. For "
                f"TFRecords of a different program, first run imagenet-prep adopt {base}. If train "
                "and validation are in two buckets, copy one split into the bucket of the other "
                "before."
            ) from None

    def chunks(self, file: File) -> Iterator[bytes]:
        """Yields the bytes of a file, as fast as the rate limit allows."""
        for chunk in contents(self._store, file, "Run verify on the dataset."):
            self._pace.take(len(chunk))
            yield chunk

    def check_unchanged(self) -> None:
        """Raises IncompleteError if the dataset has changed since the run began."""
        try:
            last = {column.record_name(name): data for name, data in self.columns.items()}
            last[naming.MANIFEST] = self.data
            unchanged = all(self._read(name) == data for name, data in last.items())
        except AbsentError:
            unchanged = False
        if not unchanged:
            raise IncompleteError(
                f"{self.base}: the dataset, or a column, has changed since this run started, so "
                "the copies have no manifest. Run the same command again when the change is "
                "complete. If it is a new dataset now, choose a different target."
            )

    def note_replicas(self, places: Sequence[str], digest: str) -> None:
        """Records the locations of complete replicas of the dataset with this digest."""
        if "://" in self.base:
            return
        when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
        journal = Journal(LocalStore(Path(self.base).expanduser()), naming.REPLICAS)
        digests: dict[str, str] = {}
        # Ignore errors: only `report` shows this list, and the dataset may be read-only.
        with contextlib.suppress(OSError, StoreError):
            for entry in journal.news():
                match entry:
                    case {"where": str(where), "digest": str(last)}:
                        digests[where] = last
            for place in places:
                if digests.get(place) != digest:
                    journal.add({"where": place, "when": when, "digest": digest})

    def _read(self, name: str) -> bytes:
        self._store.stat(name)  # raises AbsentError, also in a folder
        return self._store.read(name)
