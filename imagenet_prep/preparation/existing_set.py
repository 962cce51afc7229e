"""The check of an existing set: reads all its shards, lists what is wrong and what is missing.

Nothing is changed. A wrong CRC, label, key or JPEG is a problem. What readers can do without
(words, boxes, true sizes) is only missing, and a manifest can declare it.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from imagenet_prep import engine
from imagenet_prep.codec.transform import is_rgb, keep
from imagenet_prep.core import canonical
from imagenet_prep.core.errors import BadImageError, DataDamagedError
from imagenet_prep.dataset import example, schema, tfrecord
from imagenet_prep.dataset.keys import VALIDATION_NAME
from imagenet_prep.dataset.member import Member
from imagenet_prep.dataset.problems import GivenUpError, Problems
from imagenet_prep.shards.commit import num_per_class
from imagenet_prep.sources import editions, tfrecords
from imagenet_prep.sources.labelling import Labelling, LabelUse, labelling_of
from imagenet_prep.sources.labels import ClassList, check_validation
from imagenet_prep.sources.shard_files import ShardFile, TfrecordSet
from imagenet_prep.sources.tfrecords import Entry
from imagenet_prep.storage.store import Store

# The manifest states the worst that any record has for a key.
_WORST_FIRST = (example.ABSENT, example.WRONG, example.EMPTY)

# What receipts hold, as for `canonical.fits`. A use is (name, text, label, examples, where).
_LABELS = {"uses": [[str, str, int, int, str]], "damage": [str], "examples": int}
_CHECKED = {
    **dict.fromkeys(("shard", "sha256"), str),
    **dict.fromkeys(("examples", "num_bytes", "not_rgb", "max_height", "max_width"), int),
    "record_bytes": [int],
    "num_per_class": {int: int},
    "validation": {int: int},
    "lacks": {str: {str: int}},
    "problems": [str],
}


def _list_labels(shard: ShardFile, *, store: Store) -> engine.Result:
    """Lists the classes and labels of a shard, if only the whole set shows what they mean."""
    damage = Problems()
    uses = tfrecords.label_uses(store, shard, damage)
    examples = sum(use.examples for use in uses)
    return engine.Result({"uses": uses, "damage": damage.listed(shard.file), "examples": examples})


@dataclass
class _Report:
    """What the receipt of a shard says of its records."""

    record_bytes: list[int] = field(default_factory=list)
    num_per_class: Counter[str] = field(default_factory=Counter)
    validation: dict[str, int] = field(default_factory=dict)
    not_rgb: int = 0
    max_height: int = 0
    max_width: int = 0
    lacks: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))


def _check_shard(shard: ShardFile, *, store: Store, labelling: Labelling) -> engine.Result:
    """Returns what a manifest says about a shard, its record sizes, problems and gaps."""
    report, problems = _Report(), Problems()
    sha256 = hashlib.sha256()

    with contextlib.suppress(GivenUpError):
        for record, entry in tfrecords.entries(store, shard, problems.add, [sha256]):
            report.record_bytes.append(len(record.payload) + tfrecord.FRAMING_BYTES)
            try:
                member = tfrecords.member(shard, record, entry, labelling)
                count_member(member, report.num_per_class, report.validation)
            except DataDamagedError as error:
                problems.add(error)
                continue
            try:
                _check_record(record.payload, entry, report)
            except (BadImageError, DataDamagedError) as error:
                problems.add(f"{tfrecords.where(shard, record)}: {error}")
    return engine.Result(
        {
            **vars(report),
            "problems": problems.listed(shard.file),
            "shard": shard.name,
            "examples": len(report.record_bytes),
            "num_bytes": shard.num_bytes,
            "sha256": "" if problems else sha256.hexdigest(),
        }
    )


def _check_record(payload: bytes, entry: Entry, report: _Report) -> None:
    """Adds what one record lacks; raises BadImageError or DataDamagedError for a damaged one."""
    features = entry.features
    image = keep(entry.encoded)
    report.max_height = max(report.max_height, image.height)
    report.max_width = max(report.max_width, image.width)
    missing_features = {key: example.ABSENT for key in schema.ALL_KEYS if key not in features}
    true = example.CONSTANTS | {schema.HEIGHT: image.height, schema.WIDTH: image.width}
    for key in true:
        if key in features and features[key] != (true[key],):
            missing_features[key] = example.WRONG
    if not is_rgb(entry.encoded):
        report.not_rgb += 1
        missing_features.setdefault(schema.COLORSPACE, example.WRONG)
    if features.get(schema.TEXT) == (b"",):
        missing_features[schema.TEXT] = example.EMPTY
    if schema.ENCODED in features:
        example.decode(payload, missing_features)
    for key, kind in missing_features.items():
        report.lacks[key][kind] += 1


def settle_labels(
    found: TfrecordSet,
    splits: Sequence[str],
    store: Store,
    workers: engine.Workers,
    *,
    known: ClassList | None = None,
    quiet: bool = False,
) -> Labelling:
    """Returns what the labels of a set mean: from a few shards, or from all if that is not enough.

    Args:
      found, splits: what to read.
      store: for receipts.
      workers: how much runs at once.
      known: a class list to prefer if it fits.
      quiet: show no progress.

    Raises:
      DataDamagedError: the labels contradict each other, or records are damaged.
    """
    labelling = tfrecords.known_labelling(found, splits)
    if labelling is not None:
        return labelling
    shards = [shard for split in splits for shard in found.splits[split]]
    work = partial(_list_labels, store=found.store)
    stage = engine.Stage("labels", identity(shards), store, work, _LABELS)
    receipts = engine.run(stage, shards, workers, title="labels", quiet=quiet)
    if damage := [line for receipt in receipts for line in receipt["damage"]]:
        where = found.store.where()
        damage.insert(0, f"{where}: {len(damage)} damaged; fetch these shards again:")
        raise DataDamagedError("\n".join(damage))
    uses = [LabelUse(*use) for receipt in receipts for use in receipt["uses"]]
    return labelling_of(uses, known)


def identity(shards: Sequence[ShardFile]) -> str:
    """Returns a digest that changes when one of the files is replaced."""
    return canonical.digest([[s.name, *s.stat[:2]] for s in shards])


def count_member(member: Member, num_per_class: Counter[str], validation: dict[str, int]) -> None:
    """Counts a member by class; of a validation image, notes the class by number in its name."""
    num_per_class[str(member.class_index)] += 1
    if match := VALIDATION_NAME.match(member.key):
        validation[str(int(match[1]))] = member.class_index


def check_validation_labels(
    receipts: Sequence[dict[str, Any]], classes: ClassList, store: Store
) -> None:
    """Compares the 50,000 validation labels with the known ones, if all are there.

    Raises:
      SourceError: they differ.
    """
    noted = {int(n): i for receipt in receipts for n, i in receipt["validation"].items()}
    check_validation(classes, noted, store.where())


@dataclass(frozen=True)
class ExistingSet:
    """The result of the check.

    Attributes:
      labelling: what its labels mean.
      receipts: of its shards, by split, in order.
      problems: one sentence each; empty if the set can be adopted.
    """

    labelling: Labelling
    receipts: dict[str, list[dict[str, Any]]]
    problems: list[str]

    @property
    def missing_features(self) -> dict[str, str]:
        """Keys that are missing, wrong or empty in some records; the worst of all records."""
        return {
            key: next(kind for kind in _WORST_FIRST if kind in kinds)
            for key, kinds in sorted(self.lack_counts.items())
        }

    @property
    def lack_counts(self) -> dict[str, Counter[str]]:
        """How many records lack a key, by key and kind."""
        counts: dict[str, Counter[str]] = {}
        for receipt in self._all():
            for key, kinds in receipt["lacks"].items():
                counts.setdefault(key, Counter()).update(kinds)
        return counts

    @property
    def count_problems(self) -> list[str]:
        """How counts differ from ILSVRC2012's, one sentence each; empty for other editions."""
        if self.edition:
            return []
        problems = [
            problem
            for split, counts in self._counts.items()
            for problem in editions.ILSVRC2012.problems(split, self.labelling.classes, counts)
        ]
        return list(dict.fromkeys(problems))

    @property
    def edition(self) -> str:
        """The edition of ImageNet, as for `editions.recognised`."""
        totals = {split: sum(counts) for split, counts in self._counts.items()}
        return editions.recognised(self.labelling.classes, totals)

    @property
    def _counts(self) -> dict[str, list[int]]:
        return {
            split: num_per_class(receipts, len(self.labelling.classes.wnids))
            for split, receipts in self.receipts.items()
        }

    @property
    def not_rgb(self) -> int:
        """How many images are grey or CMYK JPEGs."""
        return sum(receipt["not_rgb"] for receipt in self._all())

    @property
    def examples(self) -> int:
        """Records over all shards."""
        return sum(receipt["examples"] for receipt in self._all())

    def _all(self) -> list[dict[str, Any]]:
        return [receipt for receipts in self.receipts.values() for receipt in receipts]


def check_existing_set(
    found: TfrecordSet, store: Store, workers: engine.Workers, *, quiet: bool
) -> ExistingSet:
    """Reads all shards of a set.

    Args:
      found: the set.
      store: for receipts, so that the next run need not read again what a killed one has read.
      workers: how much runs at once.
      quiet: show no progress.

    Raises:
      DataDamagedError: its labels contradict each other.
    """
    splits = tuple(found.splits)
    labelling = settle_labels(found, splits, store, workers, quiet=quiet)
    shards = [shard for split in splits for shard in found.splits[split]]
    digest = canonical.digest(
        [labelling.offset, labelling.classes.render().decode(), identity(shards)]
    )
    # "survey" is the name that earlier versions gave to these receipts on the disk.
    work = partial(_check_shard, store=found.store, labelling=labelling)
    stage = engine.Stage("survey", digest, store, work, _CHECKED)
    receipts = engine.run(stage, shards, workers, title="check", quiet=quiet)
    problems = [problem for receipt in receipts for problem in receipt["problems"]]
    problems += _copies(shards, receipts)
    try:
        check_validation_labels(receipts, labelling.classes, found.store)
    except DataDamagedError as error:
        problems.append(str(error))
    by_shard = {receipt["shard"]: receipt for receipt in receipts}
    return ExistingSet(
        labelling,
        {split: [by_shard[s.name] for s in found.splits[split]] for split in splits},
        problems,
    )


def _copies(shards: Sequence[ShardFile], receipts: Sequence[dict[str, Any]]) -> list[str]:
    """Names shards with the same bytes: one of them was copied over another, which is lost."""
    first: dict[str, str] = {}
    problems = []
    for shard, receipt in zip(shards, receipts, strict=True):
        name = shard.file
        if receipt["sha256"] and first.setdefault(receipt["sha256"], name) != name:
            problems.append(f"{name}: holds the same bytes as {first[receipt['sha256']]}")
    return problems
