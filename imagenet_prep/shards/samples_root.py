"""The root of a split: one digest of its images and labels, whatever shards they lie in.

RFC 6962's tree (`merkle`) over the samples in the order of their keys, as bytes of UTF-8. They are
sorted on the disk, since 14 million of them do not fit into memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from functools import partial

from imagenet_prep.dataset import merkle, samples
from imagenet_prep.dataset.manifest import Split
from imagenet_prep.dataset.samples import Head, Sample
from imagenet_prep.shards import runs
from imagenet_prep.storage import scratch, tables
from imagenet_prep.storage.store import Store


def root_of(store: Store, split: Split) -> str:
    """Returns the root of a split whose tables lie in a store, each proven.

    Raises:
      DataDamagedError: a table is not what the manifest says.
      StoreError: it cannot be read.
      IncompleteError: the disk for temporary files is full.
    """
    parse = partial(samples.heads, images=True)
    return _root(itertools.chain.from_iterable(tables.each(parse, store, split.shards)))


def samples_root(rows: Iterable[Sample]) -> str:
    """Returns the root of a split in hex.

    Args:
      rows: of all its shards, in any order; read once.

    Raises:
      IncompleteError: the disk is full: sorted samples are put below TMPDIR, 150 bytes each.
    """
    return _root(row.head for row in rows)


def _root(heads: Iterable[Head]) -> str:
    with scratch.place() as folder:
        files = runs.write(folder, "samples", map(samples.entry, heads))
        lines = (line for (of_range,) in runs.side_by_side([files]) for line in of_range)
        return merkle.root(line[line.index(b"\0") + 1 : -1] for line in lines)
