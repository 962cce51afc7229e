"""Finds stored images with equal bytes: in train and another split, or of an excluded copy.

`also_in_train` returns images of other splits that train has, too. `with_kept` completes the lines
of excluded images: an image that was one of several copies is only excluded under its key.
`read_exclusions` reads the list of an --exclude flag for a new dataset.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from imagenet_prep.dataset import schema, shared_flags
from imagenet_prep.dataset.keys import KeyList
from imagenet_prep.dataset.manifest import Manifest, Shard
from imagenet_prep.dataset.member import Incident
from imagenet_prep.shards.sorted_tables import digests
from imagenet_prep.storage import dataset_store
from imagenet_prep.storage.dataset_store import Dataset, open_dataset
from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.storage.remote import prefetch
from imagenet_prep.storage.store import Readable

_SHA256 = re.compile(rb"[0-9a-f]{64}")
_MOST_BYTES = 32 << 20  # of a table in memory; larger ones are parsed line by line


def also_in_train(dataset: Dataset) -> dict[str, list[str]]:
    """Returns, for each other split, the keys of images whose stored bytes train has, too."""
    splits = dataset.manifest.splits
    others = [name for name in splits if name != schema.TRAIN]
    if not others or schema.TRAIN not in splits or not dataset.manifest.has_samples:
        return {}

    def images(split: str) -> Iterator[tuple[str, bytes]]:
        return digests(dataset.store, dataset.shards(split))

    elsewhere = {digest for name in others for _, digest in images(name)}
    in_both = {digest for _, digest in images(schema.TRAIN) if digest in elsewhere}
    found = {
        name: sorted(key for key, digest in images(name) if digest in in_both)
        for name in others
        if in_both
    }
    return {name: keys for name, keys in found.items() if keys}


def read_exclusions(path: str | os.PathLike[str], *, allows_unknown: bool = False) -> KeyList:
    """Returns the images of an --exclude list for a new dataset; see `shared_flags`.

    A quarantine.jsonl that an older version wrote does not tell which copies its dataset has kept.
    If the file is still in its dataset, the tables of samples tell it.
    """

    def complete(incidents: list[Incident]) -> list[Incident]:
        file = Path(path).expanduser()
        store = LocalStore(file.parent)
        if file.name != schema.QUARANTINE or store.size(schema.MANIFEST) is None:
            return incidents
        manifest = open_dataset(store, parts=True).manifest
        tables = {schema.samples_name(shard.name) for shard in manifest.shards}
        # The tables are missing if the dataset is a part, has none, or was deleted except for this.
        if tables - store.sizes(tables).keys():
            return incidents
        return with_kept(store, manifest, incidents)

    return shared_flags.read_exclusions(path, allows_unknown=allows_unknown, complete=complete)


def with_kept(store: Readable, draft: Manifest, incidents: Iterable[Incident]) -> list[Incident]:
    """Returns all incidents; excluded images get the source splits that have their bytes.

    The lines that `resize` copied from its input also keep the splits that they had, because the
    new tables do not have the hashes of the input's source files.
    """
    incidents = [*incidents]
    wanted = {sha256 for line in incidents if _has_bytes(line) for sha256 in line.sizes}
    if not wanted:
        return incidents
    stored_in: dict[str, set[str]] = defaultdict(set)
    for name, split in draft.splits.items():
        origin = draft.settings.origin(name)
        with_tables = [shard for shard in split.shards if shard.samples is not None]
        for sha256 in _stored(store, with_tables, wanted):
            stored_in[sha256].add(origin)

    def complete(line: Incident) -> Incident:
        if not _has_bytes(line):
            return line
        splits = {*line.kept_in} if line.is_of_input else set()
        splits.update(*(stored_in.get(sha256, ()) for sha256 in line.sizes))
        return replace(line, kept_in=tuple(sorted(splits)))

    return [*map(complete, incidents)]


def _has_bytes(line: Incident) -> bool:
    """Returns whether a line excludes an image by its bytes; salted digests are of no use here."""
    return line.is_excluded and not line.salt


def _stored(store: Readable, shards: Iterable[Shard], wanted: Collection[str]) -> Iterator[str]:
    """Yields the wanted sha256 of images or source files that the tables of these shards have."""
    texts = {sha256.encode() for sha256 in wanted}
    tables = prefetch(partial(dataset_store.sound_table, store, most=_MOST_BYTES), shards)
    for shard, table in tables:
        data = table.result()
        # Parsing takes ten times as long as this search, which may also find parts of keys.
        if data is not None and texts.isdisjoint(_SHA256.findall(data)):
            continue
        for sample in dataset_store.sample_rows(store, shard):
            yield from {sample.sha256, sample.source_sha256}.intersection(wanted)
