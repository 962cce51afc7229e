"""Compares one shard, its index and its table of samples with the manifest."""

from __future__ import annotations

import collections
import contextlib
import hashlib
import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO

from imagenet_prep.core.errors import DataDamagedError, StoreError
from imagenet_prep.dataset import example, jpeg, keys, record_files, samples, schema
from imagenet_prep.dataset.example import GivenUpError, ImageExample, ShardProblems
from imagenet_prep.dataset.manifest import DatasetFile, Shard
from imagenet_prep.storage.remote import as_file, hashed
from imagenet_prep.storage.store import Readable

# A line of an index has two numbers of up to 20 digits. A longer line is damaged.
_MAX_LINE_BYTES = 64


@dataclass(frozen=True)
class Expectation:
    """The properties of a dataset with which each shard is compared; see also `Manifest`.

    Attributes:
      wnids: by class index; empty if labels.txt is damaged.
      name_of_sha256: shard names by digest, to distinguish swapped shards from damaged shards.
      prove_image: called with (encoded, height, width). Raises BadImageError if the image does not
        decode to this size; returns whether its EXIF orientation is above 1.
    """

    store: Readable
    level: str  # schema.LEVEL_CRC or LEVEL_DECODE
    wnids: Sequence[str]
    label_offset: int
    name_of_sha256: dict[str, str]
    most_bytes: int  # size of the largest shard; no more bytes of a file are read
    prove_image: Callable[[bytes, int, int], bool]
    lacks: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Report:
    """The result of checking one shard.

    Attributes:
      problems: a sentence for each problem, with shard, record and byte offset.
      unreadable: a sentence if the storage failed; the shard may be sound.
      examples_per_class: only counted at level "decode".
      oriented: number of images with an EXIF orientation above 1; only counted at level "decode".
    """

    shard: str
    examples: int
    problems: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    examples_per_class: Counter[int] = field(default_factory=Counter)
    num_bytes: int = 0  # bytes read
    oriented: int = 0


def size_problems(shard: Shard, sizes: Mapping[str, int]) -> list[str]:
    """Returns a sentence for each file of a shard that is missing or has the wrong size.

    `sizes` has the sizes of the existing files, by name.
    """
    problems = []
    for file in reversed(shard.files):
        size = sizes.get(file.name)
        if size is None:
            problems.append(f"{file.name}: missing")
        elif size != file.num_bytes:
            problems.append(f"{file.name}: {size:,} bytes, expected {file.num_bytes:,}")
    return problems


def check_shard(shard: Shard, expectation: Expectation) -> Report:
    """Checks a shard, its index and its table of samples; returns the problems and the counts."""
    report = Report(shard.name, shard.examples)
    sizes = expectation.store.sizes(file.name for file in shard.files)
    report.problems += size_problems(shard, sizes)
    if len(sizes) < len(shard.files):
        return report
    store = expectation.store
    report.num_bytes = sum(sizes.values())
    try:
        with contextlib.ExitStack() as opened:
            index = _Index(shard.index, opened.enter_context(store.open_file(shard.index.name)))
            rows = None
            if shard.samples is not None:
                stream = opened.enter_context(store.open_file(shard.samples.name))
                rows = _Rows(shard.samples, stream)
            _check_records(shard, expectation, report, index, rows)
            report.problems += [*index.problems(), *(rows.problems() if rows else ())]
    except StoreError as error:
        # The command gives this advice once, for all shards.
        reason = str(error).removesuffix(error.remedy).rstrip()
        report.unreadable.append(f"{shard.name}: {reason}")
    return report


class _Beside:
    """The index or the table of a shard, read line by line because it may not fit in memory."""

    def __init__(self, file: DatasetFile, opened: BinaryIO) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self._chunks = hashed(opened, [self._digest], file.num_bytes)
        self._lines = as_file(self._chunks)
        self._difference = ""

    def problems(self) -> list[str]:
        """Returns the first difference if the sha256 of the file differs from the manifest."""
        collections.deque(self._chunks, maxlen=0)
        actual = self._digest.hexdigest()
        expected = self._file.sha256
        difference = self._difference or f"sha256 {actual}, expected {expected}"
        return [] if actual == expected else [f"{self._file.name}: {difference}"]


class _Index(_Beside):
    def compare(self, number: int, expected: str) -> None:
        """Compares the next line with the expected line, unless an earlier line differed."""
        if self._difference:
            return
        line = self._lines.readline(_MAX_LINE_BYTES).decode(errors="replace")
        if line and line != expected:
            try:
                offset, size = record_files.index_numbers(line)
                actual = f"line '{offset} {size}'"
            except DataDamagedError as error:
                actual = str(error)
            self._difference = f"record {number}: {actual}, but the shard has {expected.rstrip()!r}"


class _Rows(_Beside):
    """The table of samples of a shard; its lines are only compared at level "decode"."""

    def __init__(self, file: DatasetFile, opened: BinaryIO) -> None:
        super().__init__(file, opened)
        self._rows = samples.parse(samples.read_lines(self._lines), "its table")
        self._next = 0

    def compare(self, number: int, image: ImageExample, names: Sequence[str], index: int) -> None:
        """Compares a record's table line with its image and class, and the key with `names`.

        The class and the number in a key are not compared: `amend` moves an image to a different
        class, and `adopt` adds numbers.
        """
        if self._difference:
            return
        try:
            # Skip the lines of damaged records.
            row = next(itertools.islice(self._rows, number - self._next, None), None)
            self._next = number + 1
        except DataDamagedError as error:
            self._difference = str(error)
            return
        sha256 = hashlib.sha256(image.encoded).hexdigest()
        expected = index, len(image.encoded), image.width, image.height, sha256
        if row is None or not _is_called(row.key, names) or row[1:6] != expected:
            self._difference = f"record {number}: the image, key or label differs from this table"

    def problems(self) -> list[str]:
        """Returns the first difference, even if the sha256 matches the manifest."""
        if self._difference:
            return [f"{self._file.name}: {self._difference}"]
        return super().problems()


def _is_called(key: str, names: Sequence[str]) -> bool:
    name = keys.name_of(key)
    return name in names or keys.without_number(name) in names


def _check_records(
    shard: Shard,
    expectation: Expectation,
    report: Report,
    index: _Index,
    rows: _Rows | None,
) -> None:
    """Reads a shard, its index and its table once; stops at broken framing or too many problems."""
    problems = ShardProblems()
    records = 0
    damage = ""
    digest = hashlib.sha256()

    def check(record: record_files.Record) -> None:
        if expectation.level == schema.LEVEL_DECODE:
            image, class_index = _check_example(record.payload, expectation, report)
            if class_index is None:
                return
            # The record's file name is the path below the class folder, or a full path.
            split = shard.name.partition("-")[0]
            wnid = expectation.wnids[class_index]
            names = image.filename, keys.below_class(image.filename, wnid)
            if rows is not None:
                rows.compare(record.number, image, names, class_index)
            elif schema.FILENAME not in expectation.lacks:
                problem = keys.problem(keys.key_of(split, wnid, image.filename))
                if problem is not None:
                    raise DataDamagedError(problem)

    with expectation.store.open_file(shard.name) as opened:
        chunks = hashed(opened, [digest], expectation.most_bytes)
        try:
            for record, _ in record_files.check_records(
                as_file(chunks), shard.name, check, problems.add, after_damage=False
            ):
                size = len(record.payload) + record_files.FRAMING_BYTES
                index.compare(record.number, record_files.index_line(record.offset, size))
                if records == shard.examples:
                    damage = f"{shard.name}: more than {records:,} records"
                    break
                records += 1
        except GivenUpError:
            records = shard.examples  # the remaining records are not counted
        except DataDamagedError as error:
            damage = str(error)
        # The sha256 includes the bytes after the damage.
        collections.deque(chunks, maxlen=0)
    in_records = [*problems.listed(shard.name), *filter(None, [damage])]
    report.problems += in_records
    sha256 = digest.hexdigest()
    if sha256 != shard.sha256:
        swapped = expectation.name_of_sha256.get(sha256)
        if swapped is not None:
            report.problems.append(f"{shard.name}: contains the bytes of {swapped}")
        elif not in_records:
            report.problems.append(
                f"{shard.name}: sha256 {sha256}, expected {shard.sha256}, although the CRC of "
                "every record is right: a different program wrote it"
            )
    elif records != shard.examples:
        report.problems.append(f"{shard.name}: {records} records, expected {shard.examples}")


def _check_example(
    payload: bytes, expectation: Expectation, report: Report
) -> tuple[ImageExample, int | None]:
    """Checks and counts an example; returns it with its class index (None without `wnids`)."""
    image = example.decode(payload, expectation.lacks)
    report.oriented += expectation.prove_image(image.encoded, image.height, image.width)
    if {schema.HEIGHT, schema.WIDTH} & expectation.lacks.keys():
        frame = jpeg.refuse_bombs(image.encoded)
        assert frame is not None  # `prove_image` has decoded it
        image = image._replace(height=frame.height, width=frame.width)
    wnids = expectation.wnids
    if not wnids:
        return image, None
    class_index = image.stored_label - expectation.label_offset
    if not 0 <= class_index < len(wnids):
        raise DataDamagedError(
            f"label {image.stored_label}, expected {expectation.label_offset} to "
            f"{len(wnids) - 1 + expectation.label_offset}"
        )
    wnid = wnids[class_index]
    if schema.SYNSET not in expectation.lacks and image.wnid != wnid:
        raise DataDamagedError(
            f"label {image.stored_label} is {wnid}, the record's synset is {image.wnid}"
        )
    report.examples_per_class[class_index] += 1
    return image, class_index
