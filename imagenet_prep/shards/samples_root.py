"""The root of a split: one digest of its images and labels, independent of their shards.

It is the Merkle tree hash of RFC 6962 (`merkle`) over the samples, ordered by key as UTF-8 bytes.
They are sorted on disk, because 14 million samples do not fit in memory.
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
from imagenet_prep.storage import scratch, tables
from imagenet_prep.storage.opened import Dataset
from imagenet_prep.storage.store import Readable


def wrong_roots(dataset: Dataset) -> list[str]:
    """Returns the problems with the samples of each split, beyond those of individual tables.

    For a node's part of a partitioned dataset, only duplicate keys can be detected.
    """
    problems = []
    for name, split in dataset.manifest.splits.items():
        try:
            root = root_of(dataset.store, replace(split, shards=dataset.shards(name)))
        except DataDamagedError as error:
            problems.append(str(error))
            continue
        if dataset.placement.nodes == 1 and root != split.samples_root:
            problems.append(
                f"{name}: the root of its tables of samples is {root}, the manifest says "
                f"{split.samples_root}"
            )
    return problems


def root_of(store: Readable, split: Split) -> str:
    """Returns the root of a split from its tables in a store; each table is verified."""
    parse = partial(samples.heads, images=True)
    heads = itertools.chain.from_iterable(tables.each(parse, store, split.shards))
    return samples_root(heads, store, split.shards)


def samples_root(heads: Iterable[Head], store: Readable, shards: Sequence[Shard]) -> str:
    """Returns the root of a split in hex, from samples in any order; the rest is for errors."""
    with scratch.place() as folder:
        files = runs.write(folder, "samples", map(samples.entry, heads))
        try:
            return merkle.root(_leaves(runs.side_by_side([files])))
        except _EqualKeysError as error:
            raise equal_keys(store, shards, str(error)) from None


def equal_keys(store: Readable, shards: Sequence[Shard], key: str) -> DataDamagedError:
    """Returns the error for two records with this key in a split, including their locations."""
    found = zip(shards, tables.each(samples.heads, store, shards), strict=True)
    places = [
        f"record {number} of {shard.name}"
        for shard, heads in found
        for number, (_, other, _) in enumerate(heads)
        if other == key
    ]
    return same_key(store, key, *places[:2])


def same_key(store: Readable, key: str, *places: str) -> DataDamagedError:
    """Returns the error for records at these locations with the same key."""
    return DataDamagedError(
        f"{store.where()}: two records have the key {key!r}: {' and '.join(places)}. An image "
        "has a key of its own. imagenet-prep adopt gives the shards of another program such keys: "
        "with --out NEW, then use NEW."
    )


class _EqualKeysError(Exception):
    """Two samples have this key."""


def _leaves(ranges: Iterable[Sequence[Iterable[bytes]]]) -> Iterator[bytes]:
    before = None
    for line in itertools.chain.from_iterable(lines for (lines,) in ranges):
        key, _, leaf = line.partition(b"\0")
        if key == before:
            raise _EqualKeysError(key.decode())
        before = key
        yield leaf[:-1]
