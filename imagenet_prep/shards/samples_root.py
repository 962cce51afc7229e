"""The root of a split: one digest of its images and labels, whatever shards they lie in.

RFC 6962's tree (`merkle`) over the samples in the order of their keys, as bytes of UTF-8. They are
sorted on the disk, since 14 million of them do not fit into memory.
"""

from __future__ import annotations

from collections.abc import Iterable

from imagenet_prep.dataset import merkle
from imagenet_prep.dataset.manifest import Split
from imagenet_prep.dataset.samples import Sample
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
    rows = (sample for shard in split.shards for sample in tables.rows(store, shard))
    return samples_root(rows)


def samples_root(samples: Iterable[Sample]) -> str:
    """Returns the root of a split in hex.

    Args:
      samples: of all its shards, in any order; read once.

    Raises:
      IncompleteError: the disk is full: sorted samples are put below TMPDIR, 150 bytes each.
    """
    # No key has a byte of 0, so the rest of a line decides only between equal keys.
    entries = (b"%b\0%b\n" % (sample.key.encode(), sample.leaf) for sample in samples)
    with scratch.place() as folder:
        lines = runs.merged(runs.write(folder, "samples", entries))
        return merkle.root(line[line.index(b"\0") + 1 : -1] for line in lines)
