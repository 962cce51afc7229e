"""A replica in a folder: finds missing files, receives files, and writes the manifest last.

A file gets its final name only after its sha256 was compared with the manifest. Verified files are
recorded in `.work/replica-<digest>.jsonl`. A later run reads only new and changed files.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from imagenet_prep.core import regular_file
from imagenet_prep.core.errors import ManifestError, StoreError, UsageError
from imagenet_prep.dataset import column, naming
from imagenet_prep.dataset.manifest import File, Problem
from imagenet_prep.dataset.placement import WHOLE, Placement, load
from imagenet_prep.distribute.target import Target
from imagenet_prep.storage.fetch import IncomingFile, incoming
from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.storage.ledger import Ledger
from imagenet_prep.storage.local_file import storage_errors

_INCOMING = f"{naming.WORK}/incoming"
# These files exist during a run of prepare, resize or adopt, and after it was killed.
_BEGUN = (f"{naming.WORK}/run.json", f"{naming.WORK}/adopt.json")
# Disk space for journals, folders and partly used blocks, in addition to the files.
SPARE_BYTES = 16 << 20
_DAMAGED = "It was damaged at the source or in transit. Run verify at the source."


class Replica(Target):
    """A replica in a folder; only one thread or process may write each file at a time."""

    store: LocalStore

    def __init__(
        self,
        root: Path,
        data: bytes,
        placement: Placement = WHOLE,
        columns: Mapping[str, bytes] | None = None,
    ) -> None:
        super().__init__(LocalStore(root), data, placement, columns)
        self._ledger = Ledger(
            self.store,
            f"{naming.WORK}/replica-{self.manifest.digest[:16]}.jsonl",
            len(self.files),
            trusts_owner=True,
        )
        self._sha256 = {file.name: file.sha256 for file in self.files}
        # `problem` records verified files only while this process holds the lock.
        self._locked = False

    def refuse_others(self) -> None:
        """Also raises UsageError for an unfinished run, or a part other than the requested one."""
        if self.store.size(naming.MANIFEST) is None and self.store.sizes(_BEGUN):
            raise UsageError(
                f"{self.store.where()} has an unfinished run of prepare, resize or adopt. "
                "Finish it, or choose a different folder."
            )
        # Ignore a damaged placement.json, which will be written again.
        with contextlib.suppress(ManifestError):
            part = load(self.store.root, self.manifest)
            if part.nodes > 1 and part != self.placement:
                problem = f"{self.store.where()} has {part}, expected {self.placement}"
                raise UsageError(f"{problem}. Remove it, or choose a different folder.")
        super().refuse_others()

    def problem(self, file: File, *, prove: bool) -> Problem | None:
        """Returns the problem of a file, or None; if `prove`, reads even files verified before."""
        path = self.store.path(file.name)
        size = self.store.size(file.name)
        if size is None:
            return Problem(f"{file.name}: missing", is_missing=True)
        if size != file.num_bytes:
            return Problem(f"{file.name}: {size:,} bytes, expected {file.num_bytes:,}")
        with storage_errors("read", path), open(regular_file.open_to_read(path), "rb") as opened:
            sha256 = self._ledger.sha256(file.name, opened, again=prove, noted=self._locked)
        if sha256 != file.sha256:
            return Problem(f"{file.name}: sha256 {sha256}, expected {file.sha256}")
        return None

    def arriving(self) -> set[str]:
        """Returns the names of partially received files in this folder."""
        names = set(self.store.names(_INCOMING))
        for folder in (*naming.BESIDE, *(column.folder_name(entry.name) for entry in self.columns)):
            names |= {f"{folder}/{name}" for name in self.store.names(f"{_INCOMING}/{folder}")}
        return names

    def reload(self) -> list[str]:
        """Reads new records of the ledger; returns the names of the files that are verified."""
        return [name for name in self._ledger.reload() if self.is_proven(name)]

    def is_proven(self, name: str) -> bool:
        """Returns whether a file was verified in this folder and has not changed since."""
        note = self._ledger.find(name) or {}
        return name in self._sha256 and note.get("sha256") == self._sha256[name]

    def manifest_problem(self) -> Problem | None:
        """Returns the problem of the manifest or of placement.json, or None."""
        problem = super().manifest_problem()
        if problem is not None:
            return problem
        try:
            part = load(self.store.root, self.manifest)
        except ManifestError as error:
            return Problem(str(error))
        if part != self.placement:
            return Problem(f"{naming.PLACEMENT}: {part}, expected {self.placement}")
        return None

    def check_space(self, lacking: list[File]) -> None:
        """Raises StoreError if the missing files do not fit on the disk."""
        # Count damaged files, too: each stays until its replacement is verified.
        needed = sum(file.num_bytes for file in lacking) + SPARE_BYTES
        free = self.store.free_bytes()
        if lacking and free < needed:
            raise StoreError(
                f"{self.store.where()}: {needed:,} bytes are needed, {free:,} are free. Nothing "
                f"was copied. Free {needed - free:,} bytes there."
            )

    def _withdraw(self) -> None:
        # Remove the manifest first: without placement.json, the folder would seem complete.
        super()._withdraw()
        self.store.remove(naming.PLACEMENT)
        if self.placement != WHOLE:
            self.store.write(naming.PLACEMENT, self.placement.dumps(self.manifest.digest))

    def clear(self) -> None:
        """Removes partial files of a killed run; the caller must hold the lock."""
        self.store.remove_tree(_INCOMING)

    def begun(self, lacking: Iterable[File]) -> dict[str, int]:
        """Removes partial files of a killed run, but keeps those of the files in `lacking`.

        Returns the size of each remaining partial file, by name. The caller must hold the lock.
        """
        sizes = {name: self.store.size(incoming_name(name)) or 0 for name in self.arriving()}
        most = {file.name: file.num_bytes for file in lacking}
        begun = {name: size for name, size in sizes.items() if 0 < size <= most.get(name, -1)}
        self.store.remove(*map(incoming_name, sizes.keys() - begun.keys()))
        return begun

    @contextlib.contextmanager
    def incoming(
        self, file: File, start: int = 0, *, kept: tuple[type[BaseException], ...] = ()
    ) -> Iterator[IncomingFile]:
        """Yields a file to append bytes to; on exit, verifies, syncs, renames and records it."""
        names = incoming_name(file.name), file.name
        with incoming(self.store, file, *names, _DAMAGED, start=start, kept=kept) as arriving:
            yield arriving
        self._ledger.add({file.name: arriving.status}, sha256=file.sha256)

    def put(self, file: File, chunks: Callable[[], Iterable[bytes]]) -> None:
        """Writes a file, and verifies it before it gets its final name."""
        with self.incoming(file) as arriving:
            for chunk in chunks():
                arriving.append(chunk)

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Locks the folder for one writing run, as `LocalStore.lock` does."""
        with self.store.lock():
            self._locked = True
            try:
                yield
            finally:
                self._locked = False


def incoming_name(name: str) -> str:
    """Returns the temporary path of a file that is not verified yet, relative to the replica."""
    return f"{_INCOMING}/{name}"
