"""Columns of a dataset (arrays or texts per record), and its division among nodes (placement).

The arrays of a shard are in one file, columns/NAME/SHARD.npy; row i belongs to record i. Texts are
in columns/NAME/SHARD.jsonl; line i belongs to record i (see `text_rows`). For each file,
column.json has the sha256 of the shard's table of samples. The file is valid in every dataset with
this table: a replica, a part, or an amended dataset in which the shard is unchanged.
column.json is written last. Until then, begun.json has the settings, and each file has a receipt.

For the placement, the examples of a split are arranged on a circle, in the order of the shards, and
the circle is cut into N equal arcs. Node k of N reads the k-th arc and stores every shard that the
arc touches. So a shard on a border is stored on both nodes. With R copies, a node stores R arcs,
starting with its own arc. In each epoch, the arcs to read are shifted by a different number of
examples, but never beyond the stored arcs.

So every example is stored on at least R nodes, and exactly one node reads it in each epoch. Nodes
only read examples that they store. All nodes read the same number, for any number of shards.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, BinaryIO

from imagenet_prep.core import small_files, strict_json
from imagenet_prep.core.errors import DataDamagedError, ManifestError, StoreError, UsageError
from imagenet_prep.core.terminal import counted
from imagenet_prep.core.world import World
from imagenet_prep.dataset import schema, text_rows
from imagenet_prep.dataset.manifest import DatasetFile, Manifest, Shard, render

VERSION = 1
# Of columns of texts. Older programs only know VERSION, and tell the user to upgrade.
TEXT_VERSION = 2
# `make_dataset(fields=)` needs this prefix before the name of a column.
PREFIX = "column:"
# For each type, its NumPy code in the .npy files and the bytes per value. NumPy has no bfloat16, so
# the bits are stored as uint16.
DTYPES = {
    "bool": ("|b1", 1),
    "int8": ("|i1", 1),
    "uint8": ("|u1", 1),
    **{f"int{8 * n}": (f"<i{n}", n) for n in (2, 4, 8)},
    **{f"uint{8 * n}": (f"<u{n}", n) for n in (2, 4, 8)},
    **{f"float{8 * n}": (f"<f{n}", n) for n in (2, 4, 8)},
    "bfloat16": ("<u2", 2),
}
# The type of a column of lists of strings.
TEXT = "str"
# The endings of the files with rows: arrays and texts.
ENDINGS = (".npy", ".jsonl")
# The view of a column that is valid for every crop and for the mirrored image.
ANY_VIEW = "image"
# Whether a row depends only on the image, or also on its class.
OF_IMAGE = "image"
OF_CLASS = "image+class"
# The values of --columns for all columns and for none.
ALL = "all"
NONE = "none"
# Names that exports and flags use themselves. A new column with such a name, in any case and also
# with a dot and more text behind it, is refused; readers of Parquet select `image.x` with `image`.
RESERVED = frozenset({ALL, NONE, "key", "split", *schema.PARQUET_FIELDS, *schema.WEBDATASET_FIELDS})
# The names in a condition of a reader that stand for a value of the table of samples.
CONDITIONS = ("width", "height", "bytes", "class", "class_index", "key")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_MOST_AXES = 8
MOST_ROW_BYTES = 64 << 20
_MAX_COLUMN_FILE_BYTES = 1 << 62
_MOST_VIEW = 200


@dataclass(frozen=True)
class ColumnFile:
    """The rows of one shard (see docs/data-format.md); only receipts may have `missing` rows."""

    shard: str
    rows: int
    num_bytes: int
    sha256: str
    samples_sha256: str
    missing: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if schema.parse_shard_name(self.shard) is None:
            raise ValueError(f"{self.shard!r} is not a shard name")
        if not (
            0 <= self.rows <= _MAX_COLUMN_FILE_BYTES
            and 0 <= self.num_bytes <= _MAX_COLUMN_FILE_BYTES
        ):
            raise ValueError("a number of rows or bytes is out of bounds")
        if not all(map(_SHA256.fullmatch, (self.sha256, self.samples_sha256))):
            raise ValueError("a sha256 is not 64 hexadecimal digits")
        inside = all(0 <= number < self.rows for number in self.missing)
        if not inside or list(self.missing) != sorted(set(self.missing)):
            raise ValueError("the numbers of missing rows are not sorted, or out of bounds")

    def is_of(self, shard: Shard) -> bool:
        """Returns whether the rows belong to the records of this shard, in the same order."""
        expected = (shard.name, shard.examples, shard.samples_sha256)
        return (self.shard, self.rows, self.samples_sha256) == expected


@dataclass(frozen=True)
class Column:
    """The contents of a column.json or begun.json; see docs/data-format.md.

    `dtype` is one of `DTYPES`, or `TEXT`; `splits` is empty in begun.json.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    about: Any = None
    view: str = ANY_VIEW
    made_from: str = OF_IMAGE
    splits: dict[str, list[ColumnFile]] = field(default_factory=dict)
    column_version: int = VERSION

    def __post_init__(self) -> None:
        version = version_of(self.dtype)
        if self.column_version != version:
            raise ValueError(
                f"column_version {self.column_version}, expected {version}: upgrade imagenet-prep"
            )
        require_name(self.name)
        if self.dtype not in (*DTYPES, TEXT):
            raise ValueError(f"dtype: expected one of {', '.join(DTYPES)}, {TEXT}")
        if self.is_text and self.shape:
            raise ValueError(f"shape: expected () for {TEXT}, since a row has any number of texts")
        if len(self.shape) > _MOST_AXES or not all(0 < side < 1 << 31 for side in self.shape):
            raise ValueError(f"shape: expected up to {_MOST_AXES} dimensions, each at least 1")
        if self.row_bytes > MOST_ROW_BYTES:
            raise ValueError(f"shape: a row has more than {MOST_ROW_BYTES:,} bytes")
        if self.made_from not in (OF_IMAGE, OF_CLASS):
            raise ValueError(f"made_from: expected {OF_IMAGE} or {OF_CLASS}")
        if not (self.view and self.view.isprintable() and len(self.view) <= _MOST_VIEW):
            raise ValueError(f"view: expected a line of at most {_MOST_VIEW} characters")
        for split, files in self.splits.items():
            names = [schema.parse_shard_name(file.shard) for file in files]
            numbers = [name.number for name in names if name and name.split == split]
            if not files or numbers != sorted({*numbers}) or len(numbers) != len(files):
                raise ValueError(f"splits: the files of {split} are not in the order of shards")
            if not all(self._fits(file) for file in files):
                raise ValueError("splits: the size of a file does not match its rows")
            if any(file.missing for file in files):
                raise ValueError("splits: a file has missing rows")

    @property
    def is_text(self) -> bool:
        """Whether rows are lists of strings, in a .jsonl file, instead of arrays."""
        return self.dtype == TEXT

    @property
    def row_bytes(self) -> int:
        """Bytes of one row; 0 for texts, because their rows have different sizes."""
        return 0 if self.is_text else math.prod(self.shape) * DTYPES[self.dtype][1]

    @property
    def descr(self) -> str:
        """NumPy's code for the type of the values: in the .npy files, or of Python's strings."""
        return "|O" if self.is_text else DTYPES[self.dtype][0]

    @property
    def empty_row(self) -> bytes:
        """The row of a record without a row: zeros, or no text."""
        return text_rows.render(self.name, ()) if self.is_text else bytes(self.row_bytes)

    def read_row(self, file: BinaryIO) -> bytes:
        """Reads the next row of a file; it is too short if the file is truncated."""
        if self.is_text:
            return file.readline(MOST_ROW_BYTES + 1)
        return file.read(self.row_bytes)

    def texts(self, row: bytes) -> list[str]:
        """Returns the texts of a row; raises ValueError if it is damaged."""
        return text_rows.parse(self.name, row)

    def row_problem(self, row: bytes) -> str | None:
        """Returns the problem with a row of texts, or None. Only the size of arrays is checked."""
        if not self.is_text:
            return None if len(row) == self.row_bytes else "ends within a row"
        try:
            self.texts(row)
        except ValueError as error:
            return f"a row {error}"
        return None

    def header(self, rows: int) -> bytes:
        """Returns the only accepted header of a file with this number of rows; b"" for texts."""
        if self.is_text:
            return b""
        shape = (rows, *self.shape)
        text = f"{{'descr': '{self.descr}', 'fortran_order': False, 'shape': {shape}, }}"
        # NumPy aligns the values to 64 bytes.
        padded = text.ljust(-(-(len(text) + 11) // 64) * 64 - 11) + "\n"
        return b"\x93NUMPY\x01\x00" + len(padded).to_bytes(2, "little") + padded.encode()

    def num_bytes(self, rows: int) -> int:
        """Returns the size of a .npy file with this number of rows."""
        return len(self.header(rows)) + rows * self.row_bytes

    def _fits(self, file: ColumnFile) -> bool:
        """Returns whether a file of this size can have its number of rows."""
        if self.is_text:
            least = len(self.empty_row)
            return least * file.rows <= file.num_bytes <= MOST_ROW_BYTES * file.rows
        return file.num_bytes == self.num_bytes(file.rows)

    def file_name(self, shard: str) -> str:
        """Returns the path of the file with the rows of a shard."""
        return file_name(self.name, shard, ENDINGS[self.is_text])

    def file(self, rows: ColumnFile) -> DatasetFile:
        """Returns the file of a shard, with its path in the dataset."""
        return DatasetFile(self.file_name(rows.shard), rows.num_bytes, rows.sha256)

    def files(self) -> list[DatasetFile]:
        """Returns the files with rows of all shards."""
        return [*map(self.file, itertools.chain.from_iterable(self.splits.values()))]

    def record(self) -> DatasetFile:
        """Returns column.json, with its path in the dataset."""
        data = self.dumps()
        return DatasetFile(record_name(self.name), len(data), hashlib.sha256(data).hexdigest())

    def of(self, split: str, shards: Iterable[Shard]) -> tuple[list[ColumnFile], list[str]]:
        """Returns the files of these shards, and the names of the shards without a valid file."""
        by_shard = {rows.shard: rows for rows in self.splits.get(split, [])}
        pairs = [(shard, by_shard.get(shard.name)) for shard in shards]
        files = [rows for shard, rows in pairs if rows and rows.is_of(shard)]
        lacking = [shard.name for shard, rows in pairs if not (rows and rows.is_of(shard))]
        return files, lacking

    def begun(self) -> Column:
        """Returns the column without its files, as stored in begun.json."""
        return dataclasses.replace(self, splits={})

    def differing(self, other: Column) -> list[str]:
        """Returns the names of the settings in which two columns differ; ignores their files."""
        mine = vars(self.begun())
        theirs = vars(other.begun())
        return [name for name in mine if mine[name] != theirs[name]]

    def with_files(self, split: str, files: Iterable[ColumnFile]) -> Column:
        """Returns a copy of the column in which a split has these files."""
        return dataclasses.replace(self, splits={**self.splits, split: list(files)})

    @property
    def digest(self) -> str:
        """The sha256 that identifies this exact column."""
        return strict_json.digest(self._content())

    def dumps(self) -> bytes:
        """Returns the bytes of column.json or begun.json, with their digest."""
        return render(self._content())

    def _content(self) -> dict[str, Any]:
        splits = {name: list(map(strict_json.fields, self.splits[name])) for name in self.splits}
        return {**dataclasses.asdict(self.begun()), "splits": splits}


def version_of(dtype: str) -> int:
    """Returns the `column_version` of columns of a type."""
    return TEXT_VERSION if dtype == TEXT else VERSION


def loads(data: bytes, where: str, name: str) -> Column:
    """Parses a column.json or begun.json; raises DataDamagedError if it is invalid."""
    with _damage(where):
        content = strict_json.loads(data)
        if not isinstance(content, dict):
            raise ValueError("it is not a JSON object")
        content.pop("digest", None)
        column = strict_json.parse(Column, content)
        if column.dumps() != data:
            raise ValueError("its digest does not match its content")
        if column.name != name:
            raise ValueError(f"it describes the column {column.name}, expected {name}")
        return column


def loads_receipt(data: bytes, where: str) -> ColumnFile:
    """Parses a receipt; raises DataDamagedError if it is invalid."""
    with _damage(where):
        return strict_json.parse_record(ColumnFile, data)


@contextlib.contextmanager
def _damage(where: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, RecursionError) as error:
        raise DataDamagedError(
            f"{where}: damaged ({error}). Copy the column again from its original dataset, or "
            "remove its folder and create the column again."
        ) from None


def require_name(name: str) -> str:
    """Returns the name of a column unchanged; raises ValueError if it is invalid."""
    if _NAME.fullmatch(name) is None:
        raise ValueError(
            "a column name has up to 100 letters, digits, dots, hyphens and underscores, and does "
            "not start with a dot or hyphen"
        )
    return name


def require_new_name(name: str) -> str:
    """Returns the name of a new column unchanged; raises ValueError if it is in use elsewhere."""
    first = require_name(name).partition(".")[0].lower()
    if first in RESERVED or first in CONDITIONS or first.startswith("__"):
        raise ValueError(
            f"flags, conditions and exports use {first} themselves. Choose a different name, for "
            f"example my_{first.lstrip('_')}"
        )
    return name


def folder_name(name: str) -> str:
    """Returns the path of a column's folder, relative to the dataset."""
    return f"{schema.COLUMNS}/{require_name(name)}"


def record_name(name: str) -> str:
    """Returns the path of a column's column.json, relative to the dataset."""
    return f"{folder_name(name)}/column.json"


def begun_name(name: str) -> str:
    """Returns the path of a column's begun.json, relative to the dataset."""
    return f"{folder_name(name)}/begun.json"


def file_name(name: str, shard: str, ending: str = ENDINGS[0]) -> str:
    """Returns the path of the file with the rows of a shard."""
    return f"{folder_name(name)}/{shard}{ending}"


def receipt_name(name: str, shard: str) -> str:
    """Returns the path of the receipt of a file with rows; complete columns have no receipts."""
    return f"{folder_name(name)}/{shard}.json"


def is_partial(file: str) -> bool:
    """Returns whether a file is still being written, or was when its writer was killed."""
    return file.endswith(".partial")


def is_own_file(name: str, file: str) -> bool:
    """Returns whether a file has the path of a file with rows, a receipt or begun.json."""
    shard, dot, ending = file.removeprefix(f"{folder_name(name)}/").rpartition(".")
    if is_partial(file) or file == begun_name(name):
        return True
    return dot + ending in (*ENDINGS, ".json") and schema.parse_shard_name(shard) is not None


# Far more nodes than any cluster has; products with this number fit into 64 bits.
_MOST_NODES = 1 << 20
_MAX_PLACEMENT_BYTES = 1 << 16


@dataclass(frozen=True)
class Placement:
    """The part of a dataset that one node stores."""

    node: int = 0  # 0-based number of the node in the hosts file
    nodes: int = 1
    copies: int = 1  # least number of nodes that store each example

    def __post_init__(self) -> None:
        if self.nodes > _MOST_NODES:
            raise ValueError(f"more than {_MOST_NODES:,} nodes")
        if not 0 <= self.node < self.nodes:
            raise ValueError(f"node {self.node}: expected 0 to {self.nodes - 1}")
        if not 1 <= self.copies <= self.nodes:
            raise ValueError(f"{self.copies} copies: expected 1 to {self.nodes} (all nodes)")

    def __str__(self) -> str:
        if self.nodes == 1:
            return "the complete dataset"
        return f"part {self.node} of {self.nodes}, copies: {self.copies}"

    @property
    def flags(self) -> list[str]:
        """The flags of `replicate` for this part; none for the complete dataset."""
        if self.nodes == 1:
            return []
        return [*parts_on_hosts(self.copies), "--part", f"{self.node}/{self.nodes}"]

    def part(self, num_examples: int, turn: int) -> tuple[int, int]:
        """Returns (first, count) of the examples to read, shifted by `turn` (0 to `most_turn`).

        The range may pass the end of the split; it then continues with example 0.
        """
        first, stop = (self._border(self.node + step, num_examples) for step in (0, 1))
        return first + turn, stop - first

    def most_turn(self, num_examples: int) -> int:
        """Returns the largest shift for which every node stores all examples that it reads."""
        return self._border(self.copies - 1, num_examples)

    def held(self, examples_per_shard: Sequence[int]) -> list[int]:
        """Returns the 0-based numbers of the shards stored on the node, in order."""
        borders = list(accumulate(examples_per_shard, initial=0))
        total = borders[-1]
        first = self._border(self.node, total)
        stop = self._border(self.node + self.copies, total)
        # The arc may pass the end of the circle, so compare each shard again one circle later.
        return [
            shard
            for shard, (begin, end) in enumerate(pairwise(borders))
            if any(begin + turn < stop and first < end + turn for turn in (0, total))
        ]

    def shards(self, manifest: Manifest, split: str) -> list[Shard]:
        """Returns the shards of a split that are stored on the node."""
        shards = manifest.splits[split].shards
        if self.nodes == 1:
            return shards
        return [shards[number] for number in self.held([shard.examples for shard in shards])]

    def files(self, manifest: Manifest, columns: Sequence[Column] = ()) -> list[DatasetFile]:
        """Returns the node's files except dataset.json; index and table precede their shard."""
        shards = {split: self.shards(manifest, split) for split in manifest.splits}
        files = [*manifest.files]
        for shard in itertools.chain.from_iterable(shards.values()):
            files += shard.files
        for column in columns:
            for split in column.splits:
                rows, _ = column.of(split, shards.get(split, ()))
                files += map(column.file, rows)
        return files

    def require_whole_ranks(self, world: World, data_dir: str) -> None:
        """Raises UsageError unless these ranks would read each part exactly once."""
        if self.nodes == 1:
            return
        where = f"{data_dir} is {self}"
        if world.size != self.nodes * world.local_size:
            raise UsageError(
                f"{where}: it must be read by {self.nodes} hosts with equal numbers of ranks, but "
                f"this run has {counted(world.size, 'rank')}, {world.local_size} of them on this "
                "host. Start ranks on all hosts, or replicate again to the hosts that train."
            )
        if world.cross_rank != self.node:
            raise UsageError(
                f"{where}, but this host is number {world.cross_rank} of the hosts that train. "
                "Start the hosts in the order of the hosts file that was used for replicate."
            )

    def dumps(self, digest: str) -> bytes:
        """Returns the bytes of placement.json for the dataset with this digest."""
        content = {"dataset": digest, **vars(self)}
        return json.dumps(content, indent=1, sort_keys=True).encode() + b"\n"

    def _border(self, number: int, num_examples: int) -> int:
        return number * num_examples // self.nodes


@dataclass(frozen=True, kw_only=True)
class _Placed(Placement):
    """The contents of placement.json; `dataset` is the digest of the manifest."""

    dataset: str


WHOLE = Placement()


def parts_on_hosts(copies: int) -> list[str]:
    """Returns the flags of `replicate` for parts; none if `copies` is 0."""
    return ["--mode", "partition", "--copies", str(copies)] if copies else []


def load(root: Path, manifest: Manifest) -> Placement:
    """Returns the placement stored in the dataset's folder; WHOLE if there is none."""
    path = root / schema.PLACEMENT
    try:
        data = small_files.read(path, _MAX_PLACEMENT_BYTES)
    except FileNotFoundError:
        return WHOLE
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror}") from error
    except DataDamagedError as error:
        raise ManifestError(str(error)) from None
    advice = "Run the same replicate command again, or remove the folder and replicate again."
    try:
        placed = strict_json.parse_record(_Placed, data)
    except ValueError as error:
        raise ManifestError(f"{path}: damaged ({error}). {advice}") from None
    if placed.dataset != manifest.digest:
        raise ManifestError(
            f"{path}: belongs to the dataset {placed.dataset[:16]}, but the manifest in this "
            f"folder is {manifest.digest[:16]}. {advice}"
        )
    return Placement(placed.node, placed.nodes, placed.copies)
