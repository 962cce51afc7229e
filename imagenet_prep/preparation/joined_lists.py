"""The image lists of a source split as one file with columns, and lists of bounding boxes.

Only the columns in use are in memory: 14 million images have 1.3 GB of lines, and 400 MB of
entries.

The boxes of a class are listed once from annotations, and stored in `.work`.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import tempfile
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import BinaryIO

import numpy as np

from imagenet_prep import engine
from imagenet_prep.core.small_files import MOST_LIST_BYTES
from imagenet_prep.core.terminal import counted
from imagenet_prep.dataset import keys, schema
from imagenet_prep.dataset.member import Boxes, Member, damaged_list, parse_members
from imagenet_prep.preparation.tasks import entries_name, member_list, unsynced
from imagenet_prep.shards import plan
from imagenet_prep.shards.plan import Array
from imagenet_prep.sources import boxes, source
from imagenet_prep.sources.source import IndexTask
from imagenet_prep.storage.local_file import storage_errors
from imagenet_prep.storage.store import Store


@dataclass(frozen=True)
class ReadBoxes:
    """Counts: annotations read, boxes read, and boxes dropped because their area is zero."""

    images: int
    boxes: int
    dropped: int


@dataclass
class BoxLookup:
    """Finds the boxes of a class in the lists in `folder`."""

    store: Store
    folder: str
    parts: dict[str, source.SourcePart]  # the sources of the boxes, by split
    num_bytes: int = 0  # total size of all lists
    _last: tuple[str, dict[str, Boxes]] = "", {}

    def of(self, split: str, wnid: str) -> dict[str, Boxes]:
        """Returns the boxes of one train class, or of all validation images, by image name."""
        name = _list_name(self.folder, split, wnid if split == schema.TRAIN else split)
        # All classes of validation share one list.
        if self._last[0] != name:
            exists = self.store.size(name) is not None
            lines = self.store.read(name, most=MOST_LIST_BYTES) if exists else b""
            self._last = name, boxes.parse(lines, self.store.where(name))
        return self._last[1]


def box_stage(
    annotations: boxes.Annotations, store: Store
) -> tuple[engine.Stage[boxes.BoxTask, ReadBoxes], BoxLookup]:
    """Returns the stage that reads annotations into lists, and a function that looks up boxes."""
    digest = annotations.digest
    folder = f"{schema.WORK}/boxes-{digest[:16]}/lists"
    work = partial(_read, store=store, folder=folder)
    stage = engine.Stage("boxes", digest, store, work, ReadBoxes)
    return stage, BoxLookup(store, folder, annotations.parts)


def _read(task: boxes.BoxTask, *, store: Store, folder: str) -> engine.Result[ReadBoxes]:
    """Writes annotations as JSON lines: one file per train class, one file for validation."""
    read = boxes.read(task)
    outputs = []
    for group, lines in read.lines.items():
        name = _list_name(folder, task.split, group)
        outputs.append(unsynced(store.temporary(), name, [lines]))
    return engine.Result(ReadBoxes(read.images, read.boxes, read.dropped), tuple(outputs))


def _list_name(folder: str, split: str, group: str) -> str:
    return f"{folder}/{split}/{group}.jsonl"


def read_boxes(
    annotations: boxes.Annotations | None,
    store: Store,
    workers: engine.Workers,
    *,
    quiet: bool,
    shared: engine.SharedRun | None = None,
) -> BoxLookup | None:
    """Reads annotations into lists in `.work`; returns a function that looks up their boxes."""
    if annotations is None:
        return None
    stage, lookup = box_stage(annotations, store)
    receipts = engine.run(stage, annotations.tasks, workers, quiet=quiet, shared=shared)
    if not quiet:
        lists = [receipt.content for receipt in receipts]
        annotated = counted(sum(of.images for of in lists), "annotation")
        print(
            f"boxes: {sum(of.boxes for of in lists):,} in {annotated}; dropped because they have "
            f"no area: {sum(of.dropped for of in lists):,}",
            file=sys.stderr,
        )
    files = itertools.chain.from_iterable(receipt.outputs for receipt in receipts)
    lookup.num_bytes = sum(file.num_bytes for file in files)
    return lookup


# Parse a list in parts: all 1.28 million members at once would take 730 MB.
_PARSED_BYTES = 1 << 20
_READ_ROWS = 1 << 16


@contextlib.contextmanager
def joined_lists(
    store: Store, folder: str, tasks: Sequence[IndexTask], num_classes: int, *, ranked: bool
) -> Iterator[JoinedLists]:
    """Yields the lists of these tasks in a stage's `folder`; raises DataDamagedError."""
    # Not in TMPDIR: the disk of the dataset has the space that `require_space_for_plan` found.
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
        expected = {simple.class_index for simple in task.simple_tasks}
        if None not in expected and not expected.issuperset(classes.tolist()):
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
