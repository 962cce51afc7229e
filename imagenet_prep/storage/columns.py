"""Opens the columns of a dataset, reports problems with their files, and verifies signatures.

SSH signatures of a manifest and of columns are made by `ssh-keygen -Y sign`; OpenSSH verifies them.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from imagenet_prep.core import small_files
from imagenet_prep.core.errors import (
    BusyError,
    DataDamagedError,
    IncompleteError,
    UsageError,
    some,
)
from imagenet_prep.core.strict_json import Json
from imagenet_prep.core.terminal import counted, printable, say
from imagenet_prep.dataset import column, schema
from imagenet_prep.dataset.column import Column, ColumnFile
from imagenet_prep.dataset.manifest import Shard
from imagenet_prep.storage import local_file
from imagenet_prep.storage.dataset_store import Dataset, missing_files
from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.storage.remote import CHUNK_BYTES, as_file, hashed
from imagenet_prep.storage.store import Readable, Store

_AGAIN = "Copy the file again, or remove it and rerun the script that writes the column"
_REMEDY = (
    "Repair each column, or remove its folder (if it is a link, only the link) and rerun the "
    "script that writes it."
)


class ColumnProblem(str):
    """A problem with a column, for which `remedy` returns specific advice."""

    __slots__ = ()


def remedy(problems: Sequence[str], remedy_of_others: str) -> str:
    """Returns the advice for problems; `remedy_of_others` is for files outside columns."""
    remedies: list[str] = []
    if any(not isinstance(problem, ColumnProblem) for problem in problems):
        remedies.append(remedy_of_others)
    if any(isinstance(problem, ColumnProblem) for problem in problems):
        remedies.append(_REMEDY)
    return " ".join(remedies)


def names(store: Readable) -> list[str]:
    """Returns the sorted names of all columns, even of incomplete ones; empty for a web server."""
    return store.list_folder(schema.COLUMNS)


def find(store: Readable, name: str, *, begun: bool = False) -> Column | None:
    """Returns the column described by column.json or begun.json, or None if it does not exist.

    Raises DataDamagedError if the file is damaged or a link, or if the name is invalid.
    """
    try:
        record = (column.begun_name if begun else column.record_name)(name)
    except ValueError as error:
        where = store.where(f"{schema.COLUMNS}/{name}")
        raise DataDamagedError(f"{where}: {error}. Remove it.") from None
    if store.size(record) is None:
        return None
    return column.loads(store.read(record), store.where(record), name)


def open_column(dataset: Dataset, name: str, split: str = "") -> Column:
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
    if stored and stored.splits and split not in stored.splits:
        covered = ",".join(stored.splits)
        raise UsageError(
            f"{where}: the column has no rows for {split}. Read or export only {covered} (export "
            f"--split {covered}), or write the rows of {split} too."
        )
    if stored:
        raise UsageError(
            f"{where}: the column has no rows for the records of {some(lacking)}: it was made for "
            "a different split or dataset, or before an amendment. Re-create the column."
        )
    raise _no_such_column(store, name)


def complete_columns(
    dataset: Dataset, chosen: Sequence[str] = ()
) -> tuple[list[Column], list[str]]:
    """Returns the `chosen` columns, by default all, and the names of incomplete columns.

    A column with some complete splits is returned with only these splits.
    """
    store = dataset.store
    incomplete: list[str] = []
    columns = [open_column(dataset, name) for name in chosen]
    for name in () if chosen else names(store):
        stored = find(store, name)
        columns += filter(None, [stored])
        if stored is None or store.size(column.begun_name(name)) is not None:
            incomplete.append(name)
    for stored in columns:
        problem = mismatch(dataset, stored)
        if problem:
            raise DataDamagedError(f"{store.where(column.record_name(stored.name))}: {problem}")
    return columns, incomplete


def mismatch(dataset: Dataset, stored: Column) -> str | None:
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


def misfit(
    stored: Column,
    rows: ColumnFile,
    head: bytes,
    sha256: str,
    where: str,
    in_rows: str | None = None,
) -> str | None:
    """Checks the first chunk and the sha256 of a column file; returns the problem, or None.

    `in_rows` is a problem with the rows. Damaged rows usually have a different sha256, which is
    then reported.
    """
    header = stored.header(rows.rows)
    if head[: len(header)] != header:
        return f"{where}: is not a .npy file of {rows.rows:,} rows of {stored.name}. {_AGAIN}"
    if sha256 != rows.sha256:
        return f"{where}: sha256 {sha256}, column.json says {rows.sha256}. {_AGAIN}"
    return f"{where}: {in_rows}. {_AGAIN}" if in_rows else None


def _text_problem(stored: Column, count: int, file: BinaryIO) -> str | None:
    """Reads the `count` rows of a text column; returns the first problem, or None."""
    for _ in range(count):
        problem = stored.row_problem(stored.read_row(file))
        if problem:
            return problem
    return f"has more than {counted(count, 'line')}" if file.read(1) else None


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
        self.problems: list[ColumnProblem] = []
        try:
            files = self._store.names(schema.COLUMNS)
        except DataDamagedError as error:
            self.problems = [ColumnProblem(error)]
            return
        problem = "is not a column folder. Remove it"
        self.problems = [ColumnProblem(f"{schema.COLUMNS}/{name}: {problem}") for name in files]
        for name in sorted({*names(self._store)}.difference(files)):
            try:
                self._check(name)
            except DataDamagedError as error:
                self.problems.append(ColumnProblem(error))

    def _check(self, name: str) -> None:
        store = self._store
        stored = find(store, name)
        begun = find(store, name, begun=True)
        allowed = {column.record_name(name), column.begun_name(name)}
        if stored is not None:
            self._check_files(stored)
            allowed |= {file.name for file in stored.files()}
            allowed.add(schema.signature_name(column.record_name(name)))
        folder = column.folder_name(name)
        listed = {f"{folder}/{file}" for file in store.list_folder(folder)}
        shards: list[Shard] = []
        for split in self._dataset.manifest.splits.values():
            shards += split.shards
        unfinished = receipts(store, name, shards)
        if stored is None or begun is not None or unfinished:
            done = [receipt(store, name, shard) for shard in unfinished.values()]
            self.incomplete[name] = sum(rows is not None and not rows.missing for rows in done)
            allowed |= unfinished.keys()
            for shard in shards:
                allowed |= {column.file_name(name, shard.name, end) for end in column.ENDINGS}
        else:
            self.complete[name] = stored
        # A writer may still be working on these files.
        strangers = sorted(path for path in listed - allowed if not column.is_partial(path))
        self.problems += [
            ColumnProblem(f"{path}: not in column.json. Remove it") for path in strangers
        ]

    def _check_files(self, stored: Column) -> None:
        problem = mismatch(self._dataset, stored)
        if problem:
            self.problems.append(ColumnProblem(f"{column.folder_name(stored.name)}: {problem}"))
        for split in stored.splits.keys() & self._dataset.manifest.splits.keys():
            files, _ = stored.of(split, self._dataset.shards(split))
            wrong = missing_files(self._store, [stored.file(rows) for rows in files])
            problem = f"missing or of the wrong size. {_AGAIN}"
            self.problems += [ColumnProblem(f"{name}: {problem}") for name in sorted(wrong)]
            self.files += [(stored, rows) for rows in files if stored.file(rows).name not in wrong]

    def read(self, file: tuple[Column, ColumnFile]) -> ColumnProblem | None:
        """Reads one of the `files` completely; returns its problem, or None."""
        stored, rows = file
        digest = hashlib.sha256()
        head = b""
        in_text: str | None = None
        name = stored.file(rows).name
        with self._store.open_file(name) as opened:
            content = as_file(hashed(opened, [digest]))
            if stored.is_text:
                in_text = _text_problem(stored, rows.rows, content)
            while chunk := content.read(CHUNK_BYTES):
                head = head or chunk
        problem = misfit(stored, rows, head, digest.hexdigest(), name, in_text)
        return ColumnProblem(problem) if problem else None


def differences(a: Dataset, b: Dataset) -> dict[str, str]:
    """Returns the differences between the columns of two datasets, by column name.

    Rows are compared if their records are equal. A web server cannot list its columns, so the names
    come only from datasets in folders and buckets.
    """
    result = {}
    for name in sorted({*names(a.store), *names(b.store)}):
        column_a = find(a.store, name)
        column_b = find(b.store, name)
        if column_a is None or column_b is None:
            if column_a or column_b:
                result[name] = f"only in {'A' if column_a else 'B'}"
            continue
        settings = column_a.differing(column_b)
        if settings:
            result[name] = f"different {', '.join(settings)}"
        elif column_a.splits != column_b.splits:
            rows_a = _rows_by_table(column_a)
            rows_b = _rows_by_table(column_b)
            different = sum(rows_a[table] != rows_b[table] for table in rows_a.keys() & rows_b)
            result[name] = (
                f"different rows for equal records in {counted(different, 'file')}; different "
                f"records in {counted(len(rows_a.keys() - rows_b), 'file')} of A and "
                f"{len(rows_b.keys() - rows_a)} of B"
            )
    return result


def _rows_by_table(stored: Column) -> dict[str, str]:
    """Returns the sha256 of each file of a column, keyed by the sha256 of its table of samples."""
    files = itertools.chain.from_iterable(stored.splits.values())
    return {file.samples_sha256: file.sha256 for file in files}


def row(dataset: Dataset, stored: Column, split: str, shard: Shard, record: int) -> bytes | None:
    """Returns a record's row without verifying it, or None if the column lacks the shard."""
    for rows in stored.of(split, [shard])[0]:
        file = stored.file(rows)
        start = len(stored.header(rows.rows))
        if missing_files(dataset.store, [file]):
            where = dataset.store.where(file.name)
            raise DataDamagedError(f"{where}: missing or of the wrong size. {_AGAIN}.")
        if not stored.is_text:
            begin = start + record * stored.row_bytes
            return dataset.store.read(file.name, begin, stored.row_bytes)
        with dataset.store.open_file(file.name) as opened:
            for _ in range(record):
                stored.read_row(opened)
            return stored.read_row(opened)
    return None


def texts(stored: Column, row: bytes, where: str, record: int) -> list[str]:
    """Returns the texts of a row; raises DataDamagedError if it is damaged."""
    try:
        return stored.texts(row)
    except ValueError as error:
        raise DataDamagedError(f"{where}: row {record:,} {error}. {_AGAIN}.") from None


def files_to_remove(store: Readable, name: str) -> list[list[str]]:
    """Returns all files of a column, even of a damaged one, in groups in the order of removal.

    column.json is first, so that no reader opens an incomplete column, and begun.json is last.
    Raises UsageError if there is no such column, or if its folder contains files that no writer
    makes.
    """
    try:
        folder = column.folder_name(name)
    except ValueError as error:
        raise UsageError(f"{name!r}: {error}") from None
    listed = store.list_folder(folder)
    if not listed and name not in names(store):
        raise _no_such_column(store, name)
    record = column.record_name(name)
    first = [record, schema.signature_name(record)]
    plain = {f"{folder}/{file}" for file in store.names(folder)}
    files = [f"{folder}/{file}" for file in listed]
    own = {file for file in plain if file in first or column.is_own_file(name, file)}
    strangers = [file for file in files if file not in own]
    if strangers:
        raise UsageError(
            f"{store.where(folder)}: {some(strangers)}: not a file of a column, so nothing was "
            "removed. Move it to a different folder first."
        )
    last = [column.begun_name(name)]
    groups = [
        [file for file in files if file in first],
        [file for file in files if file not in first + last],
        [file for file in files if file in last],
    ]
    return [group for group in groups if group]


def remove(store: Store, name: str) -> None:
    """Removes a column; raises BusyError if a process is writing it."""
    folder = column.folder_name(name)
    local = store.as_folder
    if local is not None:
        with local_file.folder_inside(local.root, folder) as opened:
            for file in filter(column.is_partial, local.list_folder(folder)):
                small_files.remove_killed(opened, file)
    groups = files_to_remove(store, name)
    partial = [*filter(column.is_partial, itertools.chain.from_iterable(groups))]
    if partial:
        raise BusyError(
            f"{store.where(partial[0])}: a process is writing this column, so nothing was removed. "
            "Stop it and run the same command again."
        )
    for group in groups:
        store.remove(*group)
    if local is not None:
        for place in (folder, schema.COLUMNS):
            with contextlib.suppress(OSError):  # it may have other columns
                local.path(place).rmdir()


def _no_such_column(store: Readable, name: str) -> UsageError:
    where = store.where(column.folder_name(name))
    existing = some(names(store)) or "none"
    return UsageError(f"{where}: there is no such column. Columns of this dataset: {existing}")


def say_left_behind(store: Readable) -> None:
    """Tells the user that the columns of a dataset are not copied."""
    existing = names(store)
    if existing:
        say(
            f"{store.where()}: columns are not copied ({printable(some(existing))}), since they "
            "belong to the records of this dataset. Re-create them for the new dataset."
        )


# OpenSSH rejects a signature made for a different namespace.
NAMESPACE = "imagenet-prep"
# SSH signatures are under 1 kB, or about 6 kB with an RSA key of 16,384 bits.
_MOST_SIGNATURE_BYTES = 16 << 10
# A line of a public key; a line of allowed signers begins with a name.
_KEY_TYPE = re.compile(rb"\s*(?:ssh|ecdsa|sk-ssh|sk-ecdsa)-\S+\s+AAAA")
_KEYGEN_LIMIT_S = 30
# Files that commands use. The manifest has their sha256, except that of placement.json.
_SMALL_FILES = (schema.PLACEMENT, schema.LABELS, schema.QUARANTINE, *schema.TFDS_FILES)


def read_signature(store: Readable, name: str) -> bytes | None:
    """Returns the signature next to a file, or None if there is none."""
    signature = schema.signature_name(name)
    if store.size(signature) is None:
        return None
    return store.read(signature, most=_MOST_SIGNATURE_BYTES)


def verify_signatures(dataset: Dataset, stored: Mapping[str, Column], signers: str) -> Json:
    """Verifies the signatures of a dataset and of its complete columns, `stored` by name.

    Returns the signer of the manifest and of each column, and the parts without a signature. Raises
    DataDamagedError if the manifest has no valid signature, or a column has an invalid one.
    """
    store = dataset.store
    by = signer(store, schema.MANIFEST, dataset.data, signers)
    by_column: dict[str, str] = {}
    unsigned: list[str] = []
    for name in names(store):
        # An invalid name is never in `stored`.
        if name in stored and read_signature(store, column.record_name(name)) is not None:
            # These are the bytes of column.json that were parsed.
            data = stored[name].dumps()
            by_column[name] = signer(store, column.record_name(name), data, signers)
        else:
            unsigned.append(f"{schema.COLUMNS}/{name}")
    listed = {file.name for file in dataset.manifest.files}
    unsigned += sorted(store.sizes(name for name in _SMALL_FILES if name not in listed))
    return {"signed_by": by, "columns_signed_by": by_column, "not_signed": unsigned}


def signer(store: Readable, name: str, data: bytes, signers: str) -> str:
    """Returns the identity in the file `signers` that signed `data`, the content of a file.

    Raises DataDamagedError if no signature is valid, UsageError if OpenSSH cannot check it.
    """
    signature = schema.signature_name(name)
    where = store.where(signature)
    path = Path(signers).expanduser().absolute()
    remedy = (
        f"If the dataset is yours, sign it: ssh-keygen -Y sign -n {NAMESPACE} -f KEY {name}. "
        f"Otherwise, get {name} and {signature} from the author again, or ask the author to sign."
    )
    if path.exists() and not path.is_file():
        raise UsageError(f"--signers {signers}: is a folder, a pipe or a device, expected a file")
    if not path.exists():
        raise UsageError(f"--signers {signers}: there is no such file")
    signed = read_signature(store, name)
    if signed is None:
        raise DataDamagedError(f"{where}: missing, so the dataset is not signed. {remedy}")
    identity, reason = _identity(signed, data, path.read_bytes())
    if identity is None:
        _require_signers(signers, path.read_bytes())
        raise DataDamagedError(
            f"{where}: not a valid signature of {name} by a key in {signers} (ssh-keygen: "
            f"{reason}). {remedy}"
        )
    return identity


def _require_signers(signers: str, allowed: bytes) -> None:
    """Raises UsageError if a line of the file lacks the name of the signer, or no line has one."""
    lines = allowed.splitlines()
    for number, line in enumerate(lines, start=1):
        if _KEY_TYPE.match(line):
            raise UsageError(
                f"--signers {signers}: line {number} has no name before the key, as in a public "
                "key. Expected: NAME KEY-TYPE KEY, such as lab@example.org ssh-ed25519 AAAA..."
            )
    if not any(_KEY_TYPE.search(line) for line in lines if not line.lstrip().startswith(b"#")):
        raise UsageError(
            f"--signers {signers}: has no line with the name and the public key of a signer, such "
            "as lab@example.org ssh-ed25519 AAAA..."
        )


def _identity(signed: bytes, data: bytes, allowed: bytes) -> tuple[str | None, str]:
    """Returns the identity that signed `data`; or None, and the message of OpenSSH."""
    reason = ""
    # OpenSSH finds only the first line with a key, but another one may allow the namespace.
    for lines in (allowed, *allowed.splitlines(keepends=True)):
        with (
            tempfile.NamedTemporaryFile(prefix="imagenet-prep-", suffix=".sig") as file,
            tempfile.NamedTemporaryFile(prefix="imagenet-prep-", suffix=".signers") as signers,
        ):
            file.write(signed)
            file.flush()
            signers.write(lines)
            signers.flush()
            files = ["-s", file.name, "-f", signers.name]
            result = _keygen("find-principals", files, b"")
            for identity in result.stdout.decode(errors="replace").splitlines():
                words = [*files, "-I", identity, "-n", NAMESPACE]
                result = _keygen("verify", words, data)
                if not result.returncode:
                    return identity, ""
            reason = reason or result.stderr.decode(errors="replace").strip()
    return None, reason or "no matching key"


def _keygen(act: str, words: list[str], data: bytes) -> subprocess.CompletedProcess[bytes]:
    argv = ["ssh-keygen", "-Y", act, *words]
    try:
        return subprocess.run(
            argv, input=data, capture_output=True, timeout=_KEYGEN_LIMIT_S, check=False
        )
    except FileNotFoundError:
        raise UsageError(
            "--signers needs ssh-keygen (OpenSSH 8.2 or newer): apt-get install openssh-client"
        ) from None
    except subprocess.TimeoutExpired:
        raise UsageError(
            f"ssh-keygen did not finish within {_KEYGEN_LIMIT_S} s. Run the same command again"
        ) from None


if __name__ == "__main__":  # `replicate` runs this on a host: FOLDER NAME SIGNATURE ..., in hex.
    target = LocalStore(Path(sys.argv[1]).expanduser())
    for signed_name, signature_hex in zip(sys.argv[2::2], sys.argv[3::2], strict=True):
        target.write(schema.signature_name(signed_name), bytes.fromhex(signature_hex))
