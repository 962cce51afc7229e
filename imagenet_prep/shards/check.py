"""Compares one shard and its index with what the manifest says about them. Changes nothing."""

from __future__ import annotations

import collections
import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from imagenet_prep.core.errors import BadImageError, DataDamagedError
from imagenet_prep.dataset import example, schema, tfrecord
from imagenet_prep.dataset.manifest import Shard
from imagenet_prep.storage.fetch import as_file, hashed
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
    if expectation.level == schema.LEVEL_MANIFEST or len(sizes) < len(shard.files):
        return report
    try:
        lines = _check_records(shard, expectation, report)
        _check_index(shard, index.name, expectation.store, lines, report)
    except OSError as error:
        report.problems.append(f"{shard.name}: cannot be read: {error.strerror}")
    return report


def _check_records(shard: Shard, expectation: Expectation, report: Report) -> list[str]:
    """Reads a shard once; returns the lines that its index must have, up to the first damage."""
    found = len(report.problems)
    lines = []
    digest = hashlib.sha256()
    with expectation.store.opened(shard.name) as opened:
        chunks = hashed(opened, [digest])
        try:
            for record in tfrecord.read_records(as_file(chunks), shard.name):
                size = len(record.payload) + tfrecord.FRAMING_BYTES
                lines.append(tfrecord.index_line(record.offset, size))
                if expectation.level == schema.LEVEL_DECODE:
                    _check_example(record, shard, expectation, report)
        except DataDamagedError as error:
            report.problems.append(str(error))
        # What lies behind the damage belongs to the sha256 too.
        collections.deque(chunks, maxlen=0)
    if (sha256 := digest.hexdigest()) != shard.sha256:
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
    return lines


def _check_index(
    shard: Shard, name: str, store: Store, lines: Sequence[str], report: Report
) -> None:
    digest = hashlib.sha256()
    with store.opened(name) as opened:
        collections.deque(hashed(opened, [digest]), maxlen=0)
    if (sha256 := digest.hexdigest()) == shard.index_sha256:
        return
    with store.opened(name) as stream:
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
