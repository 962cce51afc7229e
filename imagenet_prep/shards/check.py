"""Compares one shard and its index with what the manifest says about them. Changes nothing."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from imagenet_prep.core.errors import BadImageError, DataDamagedError
from imagenet_prep.dataset import example, naming, schema, tfrecord
from imagenet_prep.dataset.levels import DECODE, MANIFEST
from imagenet_prep.dataset.manifest import Shard
from imagenet_prep.storage.store import Store

# A line of an index has two numbers of up to 20 digits. A longer line is damaged.
_MAX_LINE_BYTES = 64


@dataclass(frozen=True)
class Expectation:
    """What all shards of a data set have in common.

    Attributes:
      store: the data set.
      level: one of `levels.LEVELS`.
      wnids: by class index; empty if labels.txt itself is damaged.
      label_offset: stored label = class index + this.
      name_of_sha256: shard names by digest, to tell a swapped shard from a damaged one.
      prove_image: decodes (encoded, height, width); raises BadImageError.
      missing_features: keys that records lack or hold wrong, as the manifest says.
    """

    store: Store
    level: str
    wnids: Sequence[str]
    label_offset: int
    name_of_sha256: dict[str, str]
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
    if expectation.level == MANIFEST or len(sizes) < len(shard.files):
        return report
    try:
        with expectation.store.local_copies(sizes) as root:
            _check_content(shard, root / records.name, root / index.name, expectation, report)
    except OSError as error:
        report.problems.append(f"{shard.name}: cannot be read: {error.strerror}")
    return report


def _check_content(
    shard: Shard, path: Path, index: Path, expectation: Expectation, report: Report
) -> None:
    found = len(report.problems)
    lines = []
    with open(path, "rb") as stream:
        sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
        stream.seek(0)
        try:
            for record in tfrecord.read_records(stream, shard.name):
                size = len(record.payload) + tfrecord.FRAMING_BYTES
                lines.append(tfrecord.index_line(record.offset, size))
                if expectation.level == DECODE:
                    _check_example(record, shard, expectation, report)
        except DataDamagedError as error:
            report.problems.append(str(error))
    if sha256 != shard.sha256:
        other = expectation.name_of_sha256.get(sha256)
        if other is not None:
            report.problems.append(f"{shard.name}: holds the content of {other}; swapped")
        elif len(report.problems) == found:
            report.problems.append(
                f"{shard.name}: sha256 {sha256}, expected {shard.sha256}, though every record's "
                "CRC fits: another program wrote it"
            )
    elif len(lines) != shard.examples:
        report.problems.append(f"{shard.name}: {len(lines)} records, expected {shard.examples}")
    _check_index(shard, index, lines, report)


def _check_index(shard: Shard, index: Path, lines: Sequence[str], report: Report) -> None:
    with open(index, "rb") as stream:
        sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
        if sha256 == shard.index_sha256:
            return
        name = naming.index_name(shard.name)
        stream.seek(0)
        for number, expected in enumerate(lines):
            line = stream.readline(_MAX_LINE_BYTES).decode(errors="replace")
            if line and line != expected:
                report.problems.append(
                    f"{name}: record {number}: line {line.rstrip()!r}, the shard says "
                    f"{expected.rstrip()!r}"
                )
                return
    report.problems.append(f"{name}: sha256 {sha256}, expected {shard.index_sha256}")


def _check_example(
    record: tfrecord.Record, shard: Shard, expectation: Expectation, report: Report
) -> None:
    where = f"{shard.name}: record {record.number} at byte {record.offset:,}"
    try:
        image = example.decode(record.payload, expectation.missing_features)
        expectation.prove_image(image.encoded, image.height, image.width)
        class_index = image.stored_label - expectation.label_offset
        if not expectation.wnids:
            return
        if not 0 <= class_index < len(expectation.wnids):
            raise DataDamagedError(
                f"label {image.stored_label}, expected {expectation.label_offset} to "
                f"{len(expectation.wnids) - 1 + expectation.label_offset}"
            )
        report.examples_per_class[class_index] += 1
        known = schema.SYNSET not in expectation.missing_features
        if known and image.wnid != expectation.wnids[class_index]:
            raise DataDamagedError(
                f"label {image.stored_label} is {expectation.wnids[class_index]}, the record's "
                f"synset is {image.wnid}"
            )
    except (DataDamagedError, BadImageError) as error:
        report.problems.append(f"{where}: {error}")
