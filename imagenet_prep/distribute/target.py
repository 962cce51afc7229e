"""A replica in a folder or bucket: its files, and checks that protect other data there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from imagenet_prep.core import canonical
from imagenet_prep.core.errors import UsageError
from imagenet_prep.dataset import column, manifest, naming
from imagenet_prep.dataset.column import Column
from imagenet_prep.dataset.manifest import File, Problem
from imagenet_prep.dataset.placement import WHOLE, Placement
from imagenet_prep.storage import columns as of_store
from imagenet_prep.storage.dataset_store import Dataset, require_file, stray_files

if TYPE_CHECKING:
    # This module loads libraries for servers, which hosts do not need.
    from imagenet_prep.storage.store import Store


class Target:
    """A replica: in a folder (`Replica`) or below a prefix of a bucket (`Bucket`).

    `files` are all files of the replica except the manifest and each column.json. Methods raise
    IncompleteError or StoreError if the disk or the server fails.
    """

    def __init__(
        self,
        store: Store,
        data: bytes,
        placement: Placement = WHOLE,
        columns: Mapping[str, bytes] | None = None,
    ) -> None:
        self.store = store
        require_file(store)
        self.manifest = manifest.loads(data, naming.MANIFEST)
        self.placement = placement
        columns = columns or {}
        self.columns = [column.loads(columns[name], name, name) for name in columns]
        self.files = placement.files(self.manifest, self.columns)
        self.names = {file.name for file in self.files}
        self._data = data
        # The content of the files that are published last, in this order.
        self._last = {column.record_name(name): columns[name] for name in columns}
        self._last[naming.MANIFEST] = data

    def refuse_others(self) -> None:
        """Raises UsageError if the target has a different dataset or column, or surplus shards."""
        theirs = self._read(naming.MANIFEST)
        ours = self.manifest.digest
        # The same bytes need not be parsed. Different bytes may still be the same dataset.
        digest = ours if theirs is None or theirs == self._data else _digest(theirs)
        if digest != ours:
            raise UsageError(
                f"{self.store.where()} has a different dataset (manifest {digest[:16]}, expected "
                f"{ours[:16]}). Remove it, or choose a different target."
            )
        for entry in self.columns:
            self._refuse_other_column(entry)
        odd = sorted(stray_files(self.store, [*filter(naming.parse_shard_name, self.names)]))
        if odd:
            raise UsageError(
                f"{self.store.where()} has files that readers would read, but that are not in "
                f"{self.placement}: {', '.join(odd[:3])}. Remove them or choose a different target."
            )

    def _refuse_other_column(self, ours: Column) -> None:
        existing = of_store.find(self.store, ours.name)
        if self.store.size(column.begun_name(ours.name)) is not None:
            why = "the column with this name is unfinished"
        elif existing and existing.differing(ours):
            why = "a different column has this name"
        elif existing and existing.splits.keys() - ours.splits.keys():
            why = "the column with this name has additional splits"
        else:
            return
        raise UsageError(
            f"{self.store.where(column.folder_name(ours.name))}: {why}. Remove this folder, or "
            "exclude this column with --columns."
        )

    def manifest_problem(self) -> Problem | None:
        """Returns the problem of the replica's manifest, or None."""
        return self._problem(naming.MANIFEST)

    def _problem(self, name: str) -> Problem | None:
        existing = self._read(name)
        if existing is None:
            item = "replica" if name == naming.MANIFEST else "column"
            return Problem(f"{name}: missing: the {item} is not finished", is_missing=True)
        differs = existing != self._last[name]
        return Problem(f"{name}: differs from the source's") if differs else None

    def unfinished(self) -> list[Problem]:
        """Returns the problems of the manifest and of each column.json."""
        column_problems = [self._problem(name) for name in self._last if name != naming.MANIFEST]
        return [problem for problem in (self.manifest_problem(), *column_problems) if problem]

    def withdraw(self, lacking: Iterable[File]) -> None:
        """Removes the manifest and each column.json that would list missing files."""
        folders = {file.name.rpartition("/")[0] for file in lacking}
        column_names = {column.folder_name(entry.name): entry.name for entry in self.columns}
        torn = [column_names[folder] for folder in sorted(folders & column_names.keys())]
        self.store.remove(*map(column.record_name, torn))
        if folders - column_names.keys() or self.manifest_problem():
            self._withdraw()

    def _withdraw(self) -> None:
        self.store.remove(naming.MANIFEST)

    def adopt_files(self, parent: Store, lacking: Iterable[File]) -> None:
        """Links or copies missing files from another replica, without verifying them."""
        require_file(parent)
        if parent.size(naming.MANIFEST) is None:
            raise UsageError(
                f"--from-parent: {parent.where()} is not a replica: it has no {naming.MANIFEST}. "
                "Without --from-parent, all files are copied."
            )
        columns = [of_store.find(parent, entry.name) for entry in self.columns]
        in_parent = WHOLE.files(Dataset.at(parent).manifest, [*filter(None, columns)])
        hashes = {(file.name, file.sha256) for file in in_parent}
        files = [file for file in lacking if (file.name, file.sha256) in hashes]
        sizes = parent.sizes(file.name for file in files)
        complete = [file for file in files if sizes.get(file.name) == file.num_bytes]
        self.store.adopt_files(parent, complete)

    def commit(self) -> None:
        """Publishes each column.json and the manifest; the caller has verified every other file."""
        for name, data in self._last.items():
            if self._read(name) != data:
                self.store.write(name, data)

    def _read(self, name: str) -> bytes | None:
        return self.store.read(name) if self.store.size(name) is not None else None


def _digest(data: bytes) -> str:
    try:
        return str(canonical.loads(data)["digest"])
    except (ValueError, LookupError, TypeError):
        return "damaged"
