"""The image lists of a source split, joined into one temporary file, and their columns as arrays.

Only the columns in use are in memory: 14 million images have 1.3 GB of lines, and 400 MB of
entries.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import tempfile
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from typing import BinaryIO

import numpy as np

from imagenet_prep.dataset import keys
from imagenet_prep.dataset.member import Member, damaged_list, parse_members
from imagenet_prep.preparation.tasks import entries_name, member_list
from imagenet_prep.shards import plan
from imagenet_prep.shards.plan import Array
from imagenet_prep.sources.source import IndexTask
from imagenet_prep.storage.local_file import storage_errors
from imagenet_prep.storage.store import Store

# Parse a list in parts: all 1.28 million members at once would take 730 MB.
_PARSED_BYTES = 1 << 20
_READ_ROWS = 1 << 16


@contextlib.contextmanager
def joined_lists(
    store: Store, folder: str, tasks: Sequence[IndexTask], num_classes: int, *, ranked: bool
) -> Iterator[JoinedLists]:
    """Yields the lists of these tasks in a stage's `folder`; raises DataDamagedError."""
    # Not in TMPDIR: the disk of the dataset has the space that `check_plan` found.
    place = store.temporary().parent
    with (
        storage_errors("write", place),
        tempfile.TemporaryFile(dir=place) as lines,
        tempfile.TemporaryFile(dir=place) as entries,
    ):
        lists = JoinedLists(lines, entries, num_classes, ranked=ranked)
        names = ((member_list(folder, task), entries_name(folder, task)) for task in tasks)
        contents = store.read_each(itertools.chain.from_iterable(names), plan.MOST_BYTES)
        for task, data, packed in zip(tasks, contents, contents, strict=True):
            lists.append(task, data, packed)
        yield lists


class JoinedLists:
    """The lines and entries of several lists; a row is one line and its entry."""

    def __init__(
        self, lines: BinaryIO, entries: BinaryIO, num_classes: int, *, ranked: bool
    ) -> None:
        self._lines = lines
        self._entries = entries
        self._line_ends = [b",%d]\n" % index for index in range(num_classes)]
        self._dtype = plan.RANKED_ENTRY if ranked else plan.ENTRY
        self.tasks: list[IndexTask] = []
        self.num_rows: list[int] = []  # by task
        # A key and its class for each number of ILSVRC2012's validation images, by class: one
        # key per number, because ImageNet-C has each image 95 times.
        self.labelled: dict[tuple[int, int], str] = {}

    def append(self, task: IndexTask, data: bytes, packed: bytes) -> None:
        """Adds a list and its entries after checking that they agree."""
        if len(packed) % self._dtype.itemsize:
            raise damaged_list(f"the entries of {task.name} are incomplete")
        entries = np.frombuffer(packed, self._dtype)
        lines = data.splitlines(keepends=True)
        line_bytes = np.fromiter(map(len, lines), np.uint32, len(lines))
        if not np.array_equal(line_bytes, entries["line_bytes"]):
            raise damaged_list(f"the list of {task.name} does not match its entries")
        classes = entries["class_index"]
        if task.class_index is not None and (classes != task.class_index).any():
            raise damaged_list("it lists an image of a different class")
        if (classes >= len(self._line_ends)).any():
            raise damaged_list("it lists an image of an unknown class")
        # A line with the wrong class would be written with the label of this class.
        ends = (self._line_ends[index] for index in classes.tolist())
        if not all(map(bytes.endswith, lines, ends)):
            raise damaged_list("it lists an image of a different class")
        if keys.VALIDATION.encode() in data:
            self._note_labels(lines)
        self._lines.write(data)
        self._entries.write(packed)
        self.tasks.append(task)
        self.num_rows.append(len(lines))

    def _note_labels(self, lines: Sequence[bytes]) -> None:
        for member in _parsed(lines):
            number = keys.validation_number(member.key)
            if number is not None:
                self.labelled[member.class_index, number] = member.key

    def column(self, name: str) -> Array:
        """Returns a field of the entries of all rows."""
        column = np.empty(sum(self.num_rows), self._dtype[name])
        for start, entries in self._parts():
            column[start : start + len(entries)] = entries[name]
        return column

    def rows_with(self, name: str, values: Collection[int]) -> Array:
        """Returns the rows whose field has one of these values."""
        wanted = np.fromiter(values, np.uint64, len(values))
        found = [
            start + np.flatnonzero(np.isin(entries[name], wanted))
            for start, entries in self._parts()
        ]
        return np.concatenate(found)

    def num_bytes(self, is_chosen: Array) -> int:
        """Returns the total size of the images of the chosen rows."""
        sizes = (
            entries["size"][is_chosen[start : start + len(entries)]]
            for start, entries in self._parts()
        )
        return sum(int(part.sum(dtype=np.uint64)) for part in sizes)

    def _parts(self) -> Iterator[tuple[int, Array]]:
        self._entries.flush()
        self._entries.seek(0)
        for start in range(0, sum(self.num_rows), _READ_ROWS):
            packed = self._entries.read(_READ_ROWS * self._dtype.itemsize)
            yield start, np.frombuffer(packed, self._dtype)

    @property
    def num_per_class(self) -> list[int]:
        """The number of rows by class index."""
        counts = np.bincount(self.column("class_index"), minlength=len(self._line_ends))
        return [*map(int, counts)]

    @cached_property
    def _line_bytes(self) -> Array:
        return self.column("line_bytes")

    @cached_property
    def _starts(self) -> Array:
        """The offset of the line of each row."""
        # The lists of ImageNet-21K have 1.3 GB: 32 bits are enough, also for lines with boxes.
        is_small = self._lines.tell() < 1 << 31
        starts = np.cumsum(self._line_bytes, dtype=np.uint32 if is_small else np.uint64)
        np.subtract(starts, self._line_bytes, out=starts)
        return starts

    def read(self, rows: Array) -> list[bytes]:
        """Returns the lines of some rows."""
        # Mapping the file would be simpler, but its pages would count as memory of this process.
        self._lines.flush()
        file = self._lines.fileno()
        places = zip(self._line_bytes[rows].tolist(), self._starts[rows].tolist(), strict=True)
        return [os.pread(file, size, start) for size, start in places]

    def members(self, rows: Array) -> list[Member]:
        """Returns the members of some rows."""
        return [*_parsed(self.read(rows))]

    def replace(self, row: int, line: bytes) -> None:
        """Changes the line of a row."""
        self._starts[row] = self._lines.seek(0, os.SEEK_END)
        self._line_bytes[row] = self._lines.write(line)


def _parsed(lines: Sequence[bytes]) -> Iterator[Member]:
    part: list[bytes] = []
    num_bytes = 0
    for line in lines:
        part.append(line)
        num_bytes += len(line)
        if num_bytes >= _PARSED_BYTES:
            yield from parse_members(b"".join(part))
            part = []
            num_bytes = 0
    yield from parse_members(b"".join(part))
