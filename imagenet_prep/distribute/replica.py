"""A replica in a folder or bucket: its files, and checks that protect other data there.

`Target` is the base class for both places.

`Replica` is a replica in a folder. It finds missing files, receives files, and writes the manifest
last. A file gets its final name only after its sha256 was compared with the manifest. Verified
files are recorded in `.work/replica-<digest>.jsonl`. A later run reads only new and changed files.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from imagenet_prep.core import small_files, strict_json
from imagenet_prep.core.errors import ManifestError, StoreError, UsageError
from imagenet_prep.dataset import column, manifest, schema
from imagenet_prep.dataset.column import WHOLE, Column, Placement, load
from imagenet_prep.dataset.manifest import DatasetFile, FileProblem
from imagenet_prep.storage import columns as of_store
from imagenet_prep.storage.dataset_store import (
    Dataset,
    refuse_unrelated,
    require_file,
    stray_files,
)
from imagenet_prep.storage.fetch import IncomingFile, incoming
from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.storage.ledger import Ledger
from imagenet_prep.storage.local_file import storage_errors

if TYPE_CHECKING:
    from imagenet_prep.storage.store import Store


# The manifest of an older version, until all its files are replaced or removed.
_OLDER = f"{schema.WORK}/older.json"
# Begins the name of the folder of `duplicates` with hashes of all images.
_HASHES = "hashes-"


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
        *,
        replaces: bool = False,
    ) -> None:
        """`replaces`: an older version of the dataset, which the target has, is replaced."""
        self.store = store
        self._replaces = replaces
        require_file(store)
        self.manifest = manifest.loads(data, schema.MANIFEST)
        self.placement = placement
        columns = columns or {}
        self.columns = [column.loads(columns[name], name, name) for name in columns]
        self.files = placement.files(self.manifest, self.columns)
        self.names = {file.name for file in self.files}
        self._data = data
        # The content of the files that are published last, in this order.
        self._last = {column.record_name(name): columns[name] for name in columns}
        self._last[schema.MANIFEST] = data

    def refuse_others(self) -> None:
        """Raises UsageError if the target has a different dataset or column, or surplus shards."""
        theirs = self._read(schema.MANIFEST)
        ours = self.manifest.digest
        if theirs is None:
            refuse_unrelated(self.store)
        # The same bytes need not be parsed. Different bytes may still be the same dataset.
        digest = ours if theirs is None or theirs == self._data else _digest(theirs)
        is_older = digest in {step.parent for step in self.manifest.settings.amendments}
        if is_older and not self._replaces:
            raise UsageError(
                f"{self.store.where()} has an older version of this dataset (manifest "
                f"{digest[:16]}). To replace it, use --replace; or choose a different target."
            )
        if digest == _DAMAGED_MANIFEST:
            raise UsageError(
                f"{self.store.where(schema.MANIFEST)} is damaged, so the dataset there is unknown. "
                "If it is a replica of this dataset, remove this file and run the same command "
                "again: only damaged and missing files are copied. Otherwise, choose a different "
                "target."
            )
        if theirs is not None and ours in _parents(theirs):
            raise UsageError(
                f"{self.store.where()} has a newer version of this dataset (manifest "
                f"{digest[:16]}), which --replace does not replace by an older one: images may "
                "have been removed on request. To go back, remove it, or choose a different target."
            )
        if digest != ours and not is_older:
            raise UsageError(
                f"{self.store.where()} has a different dataset (manifest {digest[:16]}, expected "
                f"{ours[:16]}). Remove it, or choose a different target."
            )
        for entry in () if is_older else self.columns:
            self._refuse_other_column(entry)
        odd = sorted(stray_files(self.store, [*filter(schema.parse_shard_name, self.names)]))
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
            f"{self.store.where(column.folder_name(ours.name))}: {why}. Exclude this column with "
            "--columns, or remove it where it is: imagenet-prep remove-column "
            f"{shlex.quote(self.store.where())} {ours.name}"
        )

    def manifest_problem(self) -> FileProblem | None:
        """Returns the problem of the replica's manifest, or None."""
        return self._problem(schema.MANIFEST)

    def _problem(self, name: str) -> FileProblem | None:
        existing = self._read(name)
        if existing is None:
            item = "replica" if name == schema.MANIFEST else "column"
            return FileProblem(f"{name}: missing: the {item} is not finished", is_missing=True)
        differs = existing != self._last[name]
        return FileProblem(f"{name}: differs from the source's") if differs else None

    def unfinished(self) -> list[FileProblem]:
        """Returns the problems of the manifest and of each column.json."""
        column_problems = [self._problem(name) for name in self._last if name != schema.MANIFEST]
        problems = [problem for problem in (self.manifest_problem(), *column_problems) if problem]
        if self.store.size(_OLDER) is not None:
            text = f"{_OLDER}: files of an older version are not removed yet"
            problems.append(FileProblem(text, is_missing=True))
        return problems

    def withdraw(self, lacking: Iterable[DatasetFile]) -> None:
        """Removes the manifest and each column.json that would list missing files."""
        folders = {file.name.rpartition("/")[0] for file in lacking}
        column_names = {column.folder_name(entry.name): entry.name for entry in self.columns}
        torn = [column_names[folder] for folder in sorted(folders & column_names.keys())]
        self.store.remove(*map(column.record_name, torn))
        if folders - column_names.keys() or self.manifest_problem():
            self._withdraw()

    def _withdraw(self) -> None:
        theirs = self._read(schema.MANIFEST)
        if theirs is not None and self._replaces and _digest(theirs) != self.manifest.digest:
            self.store.write(_OLDER, theirs)
        self.store.remove(schema.MANIFEST)

    def _remove_older(self) -> None:
        """Removes what is left of the older version that this replica has replaced."""
        older = self._read(_OLDER)
        if older is None:
            return
        old = manifest.loads(older, self.store.where(_OLDER))
        names = {file.name for file in old.files_of(old.splits)}
        names.add(schema.SIGNATURE)
        folders = [column.folder_name(name) for name in of_store.names(self.store)]
        for folder in folders:
            names.update(f"{folder}/{file}" for file in self.store.names(folder))
        self.store.remove(*sorted(names - self.names - self._last.keys()))
        for folder in folders:
            if not self.store.list_folder(folder):
                self.store.remove_tree(folder)
        for name in self.store.list_folder(schema.WORK):
            if name.startswith(_HASHES):
                self.store.remove_tree(f"{schema.WORK}/{name}")
        self.store.remove(_OLDER)

    def adopt_files(self, parent: Store, lacking: Iterable[DatasetFile]) -> None:
        """Links or copies missing files from another replica, without verifying them."""
        require_file(parent)
        if parent.size(schema.MANIFEST) is None:
            raise UsageError(
                f"--from-parent: {parent.where()} is not a replica: it has no {schema.MANIFEST}. "
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
        self._remove_older()

    def _read(self, name: str) -> bytes | None:
        return self.store.read(name) if self.store.size(name) is not None else None


_DAMAGED_MANIFEST = "damaged"


def _digest(data: bytes) -> str:
    try:
        return str(strict_json.loads(data)["digest"])
    except (ValueError, LookupError, TypeError):
        return _DAMAGED_MANIFEST


def _parents(data: bytes) -> set[str]:
    """Returns the digests of the older versions that a manifest names; none if it is damaged."""
    with contextlib.suppress(ManifestError):
        steps = manifest.loads(data, schema.MANIFEST).settings.amendments
        return {step.parent for step in steps}
    return set()


_INCOMING = f"{schema.WORK}/incoming"
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
        *,
        replaces: bool = False,
    ) -> None:
        super().__init__(LocalStore(root), data, placement, columns, replaces=replaces)
        self._ledger = Ledger(
            self.store,
            schema.replica_ledger(self.manifest.digest),
            len(self.files),
            trusts_owner=True,
        )
        self._sha256 = {file.name: file.sha256 for file in self.files}
        # `problem` records verified files only while this process holds the lock.
        self._locked = False

    def refuse_others(self) -> None:
        """Also raises UsageError for an unfinished run, or a part other than the requested one."""
        if self.store.size(schema.MANIFEST) is None and self.store.sizes(schema.BEGUN):
            raise UsageError(
                f"{self.store.where()} has an unfinished run of prepare, resize or adopt. "
                "Finish it, or choose a different folder."
            )
        # Ignore a damaged placement.json, which will be written again.
        with contextlib.suppress(ManifestError):
            theirs = self._read(schema.MANIFEST)
            # An older version has a placement.json with its own digest.
            held = manifest.loads(theirs, schema.MANIFEST) if theirs else self.manifest
            part = load(self.store.root, held)
            if part.nodes > 1 and part != self.placement:
                raise UsageError(
                    f"{self.store.where()} has {part}, expected {self.placement}. Use the flags of "
                    "this part, remove it, or choose a different folder."
                )
        super().refuse_others()

    def problem(self, file: DatasetFile, *, prove: bool) -> FileProblem | None:
        """Returns the problem of a file, or None; if `prove`, reads even files verified before."""
        path = self.store.path(file.name)
        size = self.store.size(file.name)
        if size is None:
            return FileProblem(f"{file.name}: missing", is_missing=True)
        if size != file.num_bytes:
            return FileProblem(f"{file.name}: {size:,} bytes, expected {file.num_bytes:,}")
        with storage_errors("read", path), open(small_files.open_to_read(path), "rb") as opened:
            sha256 = self._ledger.sha256(file.name, opened, again=prove, noted=self._locked)
        if sha256 != file.sha256:
            return FileProblem(f"{file.name}: sha256 {sha256}, expected {file.sha256}")
        return None

    def arriving(self) -> set[str]:
        """Returns the names of partially received files in this folder."""
        names = set(self.store.names(_INCOMING))
        for folder in (*schema.BESIDE, *(column.folder_name(entry.name) for entry in self.columns)):
            names |= {f"{folder}/{name}" for name in self.store.names(f"{_INCOMING}/{folder}")}
        return names

    def reload(self) -> list[str]:
        """Reads new records of the ledger; returns the names of the files that are verified."""
        return [name for name in self._ledger.reload() if self.is_proven(name)]

    def is_proven(self, name: str) -> bool:
        """Returns whether a file was verified in this folder and has not changed since."""
        note = self._ledger.find(name) or {}
        return name in self._sha256 and note.get("sha256") == self._sha256[name]

    def manifest_problem(self) -> FileProblem | None:
        """Returns the problem of the manifest or of placement.json, or None."""
        problem = super().manifest_problem()
        if problem is not None:
            return problem
        try:
            part = load(self.store.root, self.manifest)
        except ManifestError as error:
            return FileProblem(str(error))
        if part != self.placement:
            return FileProblem(f"{schema.PLACEMENT}: {part}, expected {self.placement}")
        return None

    def require_space(self, lacking: list[DatasetFile]) -> None:
        """Raises StoreError if the missing files do not fit on the disk."""
        # Count damaged files, too: each stays until its replacement is verified.
        needed = sum(file.num_bytes for file in lacking) + SPARE_BYTES
        free = self.store.free_bytes()
        if lacking and free < needed:
            raise StoreError(
                f"{self.store.where()}: {needed:,} bytes are needed, with a margin of "
                f"{SPARE_BYTES:,}, and {free:,} are free. Nothing "
                f"was copied. Free {needed - free:,} bytes there."
            )

    def _withdraw(self) -> None:
        # Remove the manifest first: without placement.json, the folder would seem complete.
        super()._withdraw()
        self.store.remove(schema.PLACEMENT)
        if self.placement != WHOLE:
            self.store.write(schema.PLACEMENT, self.placement.dumps(self.manifest.digest))

    def clear(self) -> None:
        """Removes partial files of a killed run; the caller must hold the lock."""
        self.store.remove_tree(_INCOMING)

    def begun(self, lacking: Iterable[DatasetFile]) -> dict[str, int]:
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
        self, file: DatasetFile, start: int = 0, *, kept: tuple[type[BaseException], ...] = ()
    ) -> Iterator[IncomingFile]:
        """Yields a file to append bytes to; on exit, verifies, syncs, renames and records it."""
        names = incoming_name(file.name), file.name
        with incoming(self.store, file, *names, _DAMAGED, start=start, kept=kept) as arriving:
            yield arriving
        self._ledger.add({file.name: arriving.status}, sha256=file.sha256)

    def put(self, file: DatasetFile, chunks: Callable[[], Iterable[bytes]]) -> None:
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
