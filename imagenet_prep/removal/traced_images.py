"""Images in the tables of a dataset, by their hashes, and the shards that were found."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from imagenet_prep.dataset import keys
from imagenet_prep.dataset.samples import Sample
from imagenet_prep.storage import dataset_store
from imagenet_prep.storage.dataset_store import Dataset


class TracedImage(NamedTuple):
    """An image in a dataset; `number` is its position in the split, `record` in its shard."""

    split: str
    number: int
    shard: str
    record: int
    sample: Sample

    @property
    def line(self) -> str:
        """The image as a line in a list of keys."""
        return keys.with_split(self.split, self.sample.key)

    @property
    def record_on_pages(self) -> str:
        """The place of the image, as pages show it."""
        return f"{self.shard}, record {self.record}, byte "

    @property
    def sizes(self) -> dict[str, int]:
        """The size in bytes of the stored image and of its source file, by sha256."""
        return self.sample.sizes


def stored_images(dataset: Dataset) -> Iterator[TracedImage]:
    """Yields all images of a dataset, from its tables of samples."""
    for split, entry in dataset.manifest.splits.items():
        numbers = itertools.count()
        for shard, rows in zip(entry.shards, dataset.rows(entry.shards), strict=True):
            for record, sample in enumerate(rows):
                yield TracedImage(split, next(numbers), shard.name, record, sample)


def images_with(dataset: Dataset, hashes: Collection[str]) -> list[TracedImage]:
    """Returns the images whose stored bytes or source file have one of these sha256."""
    texts = [sha256.encode() for sha256 in sorted(hashes)]
    found: list[TracedImage] = []
    for split, entry in dataset.manifest.splits.items():
        first = 0
        # A part of a dataset lacks the tables of the other parts.
        here = dataset.shards(split)
        for shard in entry.shards:
            if shard in here and dataset_store.table_mentions(dataset.store, shard, texts):
                for record, sample in enumerate(dataset_store.sample_rows(dataset.store, shard)):
                    if {sample.sha256, sample.source_sha256} & {*hashes}:
                        found.append(TracedImage(split, first + record, shard.name, record, sample))
            first += shard.examples
    return found


def shards_of(digest: str, datasets: Iterable[Dataset]) -> set[str]:
    """Returns the names of the shards of one dataset in the folders of all its parts."""
    names: set[str] = set()
    for dataset in datasets:
        if dataset.manifest.digest == digest:
            for split in dataset.manifest.splits:
                names.update(shard.name for shard in dataset.shards(split))
    return names
