"""The columns of a dataset in the one that `amend` makes of it.

Files of shards that stay are linked. In a shard that changed, a row goes with its record, by key
and image. Rows of other records are missing: a column that lacks some is left unfinished, and the
writer computes only these.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator, Mapping
from functools import partial

from imagenet_prep.core.canonical import Json
from imagenet_prep.core.errors import DataDamagedError
from imagenet_prep.dataset import column, samples
from imagenet_prep.dataset.column import Column, ColumnFile
from imagenet_prep.dataset.manifest import Shard, Split
from imagenet_prep.storage import tables
from imagenet_prep.storage.fetch import as_file, hashed
from imagenet_prep.storage.new_file import new_file
from imagenet_prep.storage.opened import Dataset
from imagenet_prep.storage.os_errors import removed_on_failure, storage_errors
from imagenet_prep.storage.store import Readable, Store

_FIRST_KEYS = 10


class Carrier:
    """Leaves one column of the parent in the store of the amended dataset.

    Attributes:
      missing: the keys of the records whose rows are to be computed.
    """

    def __init__(self, parent: Dataset, store: Store, made: Column) -> None:
        self._parent, self._store, self._made = parent, store, made
        self._linked = self._rows = 0
        self.missing: list[str] = []

    def carry(self, splits: Mapping[str, Split]) -> Json:
        """Carries the column to the records of these splits; returns what became of it."""
        made, complete, receipts = self._made, self._made.begun(), list[ColumnFile]()
        for split in made.splits:
            rows = self._of_split(split, splits[split])
            if any(each.missing for each in rows):
                receipts += rows
            else:
                complete = complete.with_files(split, rows)
        for each in receipts:
            name = column.receipt_name(made.name, each.shard)
            self._store.write(name, column.dumps_receipt(each))
        if receipts:
            self._store.write(column.begun_name(made.name), made.begun().dumps())
        if complete.splits:
            self._store.write(column.record_name(made.name), complete.dumps())
        return {
            "linked_files": self._linked,
            "copied_rows": self._rows,
            "missing_rows": len(self.missing),
            "first_missing": self.missing[:_FIRST_KEYS],
        }

    def _of_split(self, split: str, amended: Split) -> list[ColumnFile]:
        there = self._parent.manifest.splits[split]
        files = self._made.splits[split]
        staying = [rows for rows, new in zip(files, amended.shards, strict=True) if rows.is_of(new)]
        self._store.take_over(self._parent.store, map(self._made.file, staying))
        self._linked += len(staying)
        return [
            rows if rows.is_of(new) else self._of_shard(rows, old, new)
            for rows, old, new in zip(files, there.shards, amended.shards, strict=True)
        ]

    def _of_shard(self, rows: ColumnFile, old: Shard, new: Shard) -> ColumnFile:
        """Writes the rows of a shard that changed, with zeros for the missing ones."""
        made, store, digest = self._made, self._store, hashlib.sha256()
        before, after = self._records(self._parent.store, old), self._records(store, new)
        stay = {*before} & {*after}
        missing = [number for number, record in enumerate(after) if record not in stay]
        there = zip(before, self._read(rows), strict=True)
        # Records that stay keep their order.
        kept = (row for record, row in there if record in stay)
        temporary = store.temporary()
        with removed_on_failure(temporary), storage_errors("write", temporary):
            with new_file(temporary) as file:
                digest.update(made.header(len(after)))
                file.write(made.header(len(after)))
                for record in after:
                    row = next(kept) if record in stay else bytes(made.row_bytes)
                    digest.update(row)
                    file.write(row)
                # The parent's file is only verified at its end.
                deque(kept, maxlen=0)
            name, sha256 = column.file_name(made.name, new.name), digest.hexdigest()
            store.publish(temporary, name, sha256)
        self._rows += len(after) - len(missing)
        self.missing += [after[number][1] for number in missing]
        num_bytes, table = made.num_bytes(len(after)), new.samples_sha256
        return ColumnFile(new.name, len(after), num_bytes, sha256, table, tuple(missing))

    def _records(self, store: Readable, shard: Shard) -> list[tuple[int, str, bytes]]:
        """Returns what a row of each record depends on: a class if it does, a key, an image."""
        of_class = self._made.made_from == column.OF_CLASS
        heads = tables.each(partial(samples.heads, images=True), store, [shard])
        return [(index if of_class else 0, key, image) for index, key, image in next(heads)]

    def _read(self, rows: ColumnFile) -> Iterator[bytes]:
        """Yields the rows of a file of the parent, which is verified at its end."""
        made, digest = self._made, hashlib.sha256()
        name = made.file(rows).name
        with self._parent.store.opened(name) as opened:
            file = as_file(hashed(opened, [digest]))
            file.read(len(made.header(rows.rows)))
            for _ in range(rows.rows):
                yield file.read(made.row_bytes)
            file.read()
        if digest.hexdigest() != rows.sha256:
            raise DataDamagedError(
                f"{self._parent.store.where(name)}: sha256 {digest.hexdigest()}, "
                f"{column.record_name(made.name)} says {rows.sha256}. Get the file again, or "
                "remove the folder of the column and make it again."
            )
