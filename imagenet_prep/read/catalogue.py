"""Lists and finds the images of a dataset by key, class or sha256."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import PurePosixPath
from typing import NamedTuple

from imagenet_prep.core.errors import UsageError
from imagenet_prep.core.spelling import as_seen
from imagenet_prep.core.strict_json import Json
from imagenet_prep.dataset import schema
from imagenet_prep.dataset.example import ImageExample
from imagenet_prep.dataset.keys import spellings
from imagenet_prep.dataset.samples import Sample
from imagenet_prep.read.reader import open_records
from imagenet_prep.read.selection import Names
from imagenet_prep.storage.dataset_store import Dataset

_FEW = 4


class CatalogueEntry(NamedTuple):
    """Split, number, class and key of an image. `number` is the position in the split, from 0."""

    split: str
    number: int
    class_index: int
    wnid: str
    key: str


class Catalogue:
    """Finds images in the given splits of a local or remote dataset."""

    def __init__(self, dataset: Dataset, splits: Sequence[str]) -> None:
        self._dataset = dataset
        self._splits = {split: open_records(dataset, split) for split in splits}
        if schema.FILENAME in dataset.manifest.lacks:
            raise UsageError(
                f"{dataset.where}: its records have no file names, so its images have no keys. "
                "`imagenet-prep show SHARD` lists the records by number."
            )

    def entries(self, of_class: str | None = None) -> Iterator[CatalogueEntry]:
        """Yields the images of one or all classes in local shards; reads only keys and classes."""
        classes = None if of_class is None else self._dataset.classes.indices([of_class])
        for split, records in self._splits.items():
            names = Names(records)
            for shard in records.placement.held(records.examples_per_shard):
                for entry in self._entries(split, shard, names):
                    if classes is None or entry.class_index in classes:
                        yield entry
            records.close()

    def _entries(self, split: str, shard: int, names: Names) -> Iterator[CatalogueEntry]:
        records = self._splits[split]
        heads = zip(records.numbers_of(shard), names.of(shard), strict=True)
        for number, (class_index, key, _) in heads:
            yield CatalogueEntry(split, number, class_index, records.wnids[class_index], key)

    def having(self, sha256: str) -> Iterator[tuple[CatalogueEntry, Sample]]:
        """Yields the images whose stored or source file has this sha256 (as hex digits)."""
        self._dataset.require_samples()
        for split, records in self._splits.items():
            names = Names(records)
            for shard in records.placement.held(records.examples_per_shard):
                if not names.mentions(shard, [sha256.encode()]):
                    continue
                samples = list(names.samples(shard))  # read to the end, which verifies the table
                for number, sample in zip(records.numbers_of(shard), samples, strict=True):
                    if sha256 in (sample.sha256, sample.source_sha256):
                        wnid = records.wnids[sample.class_index]
                        yield (
                            CatalogueEntry(split, number, sample.class_index, wnid, sample.key),
                            sample,
                        )

    def place(self, entry: CatalogueEntry) -> tuple[str, int]:
        """Returns an image's shard, and its record number in this shard."""
        shard, record = self._splits[entry.split].place(entry.number)
        return self._splits[entry.split].shards[shard].name, record

    def sample(self, entry: CatalogueEntry) -> Sample | None:
        """Returns the line of an image in its table of samples; None without tables."""
        records = self._splits[entry.split]
        if not records.manifest.has_samples:
            return None
        shard, record = records.place(entry.number)
        return list(Names(records).samples(shard))[record]

    def source(self, entry: CatalogueEntry) -> str | None:
        """Returns the folder that `amend` added with an image, or else the only other source.

        None if there are several others, or a large folder, of which the manifest lists no image.
        """
        others = []
        for source in self._dataset.manifest.sources:
            if f"{entry.split}:{entry.key}" in source.images:
                return source.name
            if not (source.images and source.name.startswith(schema.ADDED)):
                others.append(source.name)
        return others[0] if len(others) == 1 else None

    def find(self, keys: Collection[str]) -> dict[str, list[CatalogueEntry]]:
        """Returns, for each key (CLASS/NAME or NAME), the first matching image of each split.

        If an image has exactly this key, only images with exactly this key match.
        """
        entries_of: dict[str, list[CatalogueEntry]] = {}
        # Searching a table for a few strings takes a tenth of the time of parsing its lines.
        parts = [(key.rpartition("/")[2] or key).replace('"', '""') for key in keys]
        texts = [part.encode(errors="surrogateescape") for part in parts]
        for split, records in self._splits.items():
            names = Names(records)
            first: dict[str, CatalogueEntry] = {}
            for shard in records.placement.held(records.examples_per_shard):
                if len(texts) <= _FEW and not names.mentions(shard, texts):
                    continue
                for entry in self._entries(split, shard, names):
                    for key in spellings(entry.key, entry.wnid):
                        known = first.get(key)
                        is_better = known is None or (entry.key == key != known.key)
                        if key in keys and is_better:
                            first[key] = entry
            for key, entry in first.items():
                entries_of.setdefault(key, []).append(entry)
        return {
            key: [entry for entry in entries if entry.key == key] or entries
            for key, entries in entries_of.items()
        }

    def like(self, key: str) -> str | None:
        """Returns an existing key that looks the same as `key`, or a similar one, or None.

        A similar key differs only in case, extension or folder.
        """
        seen = as_seen(key)
        wanted = PurePosixPath(seen.casefold())
        near = in_folder = None
        for entry in self.entries():
            if as_seen(entry.key) == seen:
                return entry.key
            name = PurePosixPath(as_seen(entry.key).casefold())
            if name.stem == wanted.stem:
                near = near or entry.key
                if name.parent == wanted.parent:
                    in_folder = in_folder or entry.key
        return in_folder or near

    def read(self, entry: CatalogueEntry) -> tuple[Json, ImageExample]:
        """Returns the location of an image (shard, record, offset, size), and the image."""
        records = self._splits[entry.split]
        return records.located(entry.number), records.read(entry.number)
