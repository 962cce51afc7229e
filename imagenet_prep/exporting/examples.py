"""Reads and verifies the examples to export, and writes the files of an export.

`ExportSource` reads and verifies examples.

`write_few` writes a few large files, and `write_each` writes one file per image.

`Format` is the base class of export formats, which define the bytes and the name of each file.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from imagenet_prep.core.errors import DataDamagedError
from imagenet_prep.dataset import keys
from imagenet_prep.engine import TaskOutput
from imagenet_prep.read.column_rows import ColumnRows
from imagenet_prep.read.reader import open_records
from imagenet_prep.read.records import Records
from imagenet_prep.shards.writer import sha256
from imagenet_prep.storage.dataset_store import Dataset, open_dataset
from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.storage.local_file import (
    FolderSync,
    LargeFile,
    removed_on_failure,
    require_inside,
    storage_errors,
)
from imagenet_prep.storage.store import Store

Numbers = range | npt.NDArray[np.int64]  # sorted record numbers
_TOGETHER = 8  # records to read and hash at once; images of cameras have 10 MB each


class Example(NamedTuple):
    """One image to export."""

    number: int  # record number in the split
    key: str
    class_index: int  # starts at 0
    wnid: str
    encoded: bytes  # as stored
    sha256: str  # of `encoded`
    rows: Mapping[str, npt.NDArray[Any] | list[str]]  # exported columns, by name

    @property
    def name(self) -> str:
        """The image's file name below its class folder."""
        return keys.name_in(self.key, self.wnid)


class ExportPart(NamedTuple):
    """The records of a split that one task exports."""

    split: str
    number: int  # number of this part in the split, from 0
    total: int  # number of parts of the split
    numbers: Numbers

    @property
    def name(self) -> str:
        """The name of the part's receipt."""
        return f"{self.split}-{self.number:05d}"


class ExportSource:
    """The dataset to export, at `root`; picklable, so that each worker process can open it."""

    def __init__(self, root: str, columns: tuple[str, ...] = ()) -> None:
        self.root, self.columns = root, columns
        self._opened: dict[str, Records] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return ExportSource, (self.root, self.columns)

    @cached_property
    def dataset(self) -> Dataset:
        """The dataset, opened on first use."""
        return open_dataset(self.root)

    def split(self, name: str) -> Records:
        """Returns the records of a split, opened on first use."""
        if name not in self._opened:
            self._opened[name] = open_records(self.dataset, name)
        return self._opened[name]

    def rows_of(self, split: str) -> dict[str, ColumnRows]:
        """Returns a reader for each exported column of a split, for use in one thread."""
        return {name: ColumnRows(self.split(split), name) for name in self.columns}

    def close(self) -> None:
        """Closes the shards."""
        for records in self._opened.values():
            records.close()

    def read(self, part: ExportPart) -> Iterator[Example]:
        """Yields the examples of a part, verified, in the order of their records.

        Each record must have correct CRCs, the class name of its label, and the width and height of
        its image. If the dataset has tables of samples, the sha256 of the image must match too.
        """
        records = self.split(part.split)
        columns = self.rows_of(part.split)
        named = _named(records, part.numbers) if records.manifest.has_samples else None
        for start in range(0, len(part.numbers), _TOGETHER):
            block = [int(number) for number in part.numbers[start : start + _TOGETHER]]
            images = [
                image or records.read(number)
                for number, image in zip(block, records.read_many(block), strict=True)
            ]
            encoded = [bytes(image.encoded) for image in images]
            digests = sha256(encoded)
            rows = {name: column.rows(block, len(block)) for name, column in columns.items()}
            examples = zip(block, images, encoded, digests, strict=True)
            for at, (number, image, data, digest) in enumerate(examples):
                class_index = image.stored_label - records.manifest.label_offset
                key, *expected = next(named) if named else (records.key(image), class_index, digest)
                if [class_index, digest] != expected:
                    raise DataDamagedError(
                        f"{records.where(number)}: its image or its label differs from the table "
                        "of samples. To list all problems: imagenet-prep verify "
                        f"{shlex.quote(str(self.root))}"
                    )
                problem = keys.problem(key)
                if problem is not None:
                    raise DataDamagedError(f"{records.where(number)}: {problem}")
                of_record = {name: of_block[at] for name, of_block in rows.items()}
                wnid = records.wnids[class_index]
                yield Example(number, key, class_index, wnid, data, digest, of_record)


def _named(records: Records, numbers: Numbers) -> Iterator[tuple[str, int, str]]:
    """Yields the key, class index and sha256 of examples, from verified tables of samples."""
    for shard, group in itertools.groupby(map(int, numbers), lambda n: records.place(n)[0]):
        # Read the complete table, because it is only verified at its end.
        (heads,) = records.dataset.heads([records.shards[shard]], images=True)
        table = list(heads)
        first = records.numbers_of(shard).start
        for number in group:
            class_index, key, image = table[number - first]
            yield key, class_index, image.rpartition(b",")[2].decode()


SUMS = "SHA256SUMS"  # lists all files of an export


class FilePiece(NamedTuple):
    """Bytes to append to a file; `sha256` is set if they are the complete file."""

    name: str
    data: bytes
    sha256: str = ""


class Files(NamedTuple):
    """The files that were written for one part of an export."""

    num_bytes: int
    sums: list[str]  # one line per file, in the format of sha256sum
    outputs: tuple[TaskOutput, ...]  # files that still have to be published
    sizes: list[int]  # of each file, if each file is an image
    settle: FolderSync | None = None  # see engine.TaskOutput


def sum_line(name: str, sha256: str) -> str:
    """Returns the line for a file in a list of SHA-256 sums, in the format of sha256sum."""
    return f"{sha256}  {name}\n"


def name_in(line: bytes) -> str:
    """Returns the file name in a line of a list of SHA-256 sums."""
    return line.decode().rstrip("\n").partition("  ")[2]


def write_few(store: Store, pieces: Iterable[FilePiece]) -> Files:
    """Appends pieces to large files, which are published in the order of their first pieces."""
    files: dict[str, LargeFile] = {}
    paths = {}
    with contextlib.ExitStack() as failing, contextlib.ExitStack() as opened:
        for name, data, _ in pieces:
            if name not in files:
                path = paths[name] = store.temporary()
                failing.enter_context(removed_on_failure(path))
                failing.enter_context(storage_errors("write", path))
                files[name] = opened.enter_context(LargeFile(path))
            files[name].append(data)
        opened.close()  # This computes the SHA-256 of each file.
        return Files(
            sum(file.num_bytes for file in files.values()),
            [sum_line(name, file.sha256) for name, file in files.items()],
            tuple(TaskOutput(paths[name], name, file.sha256) for name, file in files.items()),
            [],
        )


class Tree:
    """Writes images into a folder that is hidden until `show` is called; thread-safe, picklable."""

    def __init__(self, folder: LocalStore, unseen: str) -> None:
        self._folder, self._unseen = folder, unseen  # `unseen` is a folder below `.work`
        self._folders: set[str] = set()  # folders that exist and are not links

    def write(self, pieces: Iterable[FilePiece]) -> Files:
        """Writes pieces as `write_each` does; the result's `settle` syncs the folder to disk."""
        self._folder.make_folder(self._unseen)
        path = self._folder.path(self._unseen)
        with storage_errors("write", path):
            settle = FolderSync(path)
            return write_each(self._write, pieces)._replace(settle=settle)

    def _write(self, name: str, data: bytes) -> None:
        folder, _, file = self._place(name).rpartition("/")
        if folder not in self._folders:
            self._folder.make_folder(folder)
            self._folders.add(folder)
        if not file:
            return
        # Overwrite files of a killed run.
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        # Buffered, because a raw write on a nearly full disk may be partial without an error.
        with open(os.open(f"{self._folder.root}/{folder}/{file}", flags, 0o644), "wb") as opened:
            opened.write(data)

    def _place(self, name: str) -> str:
        require_inside(name.rstrip("/"))
        top = f"{self._folder.root}/{name.partition('/')[0]}"
        return name if Path(top).is_dir() else f"{self._unseen}/{name}"

    def sizes(self, names: Iterable[str]) -> dict[str, int]:
        """Returns the sizes of the files that exist."""
        paths = {name: Path(self._folder.root, self._place(name)) for name in names}
        return {name: path.stat().st_size for name, path in paths.items() if path.is_file()}

    def show(self) -> None:
        """Moves the folders of all splits to their final names."""
        for name in self._folder.list_folder(self._unseen):
            self._folder.rename(f"{self._unseen}/{name}", name)


def forget_lost(store: Store, tree: Tree | None, sizes: Mapping[str, Sequence[int]]) -> None:
    """Removes the list of each part with lost or truncated images, so the part is rewritten.

    `sizes` has the image sizes of each finished part, by the name of the part's list.
    """
    names = {}
    for sums in sizes:
        with store.open_file(sums) as lines:
            names[sums] = [*map(name_in, lines)]
    actual = (tree or store).sizes(itertools.chain.from_iterable(names.values()))
    store.remove(*(sums for sums in sizes if [*map(actual.get, names[sums])] != [*sizes[sums]]))


def write_each(write: Callable[[str, bytes], None], pieces: Iterable[FilePiece]) -> Files:
    """Writes each piece as a file, or creates a folder if its name ends with a slash."""
    sizes = []
    sums = []
    for name, data, digest in pieces:
        write(name, data)
        if not name.endswith("/"):
            sizes.append(len(data))
            sums.append(sum_line(name, digest))
    return Files(sum(sizes), sums, (), sizes)


@dataclass(frozen=True)
class Written:
    """The receipt of an exported part."""

    examples: int
    num_bytes: int
    files: int
    sizes: list[int] = field(default_factory=list)  # of each file, if each file is an image
    keys: dict[str, str] = field(default_factory=dict)  # by place; see `schema.EXPORT_KEYS`


@dataclass(frozen=True)
class Format:
    """Base class of export formats. Picklable; equal formats write the same bytes."""

    whole_splits = False  # a split is a single part, instead of one part per shard
    file_an_image = False  # each piece is a complete file

    def place(self, out: str) -> tuple[str, str]:
        """Returns the folder of an export to `out`, and the prefix of its file names."""
        return out, ""

    def settled(self, source: ExportSource, parts: Sequence[ExportPart]) -> Format:  # noqa: ARG002
        """Returns the format for these parts; raises UsageError if it cannot store the examples."""
        return self

    def split_read(self, split: str) -> str:
        """Returns the split that other programs, and `prepare`, read in the files of a split."""
        return split

    def pieces(self, part: ExportPart, examples: Iterable[Example]) -> Iterator[FilePiece]:
        """Yields the names and bytes of the files of a part, in the order of writing."""
        raise NotImplementedError

    def place_of(self, part: ExportPart, position: int, example: Example) -> tuple[str, str]:  # noqa: ARG002
        """Returns the place (see `schema.EXPORT_KEYS`) and the name of the example at a `position`.

        The name is a path below the class folder. The place is "" if the files contain the keys.
        """
        return "", ""

    def metadata_name(self, split: str) -> str:  # noqa: ARG002
        """Returns the name of the file with a line per image of a split; "" if there is none."""
        return ""

    def metadata(self, part: ExportPart, example: Example) -> bytes:
        """Returns the line of an image in the file `metadata_name`, if there is one."""
        raise NotImplementedError

    def beside(self, parts: Mapping[str, Sequence[Written]]) -> dict[str, bytes]:  # noqa: ARG002
        """Returns small additional files by name, such as class lists."""
        return {}
