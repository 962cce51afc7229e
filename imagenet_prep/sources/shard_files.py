"""Finds TFRecord shards of any known program, and reads their classes, labels and records.

Known writers and their features:

    this program, slim's build_imagenet_data: all 15 keys
    tensorflow/tpu's imagenet_to_gcs, AWS step 1: no text, no boxes
    AWS tensorflow_image_resizer: shards numbered from 1, empty text, original image sizes
    slim's build_image_data (flowers): classes by text, no synset
    TensorFlow Datasets' imagenet2012: image, label, file_name; labels from 0; its own shard names
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from imagenet_prep.core.errors import DataDamagedError, SourceError, UsageError, some
from imagenet_prep.core.small_files import MOST_LIST_BYTES
from imagenet_prep.core.terminal import counted
from imagenet_prep.dataset import keys, protobuf, record_files, schema
from imagenet_prep.dataset.class_list import ClassList
from imagenet_prep.dataset.example import GivenUpError, ShardProblems
from imagenet_prep.dataset.keys import WNID, ExportKeys
from imagenet_prep.dataset.manifest import Manifest, Shard
from imagenet_prep.dataset.member import NO_BOXES, Boxes, Member
from imagenet_prep.dataset.protobuf import Value
from imagenet_prep.dataset.samples import Sample
from imagenet_prep.sources.labels import Claim, classes_called, compare, official_classes
from imagenet_prep.sources.scan import read_errors
from imagenet_prep.storage import dataset_store
from imagenet_prep.storage.dataset_store import Dataset, open_dataset, require_file
from imagenet_prep.storage.remote import Stat, as_file, hashed
from imagenet_prep.storage.store import Store

_MAX_EXAMPLES_IN_MESSAGE = 5


class LabelUse(NamedTuple):
    """A class and a label that occur together in the records of a shard."""

    name: str
    text: str
    label: int
    examples: int  # number of records with this class and label
    where: str  # the first of these records


@dataclass(frozen=True)
class Labelling:
    """A dataset's class list, and the `offset` of its labels: label = class index + offset."""

    classes: ClassList
    offset: int

    def class_index(self, name: str, label: int) -> int:
        """Returns the class index of a record; raises DataDamagedError if its label is wrong."""
        if not name:
            index = label - self.offset
            if not 0 <= index < len(self.classes.wnids):
                last = len(self.classes.wnids) - 1 + self.offset
                raise DataDamagedError(f"label {label}, expected {self.offset} to {last}")
            return index
        index = self.classes.index.get(name, -1)
        if index < 0:
            count = len(self.classes.wnids)
            raise DataDamagedError(f"class {name!r} is not one of the dataset's {count} classes")
        if label - index != self.offset:
            raise DataDamagedError(f"label {label}, expected {index + self.offset} for {name}")
        return index


def labelling_of(uses: Iterable[LabelUse], known: ClassList | None = None) -> Labelling:
    """Returns the class list (preferably `known`) and the offset (0 or 1) that match all labels."""
    uses = list(uses)
    official = official_classes()
    lists = [_own_classes(uses, official)]
    for classes in (official, known):
        if classes and all(use.name in classes.index for use in uses if use.name):
            # The preferred list comes first: of equal counts, `min` returns the first.
            lists.insert(0, classes)
    # Only TFDS records have no class name; TFDS labels start at 0.
    offsets = (1, 0) if all(use.name for use in uses) else (0,)
    candidates = [*itertools.starmap(Labelling, itertools.product(lists, offsets))]
    strays_of = [[use for use in uses if _problem(use, c)] for c in candidates]
    counts = [sum(use.examples for use in strays) for strays in strays_of]
    count, strays, best = min(zip(counts, strays_of, candidates, strict=True), key=lambda c: c[0])
    if strays:
        problems = "; ".join(_problem(use, best) for use in strays[:_MAX_EXAMPLES_IN_MESSAGE])
        raise DataDamagedError(
            f"labels that do not match the others ({count:,}): {problems}. All labels must be "
            "positions in the sorted class list, counted from 0 or from 1."
        )
    return best


def _problem(use: LabelUse, labelling: Labelling) -> str:
    try:
        labelling.class_index(use.name, use.label)
    except DataDamagedError as error:
        return f"{use.where}: {error}"
    return ""


def _own_classes(uses: Sequence[LabelUse], official: ClassList) -> ClassList:
    """Returns the class list in the records: sorted WNIDs, or class names in label order."""
    named = {use.name: use for use in sorted(uses, key=lambda use: use.examples) if use.name}
    names = sorted(named)
    if not all(map(WNID.fullmatch, names)):
        names.sort(key=lambda name: named[name].label)
    words = dict(zip(official.wnids, official.words, strict=True))
    return ClassList(
        tuple(names), tuple(named[name].text or words.get(name, name) for name in names)
    )


_SPLIT = "|".join(schema.SPLITS)
_PLAIN = re.compile(rf"({_SPLIT})-(\d{{5}})-of-(\d{{5}})")
_TFDS = re.compile(rf"\w+-({_SPLIT})\.tfrecord-(\d{{5}})-of-(\d{{5}})")


class ShardFile(NamedTuple):
    """A file that is a TFRecord shard."""

    split: str
    number: int  # from 0
    num_shards: int
    path: str
    stat: Stat
    listed: Shard | None = None  # its entry in the manifest, if this program wrote it
    keys: Mapping[str, str] = {}  # by FILE:NUMBER, from an export's list; see `schema.EXPORT_KEYS`

    @property
    def file(self) -> str:
        """The file's base name."""
        return self.path.rpartition("/")[2]

    @property
    def sha256(self) -> str:
        """The file's SHA-256 in the manifest, or "" if there is no manifest."""
        return self.listed.sha256 if self.listed else ""

    @property
    def num_bytes(self) -> int:
        """Size of the file."""
        return self.stat.size

    @property
    def name(self) -> str:
        """The name that this program gives to the shard."""
        return schema.shard_name(self.split, self.number, self.num_shards)


@dataclass(frozen=True)
class TfrecordSet:
    """The shards of each split in a store, in order."""

    store: Store
    splits: dict[str, tuple[ShardFile, ...]]
    dataset: Dataset | None  # None if a different program wrote the shards

    @property
    def manifest(self) -> Manifest | None:
        """The dataset's manifest, if this program wrote it."""
        return self.dataset.manifest if self.dataset else None


@read_errors("")
def find(store: Store, *, check: bool = True) -> TfrecordSet:
    """Returns the shards in `store` or its split folders; passes `check` to `open_dataset`."""
    where = store.where()
    local = store.as_folder
    if local is not None and not local.root.is_dir():
        raise UsageError(f"{where}: no such folder. {_remedy(local.root)}")
    require_file(store)
    entries = store.list_folder()
    files: dict[str, dict[tuple[str, int], dict[int, str]]] = {}
    stats: dict[str, Stat] = {}
    for folder in ("", *(split for split in schema.SPLITS if split in entries)):
        below = f"{folder}/" if folder else ""
        for name, stat in sorted(store.stats(folder).items()):
            path = below + name
            stats[path] = stat
            named = _parts(name)
            if named:
                family = (folder, named.num_shards)
                files.setdefault(named.split, {}).setdefault(family, {})[named.number] = path
    if not files:
        raise UsageError(
            f"{where}: no TFRecord shards here; found {some(entries) or 'nothing'}. Shards are "
            "named train-00000-of-01024 (or from 00001, or imagenet2012-train.tfrecord-00000-of-"
            "01024), in this folder or in train/ and validation/."
        )
    dataset = open_dataset(store, check=check) if schema.MANIFEST in stats else None
    listed: dict[str, Shard] = {}
    for listed_split in dataset.manifest.splits.values() if dataset else ():
        listed |= {shard.name: shard for shard in listed_split.shards}
    if len(files) > 1 and not (dataset and dataset.manifest.evaluates):
        files.pop(schema.TEST, None)  # in other programs, test has images without labels
    exported: ExportKeys = {}
    if dataset is None and schema.EXPORT_KEYS in stats:
        data = store.read(schema.EXPORT_KEYS, most=MOST_LIST_BYTES)
        exported = keys.parse(data, store.where(schema.EXPORT_KEYS))
    splits = {
        split: tuple(
            ShardFile(
                split,
                number,
                total,
                path,
                stats[path],
                listed=listed.get(path),
                keys=exported.get(split, {}),
            )
            for number, path, total in _in_order(where, split, files[split])
        )
        for split in filter(files.__contains__, schema.SPLITS)
    }
    return TfrecordSet(store, splits, dataset)


def _remedy(missing: Path) -> str:
    """Returns the advice for a missing folder; the parent may have the shards of its split."""
    split, parent = missing.name, missing.parent
    if split in schema.SPLITS and parent.is_dir():
        names = (_parts(path.name) for path in parent.iterdir())
        if any(named is not None and named.split == split for named in names):
            return f"The shards of {split} are in {parent}: give that folder, and --splits {split}."
    return "Check the path."


def _in_order(
    where: str, split: str, families: dict[tuple[str, int], dict[int, str]]
) -> list[tuple[int, str, int]]:
    """Returns (number from 0, path, total) of each shard; raises SourceError if one is missing."""
    (_, total), numbered = max(families.items(), key=lambda item: len(item[1]))
    strangers: list[str] = []
    for family in families.values():
        if family is not numbered:
            strangers += family.values()
    # The AWS resizer counts from 1.
    first = 1 if total in numbered and 0 not in numbered else 0
    expected = range(first, first + total)
    missing = [f"{number:05d}" for number in expected if number not in numbered]
    strangers += [path for number, path in numbered.items() if number not in expected]
    problems = []
    if missing:
        total_text = counted(total, "shard")
        problems.append(f"missing: {len(missing):,} of {total_text} ({some(missing)})")
    if strangers:
        count = counted(len(strangers), "file")
        names = some(sorted(strangers))
        problems.append(f"surplus (different dataset or number of shards): {count} ({names})")
    if problems:
        raise SourceError(
            f"{where}: {split}: {'; '.join(problems)}. Expected numbers {first} to "
            f"{first + total - 1}. Add the missing shards, and move surplus files away."
        )
    return [(number - first, path, total) for number, path in sorted(numbered.items())]


def split_of(name: str) -> str:
    """Returns the split of a shard's file name, or "" if it is not a shard name."""
    named = _parts(name)
    return named.split if named else ""


def becomes(path: str, name: str) -> bool:
    """Returns whether `adopt` can rename the shard at `path` to `name`."""
    base = path.rpartition("/")[2]
    before = _parts(base)
    after = schema.parse_shard_name(name)
    return (
        before is not None
        and after is not None
        and path in (base, *(f"{folder}/{base}" for folder in schema.SPLITS))
        and (after.split, after.num_shards) == (before.split, before.num_shards)
        and before.number - after.number in (0, 1)
        and after.number < after.num_shards
    )


def _parts(name: str) -> schema.ShardName | None:
    """Parses a shard name of any known program; the numbers may start at 1."""
    match = _PLAIN.fullmatch(name) or _TFDS.fullmatch(name)
    return schema.ShardName(match[1], int(match[2]), int(match[3])) if match else None


_NEEDED_KEYS = {schema.ENCODED, schema.LABEL, schema.FILENAME}
_FIRST_BYTES = 64
_GZIP = b"\x1f\x8b"

OnDamage = Callable[[DataDamagedError], None]
T = TypeVar("T")


class RecordContent(NamedTuple):
    """The content of a record, in the same form for all writers."""

    features: dict[str, Value]
    encoded: bytes
    label: int
    name: str  # the WNID, else the text, else ""
    filename: str
    text: str = ""
    boxes: Boxes = NO_BOXES


def check(
    store: Store,
    shard: ShardFile,
    look: Callable[[record_files.Record], T],
    on_damage: OnDamage | None = None,
    hashes: Sequence[Any] = (),
) -> Iterator[tuple[record_files.Record, T]]:
    """Verifies a shard by its CRCs and known SHA-256; yields (record, result of `look`).

    `on_damage` receives the error of each damaged record, which is then skipped. If `on_damage` is
    None, the first error is raised. The hashlib objects `hashes` are updated with all bytes.
    """
    name = shard.file
    seen = damaged = 0
    sha256 = hashlib.sha256()

    def report(error: DataDamagedError) -> None:
        nonlocal seen, damaged
        seen += 1
        damaged += 1
        if on_damage is None:
            raise error
        on_damage(error)

    try:
        with store.open_file(shard.path, shard.stat) as opened:
            chunks = hashed(opened, [*hashes, sha256] if shard.sha256 else hashes)
            records = record_files.check_records(
                as_file(chunks), name, look, report, after_damage=True
            )
            for record, content in records:
                seen += 1
                if content is not None:
                    yield record, content
    except DataDamagedError as error:
        if not seen and store.read(shard.path, 0, len(_GZIP)) == _GZIP:
            error = DataDamagedError(f"{error}. It is compressed with gzip: unpack it first")
        report(error)
    else:
        if not seen:
            report(DataDamagedError(f"{name}: holds no record"))
        if shard.sha256 and not damaged and sha256.hexdigest() != shard.sha256:
            problem = f"{name}: sha256 {sha256.hexdigest()}, expected {shard.sha256}"
            report(DataDamagedError(problem))


def where(shard: ShardFile, record: record_files.Record) -> str:
    """Returns the shard, number and byte of a record, for messages."""
    return f"{shard.file}: record {record.number} at byte {record.offset:,}"


def entry_of(shard: ShardFile, record: record_files.Record) -> RecordContent:
    """Returns the content of a record; if an export lists its key, the name gives no class."""
    entry = parse(record.payload)
    return entry._replace(name="") if _place(shard, record) in shard.keys else entry


def _place(shard: ShardFile, record: record_files.Record) -> str:
    return f"{shard.file}:{record.number}"


def parse(payload: bytes) -> RecordContent:
    """Parses a record of any known writer; raises DataDamagedError if it is invalid."""
    features = protobuf.parse(payload)
    if features.keys() == protobuf.KEYS.keys():
        filename = protobuf.text(features, protobuf.NAME)
        wnid_match = keys.WNID.match(filename)
        return RecordContent(
            features=features,
            encoded=protobuf.one(features, protobuf.IMAGE, bytes),
            label=protobuf.one(features, protobuf.LABEL, int),
            name=wnid_match[0] if wnid_match else "",
            filename=filename,
        )
    missing = sorted(_NEEDED_KEYS - features.keys())
    if missing:
        raise DataDamagedError(
            f"keys missing: {', '.join(missing)}; found {', '.join(sorted(features)) or 'none'}"
        )
    unknown = sorted(features.keys() - set(schema.ALL_KEYS))
    if unknown:
        raise DataDamagedError(f"keys that no known program writes: {', '.join(unknown)}")
    wnid, text = (
        protobuf.text(features, key) if features.get(key) else ""
        for key in (schema.SYNSET, schema.TEXT)
    )
    name = wnid or "_".join(text.split())
    if not name:
        raise DataDamagedError(f"neither {schema.SYNSET} nor {schema.TEXT} names its class")
    filename = keys.below_class(protobuf.text(features, schema.FILENAME), name)
    if not filename.rpartition("/")[2]:
        raise DataDamagedError(f"{schema.FILENAME} is empty")
    return RecordContent(
        features=features,
        encoded=protobuf.one(features, schema.ENCODED, bytes),
        label=protobuf.one(features, schema.LABEL, int),
        name=name,
        filename=filename,
        text=text,
        boxes=_boxes(features),
    )


def read(
    store: Store, shard: ShardFile, labelling: Labelling, hashes: Sequence[Any] = ()
) -> Iterator[tuple[Member, bytes]]:
    """Yields (member, image bytes) of each record; keys are from the table of samples, if any."""

    def look(record: record_files.Record) -> tuple[Member, bytes]:
        entry = entry_of(shard, record)
        return member(shard, record, entry, labelling, rows), entry.encoded

    try:
        rows = rows_of(store, shard)
        for _, image in check(store, shard, look, hashes=hashes):
            yield image
    except DataDamagedError as error:
        raise DataDamagedError(
            f"{error}. The shard is damaged or from a different dataset: fetch it again. "
            "`imagenet-prep adopt --dry-run` lists all problems of a dataset."
        ) from error


def rows_of(store: Store, shard: ShardFile) -> list[Sample] | None:
    """Returns the table of samples of a shard, or None if a different program wrote the shard."""
    if shard.listed is None or shard.listed.samples is None:
        return None
    return [*dataset_store.sample_rows(store, shard.listed)]


def member(
    shard: ShardFile,
    record: record_files.Record,
    entry: RecordContent,
    labelling: Labelling,
    rows: Sequence[Sample] | None = None,
) -> Member:
    """Returns the image in a record as a `Member`, with its byte range in the shard.

    Its key is the one in the table of samples `rows` or in an export's list of keys, if any.
    """
    index = labelling.class_index(entry.name, entry.label)
    key = shard.keys.get(_place(shard, record))
    if rows is not None:
        row = rows[record.number] if record.number < len(rows) else None
        if row is None or (row.class_index, row.num_bytes) != (index, len(entry.encoded)):
            raise DataDamagedError("differs from its line in the table of samples")
        key = row.key
    if key is None:
        key = keys.key_of(shard.split, labelling.classes.wnids[index], entry.filename)
    problem = keys.problem(key)
    if problem is not None:
        raise DataDamagedError(problem)
    start = record.offset + record_files.HEAD_BYTES + find_image(record.payload, entry.encoded)
    return Member(key, shard.file, start, len(entry.encoded), index, entry.boxes)


def find_image(payload: bytes, encoded: bytes) -> int:
    """Returns the offset of an image in its record."""
    # `bytes.find` preprocesses its complete argument, so search for the first bytes first.
    start = payload.find(encoded[:_FIRST_BYTES])
    return start if payload.startswith(encoded, start) else payload.find(encoded)


def known_labelling(found: TfrecordSet) -> Labelling | None:
    """Returns the class list and label offset, or None if all records must be read to find them.

    A dataset that has neither a manifest nor a list of labels is ILSVRC2012 if its first and last
    shards match ILSVRC2012's labels: if a class were missing, all later labels would be different.
    """
    if found.dataset is not None:
        return Labelling(found.dataset.classes, found.dataset.manifest.label_offset)
    shards = {}
    for of_split in found.splits.values():
        for shard in (of_split[0], of_split[-1]):
            shards[shard.path] = shard
    # Damage is reported later, when all records are read.
    uses: list[LabelUse] = []
    for shard in shards.values():
        uses += label_uses(found.store, shard, ShardProblems())
    official = official_classes()
    named = _listed_labels(found, uses)
    if named:
        return named
    if not uses or not all(use.name in official.index for use in uses if use.name):
        return None
    offsets = {use.label - official.index[use.name] if use.name else 0 for use in uses}
    return Labelling(official, offsets.pop()) if offsets in ({0}, {1}) else None


def labels(store: Store) -> str:
    """Returns the list of classes that TFDS has written, or "" if there is none."""
    if not store.size(protobuf.LABELS):
        return ""
    return store.read(protobuf.LABELS).decode(errors="replace")


def _listed_labels(found: TfrecordSet, uses: Sequence[LabelUse]) -> Labelling | None:
    names = [name.strip() for name in labels(found.store).splitlines() if name.strip()]
    if not names:
        return None
    where = found.store.where(protobuf.LABELS)
    labelling = Labelling(classes_called(names, where), 0)
    listed = Claim(where, dict(enumerate(labelling.classes.wnids)))
    for use in uses:
        try:
            labelling.class_index(use.name, use.label)
        except DataDamagedError:
            if use.name in labelling.classes.index:
                record = Claim(use.where, {use.label: use.name})
                compare("label", [listed, record], "Remove the list, or get the dataset again.")
            return None
    return labelling


def label_uses(store: Store, shard: ShardFile, damage: ShardProblems) -> list[LabelUse]:
    """Returns each pair of class and label in a shard, with its count and first record."""
    counts: dict[tuple[str, int], LabelUse] = {}
    with contextlib.suppress(GivenUpError):
        for record, entry in check(store, shard, partial(entry_of, shard), damage.add):
            key = entry.name, entry.label
            use = counts.get(key)
            if use is None:
                use = LabelUse(entry.name, entry.text, entry.label, 0, where(shard, record))
            counts[key] = use._replace(examples=use.examples + 1)
    return list(counts.values())


def _boxes(features: dict[str, Value]) -> Boxes:
    sides = [features.get(key, ()) for key in schema.FLOAT_KEYS]
    if not any(sides):
        return NO_BOXES
    if len({len(side) for side in sides}) != 1:
        raise DataDamagedError("the bounding box lists differ in length")
    return Boxes(*(tuple(float(value) for value in side) for side in sides))
