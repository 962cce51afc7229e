"""Opens the columns of a dataset, see `dataset/column`, and reports problems of their files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from imagenet_prep.core.errors import DataDamagedError, IncompleteError, UsageError, some
from imagenet_prep.core.terminal import counted, printable, say
from imagenet_prep.dataset import column, naming
from imagenet_prep.dataset.column import Column, ColumnFile
from imagenet_prep.dataset.manifest import Shard
from imagenet_prep.storage.fetch import hashed
from imagenet_prep.storage.opened import Dataset, lost
from imagenet_prep.storage.store import Readable

_AGAIN = "Copy the file again, or remove it and run the script that writes the column again"


def names(store: Readable) -> list[str]:
    """Returns the sorted names of all columns, also incomplete ones; empty on a web server."""
    return store.list_folder(naming.COLUMNS)


def find(store: Readable, name: str, *, begun: bool = False) -> Column | None:
    """Returns the column described by column.json or begun.json, or None if it does not exist.

    Raises DataDamagedError if the file is damaged or a link, or if no column can have this name.
    """
    try:
        record = (column.begun_name if begun else column.record_name)(name)
    except ValueError as error:
        where = store.where(f"{naming.COLUMNS}/{name}")
        raise DataDamagedError(f"{where}: {error}. Remove it.") from None
    refuse_links(store, record)
    if store.size(record) is None:
        return None
    return column.loads(store.read(record), store.where(record), name)


def opened(dataset: Dataset, name: str, split: str = "") -> Column:
    """Returns a column; if `split` is given, one with rows for its records.

    Raises UsageError if there is none, IncompleteError if it is not complete, and DataDamagedError.
    """
    store = dataset.store
    try:
        where = store.where(column.folder_name(name))
    except ValueError as error:
        raise UsageError(f"{name!r}: {error}") from None
    made = find(store, name)
    lacking = made.of(split, dataset.shards(split))[1] if made and split else []
    if made and not lacking:
        return made
    is_begun = store.size(column.begun_name(name)) is not None
    if is_begun or (made is None and name in names(store)):
        raise IncompleteError(
            f"{where}: the column is not complete yet. Run the script that writes it again: it "
            "computes only the rows that are missing."
        )
    if made:
        raise UsageError(
            f"{where}: the column has no rows for the records of {some(lacking)}: it was made of "
            "another split or dataset, or this one was amended since. Make the column again."
        )
    there = some(names(store)) or "none"
    raise UsageError(f"{where}: there is no such column. Columns of this dataset: {there}")


def complete(dataset: Dataset, wanted: Iterable[str] = ()) -> tuple[list[Column], list[str]]:
    """Returns the columns of a complete dataset, and the names of those that are not complete.

    Of the latter, only those with complete splits are among the former, with these splits.
    """
    store, left = dataset.store, list[str]()
    found = [opened(dataset, name) for name in wanted]
    for name in () if found else names(store):
        made = find(store, name)
        found += [made] if made else []
        if made is None or store.size(column.begun_name(name)) is not None:
            left.append(name)
    for made in found:
        if why := foreign(dataset, made):
            raise DataDamagedError(f"{store.where(column.record_name(made.name))}: {why}")
    return found, left


def foreign(dataset: Dataset, made: Column) -> str | None:
    """Returns why a column is not of the records of this dataset; None if it is."""
    for split, files in made.splits.items():
        there = dataset.manifest.splits.get(split)
        shards = there.shards if there else []
        lacking = made.of(split, shards)[1]
        if lacking or len(files) != len(shards):
            return (
                f"was made of other records than those of {some(lacking) or split}. Make the "
                "column again, or remove its folder."
            )
    return None


def refuse_links(store: Readable, name: str) -> None:
    """Raises DataDamagedError if a file of a column, or a folder above it, is a link."""
    folder, parts = store.as_folder, name.split("/")
    for depth in range(1, len(parts) + 1):
        path = folder.path("/".join(parts[:depth])) if folder else None
        if path and path.is_symlink():
            raise DataDamagedError(
                f"{path}: is a link, and columns have none. It was not opened. Remove it, and put "
                "the file or folder itself there."
            )


def receipt(store: Readable, name: str, shard: str) -> ColumnFile | None:
    """Returns the receipt for a shard's file, or None if there is none."""
    path = column.receipt_name(name, shard)
    refuse_links(store, path)
    if store.size(path) is None:
        return None
    found = column.loads_receipt(store.read(path), store.where(path))
    if found.shard != shard:
        raise DataDamagedError(f"{store.where(path)}: is of another shard. Remove it.")
    return found


def receipts(store: Readable, name: str, shards: Iterable[Shard]) -> dict[str, str]:
    """Returns the shards whose files have a receipt, by its path."""
    listed = {*store.list_folder(column.folder_name(name))}
    return {
        column.receipt_name(name, shard.name): shard.name
        for shard in shards
        if f"{shard.name}.json" in listed
    }


def misfit(there: Column, rows: ColumnFile, head: bytes, sha256: str, where: str) -> str | None:
    """Returns why a file is not the rows of a shard, by its head and sha256; None if it is."""
    if head[: len(there.header(rows.rows))] != there.header(rows.rows):
        return f"{where}: is not a .npy file of {rows.rows:,} rows of {there.name}. {_AGAIN}"
    if sha256 != rows.sha256:
        return f"{where}: sha256 {sha256}, column.json says {rows.sha256}. {_AGAIN}"
    return None


class Survey:
    """The columns of a dataset, compared with its manifest by names and sizes.

    Attributes:
      problems: one sentence per file or column that is damaged, foreign or unexpected.
      complete: names of the complete columns.
      incomplete: unfinished columns, with the number of their finished files.
      files: files that must still be read to be verified.
    """

    def __init__(self, dataset: Dataset) -> None:
        self._store, self._dataset = dataset.store, dataset
        self.problems: list[str] = []
        self.incomplete: dict[str, int] = {}
        self.files: list[tuple[Column, ColumnFile]] = []
        self.complete: list[str] = []
        files = self._store.names(naming.COLUMNS)
        self.problems += [f"{naming.COLUMNS}/{name}: is no folder of a column" for name in files]
        for name in sorted({*names(self._store)}.difference(files)):
            try:
                self._look_at(name)
            except DataDamagedError as error:
                self.problems.append(str(error))

    def _look_at(self, name: str) -> None:
        made, begun = find(self._store, name), find(self._store, name, begun=True)
        known = {column.record_name(name), column.begun_name(name)}
        if made is not None:
            self._look_at_files(made)
            known |= {file.name for file in made.files()}
        folder = column.folder_name(name)
        listed = {f"{folder}/{each}" for each in self._store.list_folder(folder)}
        splits = self._dataset.manifest.splits.values()
        shards = [shard for split in splits for shard in split.shards]
        unfinished = receipts(self._store, name, shards)
        if made is None or begun is not None or unfinished:
            found = [receipt(self._store, name, shard) for shard in unfinished.values()]
            self.incomplete[name] = sum(rows is not None and not rows.missing for rows in found)
            known |= unfinished.keys() | {column.file_name(name, s.name) for s in shards}
        else:
            self.complete.append(name)
        self.problems += [
            f"{each}: not in column.json"
            for each in sorted(listed - known)
            if not each.endswith(".partial")
        ]

    def _look_at_files(self, made: Column) -> None:
        if why := foreign(self._dataset, made):
            self.problems.append(f"{column.folder_name(made.name)}: {why}")
        for split in made.splits.keys() & self._dataset.manifest.splits.keys():
            found, _ = made.of(split, self._dataset.shards(split))
            named = {made.file(rows): rows for rows in found}
            for file in named:
                refuse_links(self._store, file.name)
            wrong = lost(self._store, named)
            self.problems += [f"{each}: missing, or of another size. {_AGAIN}" for each in wrong]
            self.files += [(made, rows) for file, rows in named.items() if file.name not in wrong]

    def read(self, each: tuple[Column, ColumnFile]) -> str | None:
        """Reads one of the `files` completely; returns its problem, or None."""
        there, rows = each
        digest, head, name = hashlib.sha256(), b"", there.file(rows).name
        with self._store.opened(name) as file:
            for chunk in hashed(file, [digest]):
                head = head or chunk
        return misfit(there, rows, head, digest.hexdigest(), name)


def differences(a: Dataset, b: Dataset) -> dict[str, str]:
    """Returns how columns of two datasets differ, by name; rows of equal records are compared.

    A web server lists no columns, so there only those of the other dataset are looked for.
    """
    found = {}
    for name in sorted({*names(a.store), *names(b.store)}):
        one, other = (find(side.store, name) for side in (a, b))
        if one is None or other is None:
            if one or other:
                found[name] = f"only in {'A' if one else 'B'}"
        elif differing := one.differing(other):
            found[name] = f"made with another {', '.join(differing)}"
        elif one.splits != other.splits:
            mine, theirs = (
                {rows.samples_sha256: rows.sha256 for of in made.splits.values() for rows in of}
                for made in (one, other)
            )
            rows = sum(mine[table] != theirs[table] for table in mine.keys() & theirs.keys())
            only = [counted(len(mine.keys() - theirs), "file"), len(theirs.keys() - mine)]
            found[name] = (
                f"{counted(rows, 'file')} of equal records with other rows; {only[0]} of A and "
                f"{only[1]} of B of records that differ"
            )
    return found


def row(dataset: Dataset, made: Column, split: str, shard: Shard, record: int) -> bytes | None:
    """Returns the bytes of a record's row, not verified; None if the column lacks the shard."""
    files, _ = made.of(split, [shard])
    if not files:
        return None
    file = made.file(files[0])
    refuse_links(dataset.store, file.name)
    if dataset.store.size(file.name) != file.num_bytes:
        raise DataDamagedError(f"{dataset.store.where(file.name)}: missing, or of another size")
    start = len(made.header(files[0].rows)) + record * made.row_bytes
    return dataset.store.read(file.name, start, made.row_bytes)


def say_left_behind(store: Readable) -> None:
    """Tells the user that the columns of a dataset do not come along."""
    if left := names(store):
        say(
            f"{store.where()}: columns are left behind, since they belong to these records: "
            f"{printable(some(left))}. Make them again for the new dataset."
        )
