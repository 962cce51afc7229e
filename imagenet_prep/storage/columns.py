"""Opens the columns of a dataset, see `dataset/column`, and reports problems of their files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

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


def find(store: Readable, name: str, record: str = "") -> Column | None:
    """Returns the column described by column.json or `record`, or None if it does not exist.

    Raises DataDamagedError if the file is damaged or a link.
    """
    record = record or column.record_name(name)
    refuse_links(store, record)
    if store.size(record) is None:
        return None
    return column.loads(store.read(record), store.where(record), name)


def opened(dataset: Dataset, name: str) -> Column:
    """Returns a complete column; raises UsageError if absent, IncompleteError if unfinished."""
    store = dataset.store
    try:
        folder = column.folder_name(name)
    except ValueError as error:
        raise UsageError(f"{name!r}: {error}") from None
    if (found := find(store, name)) is not None:
        return found
    if store.size(column.begun_name(name)) is not None:
        raise IncompleteError(
            f"{store.where(folder)}: the column is not complete yet. Run the script that writes it "
            "again: it computes only the rows that are missing."
        )
    raise UsageError(
        f"{store.where(folder)}: there is no such column. Columns of this dataset: "
        f"{some(names(store)) or 'none'}"
    )


def refuse_links(store: Readable, name: str) -> None:
    """Raises DataDamagedError if a file of a column, or a folder above it, is a link."""
    if (folder := store.as_folder) is None:
        return
    parts = name.split("/")
    for depth in range(1, len(parts) + 1):
        path = folder.path("/".join(parts[:depth]))
        if path.is_symlink():
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
      complete: names of columns that have a column.json.
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
                self._look_at(column.check_name(name))
            except ValueError as error:
                self.problems.append(f"{naming.COLUMNS}/{name}: {error}")
            except DataDamagedError as error:
                self.problems.append(str(error))

    def _look_at(self, name: str) -> None:
        store, folder = self._store, column.folder_name(name)
        there = find(store, name)
        begun = find(store, name, column.begun_name(name))
        known = {column.record_name(name), column.begun_name(name)}
        if there is not None:
            self.complete.append(name)
            self.problems += self._of_complete(there)
            known |= {file.name for file in there.files()}
        listed = [f"{folder}/{each}" for each in store.list_folder(folder)]
        if begun is not None or there is None:
            shards = [
                s.name for split in self._dataset.manifest.splits.values() for s in split.shards
            ]
            receipts = {column.receipt_name(name, shard) for shard in shards}
            known |= {column.file_name(name, shard) for shard in shards} | receipts
            known |= {each for each in listed if each.endswith(".partial")}
            self.incomplete[name] = len(receipts.intersection(listed))
        self.problems += [f"{each}: not in column.json" for each in listed if each not in known]

    def _of_complete(self, there: Column) -> Iterator[str]:
        manifest = self._dataset.manifest
        for split, files in there.splits.items():
            found, lacking = there.of(split, self._dataset.shards(split))
            of_split = manifest.splits[split].shards if split in manifest.splits else []
            if lacking or len(files) != len(of_split):
                shards = some(lacking) or split
                yield (
                    f"{naming.COLUMNS}/{there.name}: was made of other records than those of "
                    f"{shards}. Make the column again, or remove its folder."
                )
            named = {there.file(rows).name: rows for rows in found}
            for name in named:
                refuse_links(self._store, name)
            wrong = lost(self._store, [there.file(rows) for rows in found])
            yield from (f"{name}: missing, or of another size. {_AGAIN}" for name in sorted(wrong))
            self.files += [(there, rows) for name, rows in named.items() if name not in wrong]

    def read(self, each: tuple[Column, ColumnFile]) -> str | None:
        """Reads one of the `files` completely; returns its problem, or None."""
        there, rows = each
        digest, head, name = hashlib.sha256(), b"", there.file(rows).name
        with self._store.opened(name) as file:
            for chunk in hashed(file, [digest]):
                head = head or chunk
        return misfit(there, rows, head, digest.hexdigest(), name)


def complete(dataset: Dataset) -> tuple[list[Column], list[str]]:
    """Returns the complete columns of a dataset, and the names of the others."""
    found = {name: find(dataset.store, name) for name in names(dataset.store)}
    made = [*filter(None, found.values())]
    for each in made:
        refuse_foreign(dataset, each)
    return made, [name for name in found if found[name] is None]


def refuse_foreign(dataset: Dataset, made: Column) -> None:
    """Raises DataDamagedError if a column is not of the records of this complete dataset."""
    there = dataset.manifest.splits
    for split in made.splits:
        _, lacking = made.of(split, there[split].shards if split in there else ())
        if lacking or split not in there:
            raise DataDamagedError(
                f"{dataset.store.where(column.record_name(made.name))}: it was made of other "
                f"records than those of {some(lacking) or split}. Remove this folder, and make the "
                "column again."
            )


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
        elif one.begun() != other.begun():
            mine, theirs = vars(one.begun()), vars(other.begun())
            differing = [each for each in mine if mine[each] != theirs.get(each)]
            found[name] = f"made with another {', '.join(differing)}"
        elif one.splits != other.splits:
            sums = [
                {rows.samples_sha256: rows.sha256 for of in made.splits.values() for rows in of}
                for made in (one, other)
            ]
            same = sums[0].keys() & sums[1].keys()
            rows = sum(sums[0][table] != sums[1][table] for table in same)
            only = len(sums[0].keys() ^ sums[1].keys())
            found[name] = (
                f"the rows of {counted(rows, 'file')} differ, and {counted(only, 'file')} of only "
                "one dataset: the records are different"
            )
    return found


def row(dataset: Dataset, made: Column, split: str, shard: Shard, record: int) -> bytes | None:
    """Returns the bytes of the row of a record, not verified; None if the column lacks the shard.

    Raises DataDamagedError if the file is missing or of another size.
    """
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
