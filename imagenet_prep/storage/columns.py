"""Opens the columns of a dataset, and reports problems with their files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from imagenet_prep.core.errors import DataDamagedError, IncompleteError, UsageError, some
from imagenet_prep.core.terminal import counted, printable, say
from imagenet_prep.dataset import column, naming
from imagenet_prep.dataset.column import Column, ColumnFile
from imagenet_prep.dataset.manifest import Shard
from imagenet_prep.storage.fetch import hashed
from imagenet_prep.storage.opened import Dataset, lost
from imagenet_prep.storage.store import Readable

_AGAIN = "Copy the file again, or remove it and rerun the script that writes the column"
_REMEDY = (
    "Repair each column, or remove its folder (if it is a link, only the link) and rerun the "
    "script that writes it."
)


class Problem(str):
    """A problem with a column, for which `remedy` returns specific advice."""

    __slots__ = ()


def remedy(problems: Sequence[str], of_others: str) -> str:
    """Returns the advice for problems; `of_others` is the advice for files outside columns."""
    is_column = {isinstance(problem, Problem) for problem in problems}
    return " ".join([of_others] * (False in is_column) + [_REMEDY] * (True in is_column))


def names(store: Readable) -> list[str]:
    """Returns the sorted names of all columns, even of incomplete ones; empty for a web server."""
    return store.list_folder(naming.COLUMNS)


def find(store: Readable, name: str, *, begun: bool = False) -> Column | None:
    """Returns the column described by column.json or begun.json, or None if it does not exist.

    Raises DataDamagedError if the file is damaged or a link, or if the name is invalid.
    """
    try:
        record = (column.begun_name if begun else column.record_name)(name)
    except ValueError as error:
        where = store.where(f"{naming.COLUMNS}/{name}")
        raise DataDamagedError(f"{where}: {error}. Remove it.") from None
    if store.size(record) is None:
        return None
    return column.loads(store.read(record), store.where(record), name)


def opened(dataset: Dataset, name: str, split: str = "") -> Column:
    """Returns a column; if `split` is given, the column has a row for each record of the split.

    Raises UsageError if there is no such column, IncompleteError if the column is not complete, and
    DataDamagedError if its column.json is damaged.
    """
    store = dataset.store
    try:
        where = store.where(column.folder_name(name))
    except ValueError as error:
        raise UsageError(f"{name!r}: {error}") from None
    stored = find(store, name)
    lacking = stored.of(split, dataset.shards(split))[1] if stored and split else []
    if stored and not lacking:
        return stored
    existing = names(store)
    if store.size(column.begun_name(name)) is not None or (stored is None and name in existing):
        raise IncompleteError(
            f"{where}: the column is not complete yet. Rerun the script that writes it: only the "
            "missing rows are computed."
        )
    if stored:
        raise UsageError(
            f"{where}: the column has no rows for the records of {some(lacking)}: it was made for "
            "a different split or dataset, or before an amendment. Re-create the column."
        )
    raise UsageError(
        f"{where}: there is no such column. Columns of this dataset: {some(existing) or 'none'}"
    )


def complete(dataset: Dataset, chosen: Sequence[str] = ()) -> tuple[list[Column], list[str]]:
    """Returns the `chosen` columns, by default all, and the names of incomplete columns.

    A column with some complete splits is returned with only these splits.
    """
    store = dataset.store
    incomplete: list[str] = []
    columns = [opened(dataset, name) for name in chosen]
    for name in () if chosen else names(store):
        stored = find(store, name)
        columns += filter(None, [stored])
        if stored is None or store.size(column.begun_name(name)) is not None:
            incomplete.append(name)
    for stored in columns:
        if problem := foreign(dataset, stored):
            raise DataDamagedError(f"{store.where(column.record_name(stored.name))}: {problem}")
    return columns, incomplete


def foreign(dataset: Dataset, stored: Column) -> str | None:
    """Returns the problem if a column was made for different records, else None."""
    for split, files in stored.splits.items():
        entry = dataset.manifest.splits.get(split)
        shards = entry.shards if entry else []
        lacking = stored.of(split, shards)[1]
        if lacking or len(files) != len(shards):
            return (
                f"was not made for the records of {some(lacking) or split}. Re-create the column, "
                "or remove its folder."
            )
    return None


def receipt(store: Readable, name: str, shard: str) -> ColumnFile | None:
    """Returns the receipt of a column for one shard, or None if it does not exist."""
    path = column.receipt_name(name, shard)
    if store.size(path) is None:
        return None
    rows = column.loads_receipt(store.read(path), store.where(path))
    if rows.shard != shard:
        raise DataDamagedError(f"{store.where(path)}: belongs to shard {rows.shard}. Remove it.")
    return rows


def receipts(store: Readable, name: str, shards: Iterable[Shard]) -> dict[str, str]:
    """Returns the existing receipts of a column as {path: shard name}."""
    listed = {*store.list_folder(column.folder_name(name))}
    return {
        column.receipt_name(name, shard.name): shard.name
        for shard in shards
        if f"{shard.name}.json" in listed
    }


def misfit(stored: Column, rows: ColumnFile, head: bytes, sha256: str, where: str) -> str | None:
    """Checks the first chunk and the sha256 of a column file; returns the problem, or None."""
    header = stored.header(rows.rows)
    if head[: len(header)] != header:
        return f"{where}: is not a .npy file of {rows.rows:,} rows of {stored.name}. {_AGAIN}"
    if sha256 != rows.sha256:
        return f"{where}: sha256 {sha256}, column.json says {rows.sha256}. {_AGAIN}"
    return None


class Survey:
    """Compares the columns of a dataset with its manifest, by the names and sizes of files.

    `complete` has the complete columns by name. `incomplete` maps each incomplete column to its
    number of finished files. `files` have passed this check, and must still be read.
    """

    def __init__(self, dataset: Dataset) -> None:
        self._store, self._dataset = dataset.store, dataset
        self.complete: dict[str, Column] = {}
        self.incomplete: dict[str, int] = {}
        self.files: list[tuple[Column, ColumnFile]] = []
        self.problems: list[Problem] = []
        try:
            files = self._store.names(naming.COLUMNS)
        except DataDamagedError as error:
            self.problems = [Problem(error)]
            return
        problem = "is not a column folder. Remove it"
        self.problems = [Problem(f"{naming.COLUMNS}/{name}: {problem}") for name in files]
        for name in sorted({*names(self._store)}.difference(files)):
            try:
                self._check(name)
            except DataDamagedError as error:
                self.problems.append(Problem(error))

    def _check(self, name: str) -> None:
        store = self._store
        stored = find(store, name)
        begun = find(store, name, begun=True)
        allowed = {column.record_name(name), column.begun_name(name)}
        if stored is not None:
            self._check_files(stored)
            allowed |= {file.name for file in stored.files()}
            allowed.add(naming.signature_name(column.record_name(name)))
        folder = column.folder_name(name)
        listed = {f"{folder}/{file}" for file in store.list_folder(folder)}
        splits = self._dataset.manifest.splits.values()
        shards = [shard for split in splits for shard in split.shards]
        unfinished = receipts(store, name, shards)
        if stored is None or begun is not None or unfinished:
            done = [receipt(store, name, shard) for shard in unfinished.values()]
            self.incomplete[name] = sum(rows is not None and not rows.missing for rows in done)
            allowed |= unfinished.keys() | {column.file_name(name, shard.name) for shard in shards}
        else:
            self.complete[name] = stored
        strangers = sorted(path for path in listed - allowed if not path.endswith(".partial"))
        self.problems += [Problem(f"{path}: not in column.json. Remove it") for path in strangers]

    def _check_files(self, stored: Column) -> None:
        if problem := foreign(self._dataset, stored):
            self.problems.append(Problem(f"{column.folder_name(stored.name)}: {problem}"))
        for split in stored.splits.keys() & self._dataset.manifest.splits.keys():
            rows_of, _ = stored.of(split, self._dataset.shards(split))
            wrong = lost(self._store, [stored.file(rows) for rows in rows_of])
            problem = f"missing or of the wrong size. {_AGAIN}"
            self.problems += [Problem(f"{name}: {problem}") for name in sorted(wrong)]
            self.files += [
                (stored, rows) for rows in rows_of if stored.file(rows).name not in wrong
            ]

    def read(self, file: tuple[Column, ColumnFile]) -> Problem | None:
        """Reads one of the `files` completely; returns its problem, or None."""
        stored, rows = file
        digest = hashlib.sha256()
        head = b""
        name = stored.file(rows).name
        with self._store.opened(name) as opened:
            for chunk in hashed(opened, [digest]):
                head = head or chunk
        problem = misfit(stored, rows, head, digest.hexdigest(), name)
        return Problem(problem) if problem else None


def differences(a: Dataset, b: Dataset) -> dict[str, str]:
    """Returns the differences between the columns of two datasets, by column name.

    Rows are compared if their records are equal. A web server cannot list its columns, so the names
    come only from datasets in folders and buckets.
    """
    result = {}
    for name in sorted({*names(a.store), *names(b.store)}):
        of_a, of_b = (find(side.store, name) for side in (a, b))
        if of_a is None or of_b is None:
            if of_a or of_b:
                result[name] = f"only in {'A' if of_a else 'B'}"
        elif settings := of_a.differing(of_b):
            result[name] = f"different {', '.join(settings)}"
        elif of_a.splits != of_b.splits:
            rows_a, rows_b = (
                {rows.samples_sha256: rows.sha256 for files in of.splits.values() for rows in files}
                for of in (of_a, of_b)
            )
            different = sum(rows_a[table] != rows_b[table] for table in rows_a.keys() & rows_b)
            result[name] = (
                f"different rows for equal records in {counted(different, 'file')}; different "
                f"records in {counted(len(rows_a.keys() - rows_b), 'file')} of A and "
                f"{len(rows_b.keys() - rows_a)} of B"
            )
    return result


def row(dataset: Dataset, stored: Column, split: str, shard: Shard, record: int) -> bytes | None:
    """Returns a record's row without verifying it, or None if the column lacks the shard."""
    for rows in stored.of(split, [shard])[0]:
        file = stored.file(rows)
        start = len(stored.header(rows.rows))
        if lost(dataset.store, [file]):
            where = dataset.store.where(file.name)
            raise DataDamagedError(f"{where}: missing or of the wrong size. {_AGAIN}.")
        return dataset.store.read(file.name, start + record * stored.row_bytes, stored.row_bytes)
    return None


def say_left_behind(store: Readable) -> None:
    """Tells the user that the columns of a dataset are not copied."""
    if existing := names(store):
        say(
            f"{store.where()}: columns are not copied ({printable(some(existing))}), since they "
            "belong to the records of this dataset. Re-create them for the new dataset."
        )
