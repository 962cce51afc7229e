"""Compares one shard and its index with what the manifest says about them. Changes nothing."""

from __future__ import annotations

import collections
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from imagenet_prep.core.errors import BadImageError, DataDamagedError
from imagenet_prep.dataset import example, schema, tfrecord
from imagenet_prep.dataset.manifest import Shard
from imagenet_prep.dataset.problems import GivenUpError, Problems
from imagenet_prep.storage.fetch import as_file
from imagenet_prep.storage.remote import CHUNK_BYTES
from imagenet_prep.storage.store import Store

# A line of an index has two numbers of up to 20 digits. A longer line is damaged.
_MAX_LINE_BYTES = 64


@dataclass(frozen=True)
class Expectation:
    """What all shards of a data set have in common.

    Attributes:
      store: the data set.
      level: one of `schema.LEVELS`.
      wnids: by class index; empty if labels.txt itself is damaged.
      label_offset: stored label = class index + this.
      name_of_sha256: shard names by digest, to tell a swapped shard from a damaged one.
      most_bytes: of the largest shard; of a longer file, the rest is not read.
      prove_image: decodes (encoded, height, width); raises BadImageError.
      missing_features: keys that records lack or hold wrong, as the manifest says.
    """

    store: Store
    level: str
    wnids: Sequence[str]
    label_offset: int
    name_of_sha256: dict[str, str]
    most_bytes: int
    prove_image: Callable[[bytes, int, int], None]
    missing_features: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Report:
    """What was found in one shard.

    Attributes:
      problems: one sentence each, naming shard, record and byte offset; empty if sound.
      examples_per_class: by class index; only at level "decode".
    """

    problems: list[str] = field(default_factory=list)
    examples_per_class: Counter[int] = field(default_factory=Counter)


def check_shard(shard: Shard, expectation: Expectation) -> Report:
    """Returns all that is wrong with a shard and its index."""
    report = Report()
    index, records = shard.files
    sizes = expectation.store.sizes([records.name, index.name])
    for file in (records, index):
        if (size := sizes.get(file.name)) is None:
            report.problems.append(f"{file.name}: missing")
        elif size != file.num_bytes:
            report.problems.append(f"{file.name}: {size:,} bytes, expected {file.num_bytes:,}")
    if expectation.level == schema.LEVEL_MANIFEST or len(sizes) < len(shard.files):
        return report
    try:
        with expectation.store.opened(index.name) as opened:
            lines = _IndexLines(opened, index.num_bytes)
            _check_records(shard, expectation, report, lines)
            if (problem := lines.problem(shard.index_sha256)) is not None:
                report.problems.append(f"{index.name}: {problem}")
    except OSError as error:
        report.problems.append(f"{shard.name}: cannot be read: {error.strerror}")
    return report


class _IndexLines:
    """The index of a shard, read beside it: a shard may have more records than memory holds."""

    def __init__(self, opened: BinaryIO, most: int) -> None:
        self._digest = hashlib.sha256()
        self._chunks = _hashed(opened, self._digest, most)
        self._lines = as_file(self._chunks)
        self._other = ""

    def compare(self, number: int, expected: str) -> None:
        """Compares the next line with what it must be, up to the first that is another."""
        if self._other:
            return
        line = self._lines.readline(_MAX_LINE_BYTES).decode(errors="replace")
        if line and line != expected:
            said = f"the shard says {expected.rstrip()!r}"
            try:
                offset, size = tfrecord.index_numbers(line)
                self._other = f"record {number}: line '{offset} {size}', {said}"
            except DataDamagedError as error:
                self._other = f"record {number}: {error}, {said}"

    def problem(self, sha256: str) -> str | None:
        """Returns what is wrong with an index that must have this sha256."""
        collections.deque(self._chunks, maxlen=0)
        if (found := self._digest.hexdigest()) == sha256:
            return None
        return self._other or f"sha256 {found}, expected {sha256}"


def _check_records(
    shard: Shard, expectation: Expectation, report: Report, index: _IndexLines
) -> None:
    """Reads a shard once, and its index beside it, up to the first damage or many problems."""
    problems, records = Problems(), 0
    damage = ""
    digest = hashlib.sha256()
    with expectation.store.opened(shard.name) as opened:
        chunks = _hashed(opened, digest, expectation.most_bytes)
        try:
            for record in tfrecord.read_records(as_file(chunks), shard.name):
                size = len(record.payload) + tfrecord.FRAMING_BYTES
                index.compare(record.number, tfrecord.index_line(record.offset, size))
                if records == shard.examples:
                    damage = f"{shard.name}: more than {records:,} records"
                    break
                records += 1
                if expectation.level != schema.LEVEL_DECODE:
                    continue
                try:
                    report.examples_per_class.update(_class_of(record.payload, expectation))
                except (DataDamagedError, BadImageError) as error:
                    where = f"{shard.name}: record {record.number} at byte {record.offset:,}"
                    problems.add(f"{where}: {error}")
        except GivenUpError:
            records = shard.examples  # as far as anybody has counted
        except DataDamagedError as error:
            damage = str(error)
        # The bytes behind the damage belong to the sha256, too.
        collections.deque(chunks, maxlen=0)
    found = [*problems.listed(shard.name), *filter(None, [damage])]
    report.problems += found
    if (sha256 := digest.hexdigest()) != shard.sha256:
        other = expectation.name_of_sha256.get(sha256)
        if other is not None:
            report.problems.append(f"{shard.name}: holds the content of {other}; swapped")
        elif not found:
            report.problems.append(
                f"{shard.name}: sha256 {sha256}, expected {shard.sha256}, though every record's "
                "CRC fits: another program wrote it"
            )
    elif records != shard.examples:
        report.problems.append(f"{shard.name}: {records} records, expected {shard.examples}")


def _hashed(opened: BinaryIO, digest: Any, most: int) -> Iterator[bytes]:
    """Yields a chunk more than `most` bytes of a file, which may claim far more; hashes them."""
    most += CHUNK_BYTES
    while most > 0 and (chunk := opened.read(min(most, CHUNK_BYTES))):
        digest.update(chunk)
        most -= len(chunk)
        yield chunk


def _class_of(payload: bytes, expectation: Expectation) -> list[int]:
    """Returns the class index of a proven example; none where the class list is damaged.

    Raises:
      DataDamagedError, BadImageError: its features, its image or its label are wrong.
    """
    image = example.decode(payload, expectation.missing_features)
    expectation.prove_image(image.encoded, image.height, image.width)
    if not (wnids := expectation.wnids):
        return []
    class_index = image.stored_label - expectation.label_offset
    if not 0 <= class_index < len(wnids):
        raise DataDamagedError(
            f"label {image.stored_label}, expected {expectation.label_offset} to "
            f"{len(wnids) - 1 + expectation.label_offset}"
        )
    known = schema.SYNSET not in expectation.missing_features
    if known and image.wnid != wnids[class_index]:
        raise DataDamagedError(
            f"label {image.stored_label} is {wnids[class_index]}, the record's synset is "
            f"{image.wnid}"
        )
    return [class_index]
