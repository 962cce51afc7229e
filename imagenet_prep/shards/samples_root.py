"""The root of a split: one digest of its images and labels, whatever shards they lie in.

RFC 6962's tree (`merkle`) over the samples in the order of their keys, as bytes of UTF-8. They are
sorted on the disk, since 14 million of them do not fit into memory.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path

from imagenet_prep.dataset import merkle
from imagenet_prep.dataset.samples import Sample
from imagenet_prep.shards import runs


def samples_root(samples: Iterable[Sample], folder: Path) -> str:
    """Returns the root of a split in hex.

    Args:
      samples: of all its shards, in any order; read once.
      folder: sorted samples are put there while this runs, 150 bytes each.

    Raises:
      IncompleteError: the disk is full.
    """
    # No key has a byte of 0, so the rest of a line decides only between equal keys.
    entries = (b"%b\0%b\n" % (sample.key.encode(), sample.leaf) for sample in samples)
    with tempfile.TemporaryDirectory(prefix="samples-", dir=folder) as temporary:
        files = runs.write(Path(temporary), "samples", entries)
        lines = (line for (of_range,) in runs.side_by_side([files]) for line in of_range)
        return merkle.root(line[line.index(b"\0") + 1 : -1] for line in lines)
