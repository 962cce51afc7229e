"""The root of a split: one digest of its images and labels, independent of their shards.

The root is the Merkle tree hash of RFC 6962 (`merkle`) over the samples, ordered by key as UTF-8
bytes. The samples are sorted on disk, because 14 million of them do not fit in memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from imagenet_prep.core.errors import DataDamagedError
from imagenet_prep.dataset import merkle, samples
from imagenet_prep.dataset.manifest import Shard, Split
from imagenet_prep.dataset.samples import Head
from imagenet_prep.shards import runs
from imagenet_prep.storage import dataset_store, scratch
from imagenet_prep.storage.dataset_store import Dataset
from imagenet_prep.storage.store import Readable


def wrong_roots(dataset: Dataset) -> list[str]:
    """Returns a problem for each split with repeated keys or (unless partitioned) a wrong root."""
    problems = []
    for name, split in dataset.manifest.splits.items():
        try:
            root = root_of(dataset.store, replace(split, shards=dataset.shards(name)))
        except DataDamagedError as error:
            problems.append(str(error))
            continue
        if dataset.placement.nodes == 1 and root != split.samples_root:
            problems.append(
                f"{name}: the root of its tables of samples is {root}, expected "
                f"{split.samples_root} as in the manifest"
            )
    return problems


def root_of(store: Readable, split: Split) -> str:
    """Returns the root of a split from its tables in a store; each table is verified."""
    parse = partial(samples.heads, images=True)
    heads = itertools.chain.from_iterable(dataset_store.each_table(parse, store, split.shards))
    return samples_root(heads, store, split.shards)


def samples_root(heads: Iterable[Head], store: Readable, shards: Sequence[Shard]) -> str:
    """Returns the root, in hex, of samples in any order; errors name `store` and `shards`."""
    with scratch.temporary_folder() as folder:
        files = runs.write(folder, "samples", map(samples.entry, heads))
        ranges = runs.side_by_side([files])
        lines = itertools.chain.from_iterable(entries for (entries,) in ranges)
        return merkle.root(_leaves(lines, store, shards))


def equal_keys(store: Readable, shards: Sequence[Shard], key: str) -> DataDamagedError:
    """Returns the error for two records with the same key, after searching for their locations."""
    places: list[str] = []
    for shard, heads in zip(
        shards, dataset_store.each_table(samples.heads, store, shards), strict=True
    ):
        keys = enumerate(head[1] for head in heads)
        places += (f"record {number} of {shard.name}" for number, found in keys if found == key)
    return same_key(store, key, *places[:2])


def same_key(store: Readable, key: str, *places: str) -> DataDamagedError:
    """Returns the error for records at these locations with the same key."""
    return DataDamagedError(
        f"{store.where()}: two records have the same key {key!r}: {' and '.join(places)}. Every "
        "image needs a unique key. If a different program wrote these shards, imagenet-prep adopt "
        "--out NEW gives the images of NEW unique keys."
    )


def _leaves(lines: Iterable[bytes], store: Readable, shards: Sequence[Shard]) -> Iterator[bytes]:
    previous = None
    for line in lines:
        key, _, leaf = line.partition(b"\0")
        if key == previous:
            raise equal_keys(store, shards, key.decode())
        previous = key
        yield leaf[:-1]
