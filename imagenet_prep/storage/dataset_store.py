"""Opens a dataset in a folder, in a bucket or on a web server, and reads its tables and lists.

Data is verified against the manifest, and the manifest against the class list, before use. All
commands use this module, so they accept the same datasets and agree on labels.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import math
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import BinaryIO, TypeVar

from imagenet_prep.core import small_files, strict_json
from imagenet_prep.core.errors import (
    BusyError,
    DataDamagedError,
    IncompleteError,
    ManifestError,
    StoreError,
    UsageError,
    some,
)
from imagenet_prep.dataset import (
    class_list,
    column,
    consistency,
    formats,
    manifest,
    samples,
    schema,
    tfds,
)
from imagenet_prep.dataset.class_list import ClassList
from imagenet_prep.dataset.column import Placement
from imagenet_prep.dataset.manifest import DatasetFile, Manifest, Shard, require_samples
from imagenet_prep.dataset.member import Incident, parse_incident, require_few_salts
from imagenet_prep.dataset.samples import Head, Sample
from imagenet_prep.storage import local_file
from imagenet_prep.storage.ledger import find_source
from imagenet_prep.storage.local_file import storage_errors
from imagenet_prep.storage.remote import AbsentError, as_file, hashed, prefetch
from imagenet_prep.storage.store import Readable, is_inside, open_readable

_REMEDY = "Copy the dataset again from its original location."


@dataclass(frozen=True)
class Dataset:
    """A finished dataset of this program; `data` is the content of its manifest file.

    Attributes raise ManifestError or DataDamagedError if a file contradicts the manifest, and
    StoreError or IncompleteError if a file cannot be read.
    """

    store: Readable
    data: bytes = field(repr=False)

    @classmethod
    def at(cls, store: Readable) -> Dataset:
        """Returns the finished dataset in a store, without verifying it."""
        require_file(store)
        return cls(store, _read_manifest(store, schema.MANIFEST))

    @property
    def where(self) -> str:
        """The path or URL of the dataset, for messages."""
        return self.store.where()

    @cached_property
    def manifest(self) -> Manifest:
        """The manifest, verified by its own digest."""
        return manifest.loads(self.data, self.store.where(schema.MANIFEST))

    @cached_property
    def placement(self) -> Placement:
        """The part of the dataset in this folder: the part of one node, or the complete dataset."""
        folder = self.store.as_folder
        return column.load(folder.root, self.manifest) if folder else column.WHOLE

    @cached_property
    def classes(self) -> ClassList:
        """The class list, verified against the manifest."""
        for claim in consistency.untrue(self.manifest, self.labels):
            raise ManifestError(f"{self.where}: {claim}. {_REMEDY}")
        return self.labels

    @cached_property
    def labels(self) -> ClassList:
        """The classes in labels.txt, not yet compared with the manifest."""
        return class_list.parse(self.small_file(schema.LABELS), self.store.where(schema.LABELS))

    @cached_property
    def tfds_info(self) -> dict[str, object]:
        """The content of dataset_info.json, with which TensorFlow Datasets finds the shards."""
        shards = {name: split.shards for name, split in self.manifest.splits.items()}
        try:
            info: dict[str, object] = strict_json.loads(self.small_file(schema.TFDS_INFO))
            expected = tfds.dataset_info(tfds.name_of(info), shards, self.manifest.subset)
            if tfds.lengths(info) == tfds.lengths(strict_json.loads(expected)):
                return info
        except (ValueError, LookupError, TypeError):
            pass
        raise ManifestError(
            f"{self.store.where(schema.TFDS_INFO)}: differs from {schema.MANIFEST}. {_REMEDY}"
        )

    def contradictions(self) -> list[str]:
        """Returns the contradictions between the manifest and labels.txt or dataset_info.json."""
        problems: list[str] = []
        try:
            untrue = consistency.untrue(self.manifest, self.labels)
            problems += (f"{claim}. {_REMEDY}" for claim in untrue)
            if any(file.name == schema.TFDS_INFO for file in self.manifest.files):
                _ = self.tfds_info
        except DataDamagedError as error:
            problems.append(str(error))
        return problems

    def small_file(self, name: str) -> bytes:
        """Returns the verified content of a file such as labels.txt."""
        expected = next((file for file in self.manifest.files if file.name == name), None)
        if expected and self.store.size(name) == expected.num_bytes:
            data = self.store.read(name)
            if hashlib.sha256(data).hexdigest() == expected.sha256:
                return data
        raise ManifestError(
            f"{self.store.where(name)}: missing, or differs from {schema.MANIFEST}. {_REMEDY}"
        )

    def missing_files(self) -> list[str]:
        """Returns the files of the manifest that are missing or have a different size."""
        return sorted(missing_files(self.store, self.manifest.files_of(self.manifest.splits)))

    def shards(self, split: str) -> list[Shard]:
        """Returns a split's shards that `placement` contains; empty if there is no such split."""
        if split not in self.manifest.splits:
            return []
        return self.placement.shards(self.manifest, split)

    def require_complete(self) -> None:
        """Raises UsageError if the folder has only one node's part of the dataset."""
        if self.placement.nodes > 1:
            raise UsageError(
                f"{self.where} is {self.placement}, but this command needs the complete dataset. "
                "Use a copy that has all its shards."
            )

    def require_samples(self) -> None:
        """Raises UsageError if the dataset has no samples tables."""
        require_samples(self.manifest, self.where)

    def heads(self, shards: Iterable[Shard], *, images: bool = False) -> Iterator[Iterator[Head]]:
        """Yields first columns of each shard's samples; see `samples.heads` and `tables.each`."""
        num_classes = self.manifest.classes.count
        parse = partial(samples.heads, num_classes=num_classes, images=images)
        return each_table(parse, self.store, shards)

    def rows(self, shards: Iterable[Shard]) -> Iterator[Iterator[Sample]]:
        """Yields the samples of each shard in record order; see `tables.each`."""
        parse = partial(samples.parse, num_classes=self.manifest.classes.count)
        return each_table(parse, self.store, shards)


def missing_files(store: Readable, files: Collection[DatasetFile]) -> set[str]:
    """Returns the names of the files that are missing or have a different size."""
    sizes = store.sizes(file.name for file in files)
    return {file.name for file in files if sizes.get(file.name) != file.num_bytes}


def shard_files(store: Readable) -> list[str]:
    """Returns the names of all shards, indexes and tables, and of files that look like shards."""
    names = store.list_folder()
    shards = [n for n in names if schema.looks_like_shard(n) or schema.parse_shard_name(n)]
    for folder in schema.BESIDE:
        shards += [f"{folder}/{n}" for n in store.names(folder)]
    return shards


def stray_files(store: Readable, shards: Collection[str]) -> list[str]:
    """Returns the shards, indexes and tables that do not belong to these shards.

    Shards of `test` count only if these are of `test`: no reader takes them for train.
    """
    known = {*shards, *itertools.chain.from_iterable(map(schema.beside, shards))}
    splits = {*map(schema.split_of, shards)}
    return [
        name
        for name in shard_files(store)
        if name not in known
        if schema.split_of(name) in splits or "/" in name or schema.looks_like_shard(name)
    ]


# Names of files that are sources of images.
_SOURCES = (
    *formats.IMAGE_EXTENSIONS,
    *formats.ARCHIVE_EXTENSIONS,
    ".avif",
    ".gz",
    ".heic",
    ".parquet",
    ".rec",
)


def unrelated_names(store: Readable) -> list[str]:
    """Returns folders, images and archives next to the files of a dataset.

    Files of other kinds, such as a log, are not included. A web server cannot be listed.
    """
    files = {*store.names("")}
    return [
        name
        for name in store.list_folder()
        if not formats.is_hidden(name) and name not in (schema.COLUMNS, *schema.BESIDE)
        if name not in files or name.lower().endswith(_SOURCES)
    ]


def refuse_unrelated(store: Readable, source: str | None = None) -> None:
    """Raises UsageError if a new dataset would be mixed with folders, images or archives.

    The folder with the `source` may be there, as in the folder of the 2018 tutorial.
    """
    names = unrelated_names(store)
    if source is not None:
        names = [name for name in names if not is_inside(source, store.where(name))]
    if names:
        raise UsageError(
            f"{store.where()} contains {some(names)}, and no dataset. Choose an empty folder, or a "
            f"new one below it, such as {store.where()}/set."
        )


def refuse_inside(out: str, dataset: Dataset) -> None:
    """Raises UsageError if an output is inside a dataset, or among the images of its source."""
    folders = [dataset.where]
    location = find_source(dataset.manifest.digest)
    if location is not None:
        folders += [f"{location.root}/{source.name}" for source in dataset.manifest.sources]
    for folder in folders:
        if is_inside(out, folder):
            raise UsageError(
                f"{out}: belongs to the input {folder}, which never changes. Choose a location "
                "next to it."
            )


def require_file(store: Readable) -> None:
    """Raises DataDamagedError if the manifest or a folder of a dataset is of the wrong kind."""
    folder = store.as_folder
    if folder is None:
        return
    small_files.refuse_other_kinds(folder.path(schema.MANIFEST))
    for name in schema.BESIDE:
        with storage_errors("look at", folder.path(name)):
            local_file.refuse_other_kinds(folder.root, name)


def committed_dataset(store: Readable, names: Collection[str]) -> Dataset | None:
    """Returns the finished dataset in a store, or None; `names` are the store's file names."""
    # If a run was killed while it replaced the manifest, return the previous dataset.
    if schema.MANIFEST in names:
        return Dataset.at(store)
    return (
        Dataset(store, _read_manifest(store, schema.REPLACED)) if schema.REPLACED in names else None
    )


def _read_manifest(store: Readable, name: str) -> bytes:
    """Returns a manifest that existed a moment ago; raises BusyError if it was removed since."""
    try:
        return store.read(name)
    except StoreError as error:
        if isinstance(error, AbsentError) or isinstance(error.__cause__, FileNotFoundError):
            raise BusyError(
                f"{store.where(name)}: a different run is replacing it. Wait for its end, then run "
                "the same command again."
            ) from error
        raise


def refuse_unfinished(store: Readable) -> None:
    """Raises IncompleteError if the run that makes the dataset in a store has not finished."""
    listed = store.list_folder()
    # The folder of a training run has a .work, too.
    if schema.WORK in listed and schema.TRAINING_LOG not in listed:
        raise IncompleteError(
            f"{store.where()}: no {schema.MANIFEST} yet, because the run that writes it has not "
            "finished. Run its command again to resume it."
        )


def open_dataset(place: str | Readable, *, parts: bool = False, check: bool = True) -> Dataset:
    """Returns the dataset in a folder, at an s3:// or http(s):// URL, or in a store.

    With `parts`, one node's part of a dataset is allowed. `check` verifies the class list at once.
    """
    store = open_readable(place) if isinstance(place, str) else place
    where = store.where()
    require_file(store)
    if store.size(schema.MANIFEST) is None:
        if store.as_folder is not None and not store.as_folder.root.is_dir():
            if store.as_folder.root.exists():
                raise UsageError(f"{where}: is a file. Give the folder of the dataset.")
            raise UsageError(f"{where}: there is no such folder")
        refuse_unfinished(store)
        raise UsageError(
            f"{where}: not a dataset of imagenet-prep (no {schema.MANIFEST}). To make one from "
            "images, run imagenet-prep prepare. For TFRecords of a different program, run "
            f"imagenet-prep adopt {shlex.quote(where)}"
        )
    dataset = Dataset.at(store)
    if not parts:
        dataset.require_complete()
    if check:
        _ = dataset.classes
    return dataset


# Tables up to this size are prefetched: those of ImageNet-21K in 1,024 shards are half as large.
_AHEAD_BYTES = 8 << 20
Row = TypeVar("Row")
Parse = Callable[[Iterable[bytes], str], Iterator[Row]]
Opened = contextlib.AbstractContextManager[BinaryIO]


def sample_rows(store: Readable, shard: Shard, num_classes: float = math.inf) -> Iterator[Sample]:
    """Yields the samples of a shard in record order, with the checks and errors of `lines`."""
    where = store.where(_table_name(shard))
    return samples.parse(table_lines(store, shard), where, num_classes=num_classes)


def sample_heads(
    store: Readable, shard: Shard, num_classes: int, *, images: bool = False
) -> Iterator[Head]:
    """Yields the class index, key and (if `images`) image columns of each sample of a shard."""
    where = store.where(_table_name(shard))
    return samples.heads(table_lines(store, shard), where, num_classes=num_classes, images=images)


def each_table(
    parse: Parse[Row], store: Readable, shards: Iterable[Shard]
) -> Iterator[Iterator[Row]]:
    """Yields the result of `parse` for the table of each shard; prefetches the next few tables.

    If reading a table raises an error, the following tables are still yielded.
    """
    for shard, opening in prefetch(partial(_open_table, store), shards):
        yield parse(table_lines(store, shard, opening.result), store.where(_table_name(shard)))


def table_mentions(store: Readable, shard: Shard, texts: Iterable[bytes]) -> bool:
    """Returns False if a shard's table contains none of the texts; True if it may contain one."""
    data = sound_table(store, shard, _AHEAD_BYTES)
    return data is None or any(text in data for text in texts)


def sound_table(store: Readable, shard: Shard, most: int) -> bytes | None:
    """Returns a shard's table; None if it is larger than `most`, unreadable or damaged."""
    if shard.samples_bytes <= most:
        with contextlib.suppress(StoreError), store.open_file(_table_name(shard)) as file:
            # One byte more than expected reveals a table that is too long.
            data = file.read(shard.samples_bytes + 1)
            if hashlib.sha256(data).hexdigest() == shard.samples_sha256:
                return data
    return None


def _table_name(shard: Shard) -> str:
    return schema.samples_name(shard.name)


def _open_table(store: Readable, shard: Shard) -> Opened:
    """Opens a table; a small one is read into memory first."""
    opened = store.open_file(_table_name(shard))
    if shard.samples_bytes > _AHEAD_BYTES:
        return opened
    with opened as file:
        # One byte more than expected reveals a table that is too long.
        return io.BytesIO(file.read(shard.samples_bytes + 1))


def table_lines(
    store: Readable, shard: Shard, opened: Callable[[], Opened] | None = None
) -> Iterator[bytes]:
    """Yields the lines of a shard's table, header first; verifies the table after the last line."""
    where = store.where(_table_name(shard))
    digest = hashlib.sha256()
    number = 0
    with opened() if opened else store.open_file(_table_name(shard)) as file:
        for number, line in enumerate(samples.read_lines(as_file(hashed(file, [digest])))):
            if number > shard.examples:
                raise DataDamagedError(f"{where}: more than {shard.examples:,} lines")
            yield line
    if number < shard.examples:
        raise DataDamagedError(f"{where}: {number:,} lines, expected {shard.examples:,}")
    sha256 = digest.hexdigest()
    if sha256 != shard.samples_sha256:
        raise DataDamagedError(
            f"{where}: sha256 {sha256}, the manifest says {shard.samples_sha256}. Copy the "
            "table again from the original dataset."
        )


# In a line, keys and paths have at most 4,096 bytes, details a few hundred.
_MOST_LINE_BYTES = 64 << 10


def incidents(store: Readable, of: Manifest | None = None) -> Iterator[Incident]:
    """Yields the lines of quarantine.jsonl; verifies the file if the manifest `of` is given.

    Yields nothing if the manifest lists no such file.
    """
    listed = {file.sha256 for file in of.files if file.name == schema.QUARANTINE} if of else set()
    if of and not listed:
        return
    digest = hashlib.sha256()
    salts: set[str] = set()
    where = store.where(schema.QUARANTINE)
    try:
        if store.size(schema.QUARANTINE) is None:
            raise ValueError("missing")
        with store.open_file(schema.QUARANTINE) as opened:
            file = as_file(hashed(opened, [digest]))
            while line := file.readline(_MOST_LINE_BYTES):
                incident = parse_incident(line)
                salts.add(incident.salt)
                require_few_salts(salts)
                yield incident
        if of and digest.hexdigest() not in listed:
            raise ValueError(f"sha256 {digest.hexdigest()} is not in {schema.MANIFEST}")
    except ValueError as error:
        raise ManifestError(f"{where}: {error}. Copy it from the original dataset.") from None


def num_excluded(store: Readable, manifest: Manifest) -> int:
    """Returns the number of images that were excluded on request, from the verified list."""
    return sum(incident.is_excluded for incident in incidents(store, manifest))
