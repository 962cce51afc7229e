"""Reads and verifies the examples to export."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from imagenet_prep.core.errors import DataDamagedError
from imagenet_prep.dataset import keys
from imagenet_prep.read.columns import ColumnRows
from imagenet_prep.read.opening import open_records
from imagenet_prep.read.records import Records
from imagenet_prep.shards.digests import sha256
from imagenet_prep.storage.dataset_store import Dataset, open_dataset

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
    rows: Mapping[str, npt.NDArray[Any]]  # exported columns, by name

    @property
    def name(self) -> str:
        """The image's file name below its class folder."""
        return keys.name_in(self.key, self.wnid)


class Part(NamedTuple):
    """The records of a split that one task exports."""

    split: str
    number: int  # number of this part in the split, from 0
    total: int  # number of parts of the split
    numbers: Numbers

    @property
    def name(self) -> str:
        """The name of the part's receipt."""
        return f"{self.split}-{self.number:05d}"


class Source:
    """The dataset to export, at `root`; picklable, so that each worker process can open it."""

    def __init__(self, root: str, columns: tuple[str, ...] = ()) -> None:
        self.root, self.columns = root, columns
        self._opened: dict[str, Records] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return Source, (self.root, self.columns)

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

    def read(self, part: Part) -> Iterator[Example]:
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
                        f"of samples. To list all problems: imagenet-prep verify {self.root}"
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
