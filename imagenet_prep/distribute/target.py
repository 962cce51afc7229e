"""A replica, wherever it lies: what it must hold, and what keeps others out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from imagenet_prep.core import canonical
from imagenet_prep.core.errors import UsageError
from imagenet_prep.dataset import manifest, naming
from imagenet_prep.dataset.manifest import File, Problem
from imagenet_prep.dataset.placement import WHOLE, Placement
from imagenet_prep.storage.opened import Dataset, demand_file

if TYPE_CHECKING:
    # This module imports libraries for servers, which hosts do not need.
    from imagenet_prep.storage.store import Store


class Target:
    """One dataset in one place; `Replica` is a folder, `Bucket` a prefix of a bucket.

    Every method raises IncompleteError or StoreError if the place does not answer, or refuses.
    `files` are all that it must hold, except the manifest.
    """

    def __init__(self, store: Store, data: bytes, placement: Placement = WHOLE) -> None:
        self.store = store
        demand_file(store)
        self.manifest = manifest.loads(data, naming.MANIFEST)
        self.placement = placement
        self.files = placement.files(self.manifest)
        self.names = {file.name for file in self.files}
        self._data = data

    def refuse_others(self) -> None:
        """Refuses a place that holds anything but this data set."""
        there, ours = self._manifest_there(), self.manifest.digest
        if there is not None and there != self._data and (digest := _digest(there)) != ours:
            raise UsageError(
                f"{self.store.where()} holds another data set (manifest {digest[:16]}, expected "
                f"{ours[:16]}). Remove it, or choose another place."
            )
        shards = [name for name in self.store.names("") if naming.looks_like_shard(name)]
        beside = [f"{folder}/{n}" for folder in naming.BESIDE for n in self.store.names(folder)]
        if odd := sorted({*shards, *beside} - self.names):
            raise UsageError(
                f"{self.store.where()} holds {', '.join(odd[:3])}, which readers would take for "
                f"shards and which do not belong to {self.placement}. Remove them, or choose "
                "another place."
            )

    def manifest_problem(self) -> Problem | None:
        """Returns what is wrong with the manifest there."""
        there = self._manifest_there()
        if there is None:
            missing = f"{naming.MANIFEST}: missing: the replica is not finished"
            return Problem(missing, is_missing=True)
        if there != self._data:
            return Problem(f"{naming.MANIFEST}: differs from the source's")
        return None

    def take_over(self, parent: Store, lacking: Iterable[File]) -> None:
        """Takes what a replica of another set beside this one has of what is lacking.

        Nothing of it is proven by this: whoever calls looks again.
        """
        demand_file(parent)
        if parent.size(naming.MANIFEST) is None:
            raise UsageError(
                f"--from-parent: {parent.where()} holds no {naming.MANIFEST}, so it is no replica. "
                "Without --from-parent, all files are moved."
            )
        there = Dataset.at(parent).manifest
        known = {(file.name, file.sha256) for file in there.files_of(there.splits)}
        files = [file for file in lacking if (file.name, file.sha256) in known]
        sizes = parent.sizes(file.name for file in files)
        whole = [file for file in files if sizes.get(file.name) == file.num_bytes]
        self.store.take_over(parent, whole)

    def commit(self) -> None:
        """Publishes the manifest; the caller has proven every other file."""
        self.store.write(naming.MANIFEST, self._data)

    def _manifest_there(self) -> bytes | None:
        there = self.store.size(naming.MANIFEST) is not None
        return self.store.read(naming.MANIFEST) if there else None


def _digest(data: bytes) -> str:
    """Returns the digest that a manifest names; "damaged" where it names none."""
    try:
        return str(canonical.loads(data)["digest"])
    except (ValueError, LookupError, TypeError):
        return "damaged"
