"""Reads the records and labels of TFRecord shards written by any known program.

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
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from imagenet_prep.core.errors import DataDamagedError
from imagenet_prep.dataset import keys, protobuf, schema, tfds_record, tfrecord
from imagenet_prep.dataset.member import NO_BOXES, Boxes, Member
from imagenet_prep.dataset.problems import GivenUpError, Problems
from imagenet_prep.dataset.protobuf import Value
from imagenet_prep.dataset.samples import Sample
from imagenet_prep.sources.evidence import Claim, compare
from imagenet_prep.sources.labelling import Labelling, LabelUse
from imagenet_prep.sources.labels import classes_called, official_classes
from imagenet_prep.sources.shard_files import ShardFile, TfrecordSet
from imagenet_prep.storage import dataset_store
from imagenet_prep.storage.remote import as_file, hashed
from imagenet_prep.storage.store import Store

_NEEDED_KEYS = {schema.ENCODED, schema.LABEL, schema.FILENAME}
_FIRST_BYTES = 64
_GZIP = b"\x1f\x8b"

OnDamage = Callable[[DataDamagedError], None]
T = TypeVar("T")


class Entry(NamedTuple):
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
    look: Callable[[tfrecord.Record], T],
    on_damage: OnDamage | None = None,
    hashes: Sequence[Any] = (),
) -> Iterator[tuple[tfrecord.Record, T]]:
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
            records = tfrecord.check_records(as_file(chunks), name, look, report, after_damage=True)
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


def where(shard: ShardFile, record: tfrecord.Record) -> str:
    """Returns the shard, number and byte of a record, for messages."""
    return f"{shard.file}: record {record.number} at byte {record.offset:,}"


def entry_of(shard: ShardFile, record: tfrecord.Record) -> Entry:
    """Returns the content of a record; if an export lists its key, the name gives no class."""
    entry = parse(record.payload)
    return entry._replace(name="") if _place(shard, record) in shard.keys else entry


def _place(shard: ShardFile, record: tfrecord.Record) -> str:
    return f"{shard.file}:{record.number}"


def parse(payload: bytes) -> Entry:
    """Parses a record of any known writer; raises DataDamagedError if it is invalid."""
    features = protobuf.parse(payload)
    if features.keys() == tfds_record.KEYS.keys():
        filename = protobuf.text(features, tfds_record.NAME)
        wnid_match = keys.WNID.match(filename)
        return Entry(
            features=features,
            encoded=protobuf.one(features, tfds_record.IMAGE, bytes),
            label=protobuf.one(features, tfds_record.LABEL, int),
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
    return Entry(
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

    def look(record: tfrecord.Record) -> tuple[Member, bytes]:
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
    record: tfrecord.Record,
    entry: Entry,
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
    start = record.offset + tfrecord.HEAD_BYTES + find_image(record.payload, entry.encoded)
    return Member(key, shard.file, start, len(entry.encoded), index, entry.boxes)


def find_image(payload: bytes, encoded: bytes) -> int:
    """Returns the offset of an image in its record."""
    # `bytes.find` preprocesses its complete argument, so search for the first bytes first.
    start = payload.find(encoded[:_FIRST_BYTES])
    return start if payload.startswith(encoded, start) else payload.find(encoded)


def known_labelling(found: TfrecordSet, splits: Sequence[str]) -> Labelling | None:
    """Returns the class list and label offset, or None if all records must be read to find them.

    A dataset that has neither a manifest nor a list of labels is ILSVRC2012 if its first and last
    shards match ILSVRC2012's labels: if a class were missing, all later labels would be different.
    """
    if found.dataset is not None:
        return Labelling(found.dataset.classes, found.dataset.manifest.label_offset)
    shards = {}
    for split in splits:
        for shard in (found.splits[split][0], found.splits[split][-1]):
            shards[shard.path] = shard
    # Damage is reported later, when all records are read.
    uses: list[LabelUse] = []
    for shard in shards.values():
        uses += label_uses(found.store, shard, Problems())
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
    if not store.size(tfds_record.LABELS):
        return ""
    return store.read(tfds_record.LABELS).decode(errors="replace")


def _listed_labels(found: TfrecordSet, uses: Sequence[LabelUse]) -> Labelling | None:
    names = [name.strip() for name in labels(found.store).splitlines() if name.strip()]
    if not names:
        return None
    where = found.store.where(tfds_record.LABELS)
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


def label_uses(store: Store, shard: ShardFile, damage: Problems) -> list[LabelUse]:
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
