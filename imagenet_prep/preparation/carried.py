"""Copies the columns of a dataset to the dataset that `amend` makes from it.

The column files of unchanged shards are linked. For a changed shard, the rows of records with the
same key and image are copied. The rows of all other records are missing. A column with missing rows
is left unfinished, and the script that writes it then computes only the missing rows.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import deque
from collections.abc import Iterator, Mapping
from functools import partial

from imagenet_prep.core import canonical
from imagenet_prep.core.canonical import Json
from imagenet_prep.core.errors import DataDamagedError
from imagenet_prep.dataset import column, samples
from imagenet_prep.dataset.column import Column, ColumnFile
from imagenet_prep.dataset.manifest import Shard, Split
from imagenet_prep.storage import columns, dataset_store
from imagenet_prep.storage.dataset_store import Dataset
from imagenet_prep.storage.local_file import removed_on_failure, storage_errors
from imagenet_prep.storage.new_file import new_file
from imagenet_prep.storage.remote import as_file, hashed
from imagenet_prep.storage.store import Readable, Store

_FIRST_KEYS = 10


class Carrier:
    """Copies one column of the parent to the store of the amended dataset."""

    def __init__(self, parent: Dataset, store: Store, parent_column: Column) -> None:
        self._parent = parent
        self._store = store
        self._column = parent_column
        self._linked = 0
        self._rows = 0
        self._missing: list[str] = []

    def carry(self, splits: Mapping[str, Split]) -> Json:
        """Links or copies the column files of these splits; returns counts of files and rows."""
        name = self._column.name
        complete = self._column.begun()
        unfinished: list[ColumnFile] = []
        for split in self._column.splits:
            files = self._of_split(split, splits[split])
            if any(file.missing for file in files):
                unfinished += files
            else:
                complete = complete.with_files(split, files)
        for file in unfinished:
            self._store.write(column.receipt_name(name, file.shard), canonical.dumps(file))
        if unfinished:
            self._store.write(column.begun_name(name), self._column.begun().dumps())
        if complete.splits:
            self._store.write(column.record_name(name), complete.dumps())
        return {
            "linked_files": self._linked,
            "copied_rows": self._rows,
            "missing_rows": len(self._missing),
            "first_missing": self._missing[:_FIRST_KEYS],
        }

    def _of_split(self, split: str, amended: Split) -> list[ColumnFile]:
        old = self._parent.manifest.splits[split].shards
        files = list(zip(self._column.splits[split], old, amended.shards, strict=True))
        staying = [self._column.file(rows) for rows, _, new in files if rows.is_of(new)]
        self._store.adopt_files(self._parent.store, staying)
        self._linked += len(staying)
        return [
            rows if rows.is_of(new) else self._of_shard(rows, old, new) for rows, old, new in files
        ]

    def _of_shard(self, rows: ColumnFile, old: Shard, new: Shard) -> ColumnFile:
        """Writes the column file of a changed shard; missing rows are zeros."""
        parent_column = self._column
        store = self._store
        digest = hashlib.sha256()
        before = self._records(self._parent.store, old)
        after = self._records(store, new)
        stay = {*before} & {*after}
        missing = [number for number, record in enumerate(after) if record not in stay]
        # The common records have the same order in both shards.
        old_rows = zip(before, self._read(rows), strict=True)
        kept = (row for record, row in old_rows if record in stay)
        temporary = store.temporary()
        header = parent_column.header(len(after))
        with removed_on_failure(temporary), storage_errors("write", temporary):
            with new_file(temporary) as file:
                zeros = bytes(parent_column.row_bytes)
                written = (next(kept) if record in stay else zeros for record in after)
                for data in itertools.chain([header], written):
                    digest.update(data)
                    file.write(data)
                # Read the rest: the parent's file is verified when its end is reached.
                deque(kept, maxlen=0)
            name = column.file_name(parent_column.name, new.name)
            sha256 = digest.hexdigest()
            store.publish(temporary, name, sha256)
        self._rows += len(after) - len(missing)
        self._missing += [after[number][1] for number in missing]
        num_bytes = parent_column.num_bytes(len(after))
        table = new.samples_sha256
        return ColumnFile(new.name, len(after), num_bytes, sha256, table, tuple(missing))

    def _records(self, store: Readable, shard: Shard) -> list[tuple[int, str, bytes]]:
        """Returns (class, key, image) of each record; class is 0 if the column ignores classes."""
        of_class = self._column.made_from == column.OF_CLASS
        heads = dataset_store.each_table(partial(samples.heads, images=True), store, [shard])
        return [(index if of_class else 0, key, image) for index, key, image in next(heads)]

    def _read(self, rows: ColumnFile) -> Iterator[bytes]:
        """Yields the rows of a column file of the parent; verifies the file after the last row."""
        parent_column = self._column
        digest = hashlib.sha256()
        store = self._parent.store
        name = parent_column.file(rows).name
        with store.open_file(name) as opened:
            file = as_file(hashed(opened, [digest]))
            head = file.read(len(parent_column.header(rows.rows)))
            for _ in range(rows.rows):
                yield file.read(parent_column.row_bytes)
            file.read()
        wrong = columns.misfit(parent_column, rows, head, digest.hexdigest(), store.where(name))
        if wrong:
            raise DataDamagedError(f"{wrong}.")
