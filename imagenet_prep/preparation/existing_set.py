"""Checks an existing set of shards, and gives unique keys to records of other programs.

`check_existing_set` reads the shards completely, and lists errors and missing features. It does not
change the shards. A wrong CRC, label, key or JPEG is an error. Readers do not need every feature:
missing words, boxes or image sizes are only listed in the manifest.

`numbered` returns unique keys, within a split, for records that a different program wrote. If
records have equal keys, the first keeps the key. The keys of later records get a number before the
file extension: dog/3.jpg, dog/3~2.jpg, dog/3~3.jpg. If existing keys contain tildes, new keys get
one tilde more than the longest run of tildes in existing keys, so no new key exists yet.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from imagenet_prep import engine
from imagenet_prep.codec.transform import is_rgb, keep
from imagenet_prep.core import strict_json
from imagenet_prep.core.errors import DataDamagedError
from imagenet_prep.core.terminal import counted
from imagenet_prep.dataset import class_list, example, keys, record_files, samples, schema
from imagenet_prep.dataset.class_list import ClassList
from imagenet_prep.dataset.example import GivenUpError, ShardProblems
from imagenet_prep.dataset.member import Member
from imagenet_prep.dataset.samples import KEPT, Sample, SamplesWriter
from imagenet_prep.shards import plan
from imagenet_prep.shards.commit import num_per_class
from imagenet_prep.shards.sorted_tables import SortedRuns, side_by_side
from imagenet_prep.shards.writer import WrittenShard
from imagenet_prep.sources import shard_files
from imagenet_prep.sources.labels import check_validation
from imagenet_prep.sources.shard_files import (
    Labelling,
    LabelUse,
    RecordContent,
    ShardFile,
    TfrecordSet,
    labelling_of,
)
from imagenet_prep.storage import scratch
from imagenet_prep.storage.local_file import new_file, removed_on_failure, storage_errors
from imagenet_prep.storage.store import Store

_TILDES = re.compile("~+")


def numbered(store: Store, folder: str, tables: Sequence[str]) -> dict[str, dict[int, str]]:
    """Returns {table: {record number: new key}} for a split; `tables` are in shard order."""
    longest = 0
    new_keys = defaultdict[str, dict[int, str]](dict)

    def entries() -> Iterator[bytes]:
        nonlocal longest
        for number, name in enumerate(tables):
            lines = _lines(store, f"{folder}/{name}")
            for record, (_, key, _) in enumerate(samples.heads(lines, name)):
                if "~" in key:
                    longest = max(longest, *map(len, _TILDES.findall(key)))
                yield b"%b\0%05d%09d\n" % (key.encode(), number, record)

    with scratch.temporary_folder() as place:
        runs = SortedRuns(place / "keys")
        runs.write(entries())
        for (of_range,) in side_by_side([runs]):
            for key, group in itertools.groupby(of_range, lambda entry: entry.partition(b"\0")[0]):
                for number, entry in enumerate(itertools.islice(group, 1, None), start=2):
                    at = entry[len(key) + 1 :]
                    new = keys.numbered(key.decode(), number, "~" * (longest + 1))
                    problem = keys.problem(new)
                    if problem:
                        raise DataDamagedError(f"{store.where()}: {new[:80]!r}: {problem}")
                    new_keys[tables[int(at[:5])]][int(at[5:])] = new
    return dict(new_keys)


def renamed_keys(store: Store, table: str, new: Mapping[int, str]) -> tuple[bytes, str]:
    """Copies a table; `new` maps record numbers to new keys. Returns the copy and its sha256."""
    file = io.BytesIO()
    copy = SamplesWriter(file)
    for record, sample in enumerate(samples.parse(_lines(store, table), table)):
        copy.append(sample._replace(key=new.get(record, sample.key)))
    return file.getvalue(), copy.sha256


def _lines(store: Store, table: str) -> Iterator[bytes]:
    return samples.read_lines(io.BytesIO(store.read(table, most=plan.MOST_BYTES)))


# Records may lack a key in different ways. The manifest states the first of these that occurs.
_WORST_FIRST = (schema.ABSENT, schema.WRONG, schema.EMPTY)


@dataclass(frozen=True)
class _ListedLabels:
    uses: list[LabelUse]
    damage: list[str]
    examples: int


@dataclass(frozen=True, kw_only=True)
class CheckedShard(WrittenShard):
    """The receipt content of a checked shard: the fields of `WrittenShard`, and the problems."""

    lacks: dict[str, Counter[str]]  # numbers of records that lack a key, by key and kind
    refused: int = 0  # number of images whose header Pillow or DALI refuses
    problems: list[str]  # sentences


@dataclass
class Counts:
    """The counts of a shard while it is read; see `WrittenShard`."""

    num_per_class: Counter[int] = field(default_factory=Counter)
    validation: dict[int, int] = field(default_factory=dict)
    not_rgb: int = 0

    def add(self, member: Member) -> None:
        """Counts a member by class, and records the class of a validation image."""
        self.num_per_class[member.class_index] += 1
        number = keys.validation_number(member.key)
        if number is not None:
            self.validation[number] = member.class_index


@dataclass
class _Checked(Counts):
    """The counts of a shard while it is checked; see `CheckedShard`."""

    examples: int = 0
    max_height: int = 0
    max_width: int = 0
    refused: int = 0
    lacks: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))


def _list_labels(shard: ShardFile, *, store: Store) -> engine.Result[_ListedLabels]:
    """Lists the labels of a shard, from which `settle_labels` finds their meaning."""
    damage = ShardProblems()
    uses = shard_files.label_uses(store, shard, damage)
    examples = sum(use.examples for use in uses)
    return engine.Result(_ListedLabels(uses, damage.listed(shard.file), examples))


def _check_shard(
    shard: ShardFile,
    *,
    store: Store,
    out: Store,
    tables: str,
    labelling: Labelling,
    has_tables: bool,
) -> engine.Result[CheckedShard]:
    counts = _Checked()
    lines: list[str] = []
    sha256 = hashlib.sha256()
    problems = ShardProblems()
    rows = shard_files.rows_of(store, shard) if has_tables else None

    def look(record: record_files.Record) -> Sample:
        entry = shard_files.entry_of(shard, record)
        counts.examples += 1
        member = shard_files.member(shard, record, entry, labelling, rows)
        counts.add(member)
        return _row(record.payload, entry, member, counts)

    table_path = out.temporary()
    index_path = out.temporary()
    with removed_on_failure(table_path, index_path), storage_errors("write", table_path):
        with new_file(table_path, durable=False) as file, contextlib.suppress(GivenUpError):
            table = SamplesWriter(file)
            for record, sample in shard_files.check(store, shard, look, problems.add, [sha256]):
                size = len(record.payload) + record_files.FRAMING_BYTES
                lines.append(record_files.index_line(record.offset, size))
                table.append(sample)
        index = "".join(lines).encode()
        with new_file(index_path, durable=False) as file:
            file.write(index)
    checked = CheckedShard(
        shard=shard.name,
        num_bytes=shard.num_bytes,
        sha256="" if problems else sha256.hexdigest(),
        index_bytes=len(index),
        index_sha256=hashlib.sha256(index).hexdigest(),
        samples_bytes=table.num_bytes,
        samples_sha256=table.sha256,
        source_bytes=0,
        resized=0,
        transform_s=0.0,
        incidents=[],
        origins=[],
        problems=problems.listed(shard.file),
        **vars(counts),
    )
    index_name, table_name = schema.beside(shard.name)
    outputs = (
        engine.TaskOutput(index_path, f"{tables}/{index_name}", checked.index_sha256),
        engine.TaskOutput(table_path, f"{tables}/{table_name}", checked.samples_sha256),
    )
    return engine.Result(checked, outputs)


def _row(payload: bytes, entry: RecordContent, member: Member, counts: _Checked) -> Sample:
    """Counts the keys that a record lacks; returns the record's row for the table of samples."""
    features = entry.features
    image = keep(entry.encoded)
    counts.refused += image.repair is not None
    counts.max_height = max(counts.max_height, image.height)
    counts.max_width = max(counts.max_width, image.width)
    lacks = {key: schema.ABSENT for key in schema.ALL_KEYS if key not in features}
    true = example.CONSTANTS | {schema.HEIGHT: image.height, schema.WIDTH: image.width}
    for key in true:
        if key in features and features[key] != (true[key],):
            lacks[key] = schema.WRONG
    if not is_rgb(entry.encoded):
        counts.not_rgb += 1
        lacks.setdefault(schema.COLORSPACE, schema.WRONG)
    if features.get(schema.TEXT) == (b"",):
        lacks[schema.TEXT] = schema.EMPTY
    if schema.ENCODED in features:
        example.decode(payload, lacks)
    for key, kind in lacks.items():
        counts.lacks[key][kind] += 1
    digest = hashlib.sha256(entry.encoded).hexdigest()
    stored = len(entry.encoded), image.width, image.height, digest
    return Sample(member.key, member.class_index, *stored, KEPT, "", *stored)


def settle_labels(
    source: TfrecordSet,
    store: Store,
    workers: engine.Workers,
    *,
    known: ClassList | None = None,
    quiet: bool = False,
) -> Labelling:
    """Returns the meaning of the labels; reads all shards only if a few are not enough.

    These are the shards of all splits, since one split may lack a class. A `known` class list is
    preferred if it fits.
    """
    labelling = shard_files.known_labelling(source)
    if labelling is not None:
        return labelling
    shards = [*itertools.chain.from_iterable(source.splits.values())]
    work = partial(_list_labels, store=source.store)
    stage = engine.Stage("labels", identity(shards), store, work, _ListedLabels)
    receipts = engine.run(stage, shards, workers, quiet=quiet)
    listed = [receipt.content for receipt in receipts]
    damage = [*itertools.chain.from_iterable(shard.damage for shard in listed)]
    if damage:
        problems = counted(len(damage), "problem")
        damage.append(f"{source.store.where()}: {problems}. Download the damaged shards again.")
        raise DataDamagedError("\n".join(damage))
    uses = itertools.chain.from_iterable(shard.uses for shard in listed)
    return labelling_of([*uses], known)


def identity(shards: Sequence[ShardFile]) -> str:
    """Returns a digest that changes if one of these shards is replaced."""
    files = [[s.name, *s.stat[:2], *sorted(s.keys.items())] for s in shards]
    return strict_json.digest(files)


def check_validation_labels(
    shards: Collection[WrittenShard], classes: ClassList, store: Store
) -> None:
    """Compares the labels of ILSVRC2012's validation images with the published ones.

    They are compared only if most of their published classes have records, because tests of other
    programs number images of a few classes in the same way.
    """
    class_of: dict[str, int] = {}
    with_records: set[str] = set()
    for shard in shards:
        class_of |= {keys.validation_stem(number): i for number, i in shard.validation.items()}
        with_records.update(classes.wnids[index] for index in shard.num_per_class)
    advice = "The labels of this dataset are wrong: prepare it again from the archives."
    check_validation(classes, class_of, store.where(), advice, with_records)


@dataclass(frozen=True)
class ExistingSet:
    """The result of the check. The set can be adopted if `problems` is empty."""

    labelling: Labelling
    shards: dict[str, list[CheckedShard]]
    problems: list[str]
    tables: str  # folder of the new indexes and tables
    # New keys of records that repeat an earlier key, by table and record number.
    renamed: dict[str, dict[int, str]]

    @property
    def lacks(self) -> dict[str, str]:
        """The keys that some records lack, each with its worst case: absent, wrong or empty."""
        return {
            key: next(kind for kind in _WORST_FIRST if kind in kinds)
            for key, kinds in sorted(self.lack_counts.items())
        }

    @property
    def lack_counts(self) -> dict[str, Counter[str]]:
        """The number of records that lack a key, by key and kind (absent, wrong or empty)."""
        counts: dict[str, Counter[str]] = {}
        for shard in self.all_shards:
            for key, kinds in shard.lacks.items():
                counts.setdefault(key, Counter()).update(kinds)
        return counts

    @property
    def count_problems(self) -> list[str]:
        """Differences from ILSVRC2012's counts, one sentence each.

        Empty for known editions, and for classes that are not named by WNIDs.
        """
        if self.edition or not all(map(keys.WNID.fullmatch, self.labelling.classes.wnids)):
            return []
        problems = list[str]()
        for split, counts in self.examples_per_class.items():
            if split != schema.TEST:  # it is not a split of ILSVRC2012 but an evaluation set
                problems += class_list.ILSVRC2012.problems(split, self.labelling.classes, counts)
        return list(dict.fromkeys(problems))

    @property
    def edition(self) -> str:
        """The edition of ImageNet that `class_list.recognised` finds; "" if it finds none."""
        totals = {split: sum(counts) for split, counts in self.examples_per_class.items()}
        return class_list.recognised(self.labelling.classes, totals)

    @property
    def examples_per_class(self) -> dict[str, list[int]]:
        """The numbers of records by split and class index."""
        num = len(self.labelling.classes.wnids)
        return {
            split: num_per_class((shard.num_per_class for shard in shards), num)
            for split, shards in self.shards.items()
        }

    @property
    def not_rgb(self) -> int:
        """The number of grey or CMYK JPEGs."""
        return sum(shard.not_rgb for shard in self.all_shards)

    @property
    def refused(self) -> int:
        """The number of JPEGs whose header Pillow or DALI refuses."""
        return sum(shard.refused for shard in self.all_shards)

    @property
    def examples(self) -> int:
        """The total number of records."""
        return sum(shard.examples for shard in self.all_shards)

    @property
    def all_shards(self) -> list[CheckedShard]:
        """The results of all shards, over all splits."""
        return [*itertools.chain.from_iterable(self.shards.values())]


def check_existing_set(
    source: TfrecordSet,
    store: Store,
    workers: engine.Workers,
    *,
    has_tables: bool = True,
    quiet: bool,
) -> ExistingSet:
    """Checks all shards; receipts in `store` tell which shards an earlier run has checked.

    Keys are those of the tables, if the dataset has tables and `has_tables` is set.
    """
    labelling = settle_labels(source, store, workers, quiet=quiet)
    shards = [*itertools.chain.from_iterable(source.splits.values())]
    classes = labelling.classes.render().decode()
    manifest = source.manifest
    has_tables = has_tables and manifest is not None and manifest.has_samples
    names = manifest.digest if manifest and has_tables else ""
    digest = strict_json.digest([labelling.offset, classes, identity(shards), names])
    tables = f"{schema.WORK}/tables-{digest[:16]}"
    work = partial(
        _check_shard,
        store=source.store,
        out=store,
        tables=tables,
        labelling=labelling,
        has_tables=has_tables,
    )
    stage = engine.Stage("check", digest, store, work, CheckedShard)
    receipts = engine.run(stage, shards, workers, quiet=quiet)
    checked = [receipt.content for receipt in receipts]
    by_shard = {shard.shard: shard for shard in checked}
    problems = [*itertools.chain.from_iterable(shard.problems for shard in checked)]
    problems += _copies(shards, checked)
    try:
        # Labels that `amend` changed may differ from the published ones.
        if manifest is None:
            check_validation_labels(checked, labelling.classes, source.store)
    except DataDamagedError as error:
        problems.append(str(error))
    renamed: dict[str, dict[int, str]] = {}
    # Keys in tables are final: if two are equal, the commit reports them.
    for shards_of_split in () if has_tables else source.splits.values():
        shard_of = {schema.samples_name(shard.name): shard.name for shard in shards_of_split}
        new_keys = numbered(store, tables, [*shard_of])
        for table, new in new_keys.items():
            data, sha256 = renamed_keys(store, f"{tables}/{table}", new)
            shard = by_shard[shard_of[table]]
            by_shard[shard.shard] = replace(shard, samples_bytes=len(data), samples_sha256=sha256)
        renamed |= new_keys
    by_split = {
        name: [by_shard[shard.name] for shard in shards_of_split]
        for name, shards_of_split in source.splits.items()
    }
    return ExistingSet(labelling, by_split, problems, tables, renamed)


def _copies(shards: Sequence[ShardFile], checked: Sequence[CheckedShard]) -> list[str]:
    """Reports shards with equal bytes, since one must have been overwritten with the other."""
    first: dict[str, str] = {}
    problems = []
    for shard, result in zip(shards, checked, strict=True):
        name = shard.file
        if result.sha256 and first.setdefault(result.sha256, name) != name:
            problems.append(f"{name}: has the same bytes as {first[result.sha256]}")
    return problems
