"""Statistics of a table of samples: histograms, sums, and the classes.

The bins are logarithmic, so that the same bins suit side lengths, aspect ratios and bytes. The
histograms of a dataset are the sums of its shards' histograms.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from imagenet_prep.dataset.samples import KEPT, Sample

# Each bin starts 9 % above the previous bin; eight bins double the value.
BINS_PER_OCTAVE = 8
_TOGETHER = 50_000

SHORT_SIDE = "short_side"
SOURCE_SHORT_SIDE = "source_short_side"
ASPECT = "aspect"
SOURCE_ASPECT = "source_aspect"
BYTES = "bytes"
SOURCE_BYTES = "source_bytes"

Histograms = dict[str, Counter[int]]


@dataclass
class Measured:
    """Statistics of some images: histograms (counts by bin), sums, and the class indices."""

    histograms: Histograms = field(default_factory=dict)
    sums: Counter[str] = field(default_factory=Counter)
    classes: set[int] = field(default_factory=set)
    changed: int = 0  # number of images that were not kept unchanged

    def add(self, other: Measured) -> None:
        """Adds the statistics of more images."""
        for name, counts in other.histograms.items():
            self.histograms.setdefault(name, Counter()).update(counts)
        self.sums.update(other.sums)
        self.classes |= other.classes
        self.changed += other.changed


def of(samples: Iterable[Sample]) -> Measured:
    """Returns the statistics of these samples."""
    import numpy as np

    measured = Measured()
    remaining = iter(samples)
    while rows := list(itertools.islice(remaining, _TOGETHER)):
        columns = [(r[2:5], r[8:11]) for r in rows]
        array = np.asarray(columns, dtype=np.float64).reshape(-1, 6)
        num_bytes, width, height, source_bytes, source_width, source_height = array.T
        values = {
            SHORT_SIDE: np.minimum(height, width),
            SOURCE_SHORT_SIDE: np.minimum(source_height, source_width),
            ASPECT: width / height,
            SOURCE_ASPECT: source_width / source_height,
            BYTES: num_bytes,
            SOURCE_BYTES: source_bytes,
        }
        histograms = {}
        for name, column in values.items():
            bins = np.floor(BINS_PER_OCTAVE * np.log2(column)).astype(np.int64)
            histograms[name] = Counter(bins.tolist())
        sums = Counter({name: float(column.sum()) for name, column in values.items()})
        changed = sum(row.action != KEPT for row in rows)
        measured.add(Measured(histograms, sums, {row.class_index for row in rows}, changed))
    return measured


def lower_edge(bin_number: int) -> float:
    """Returns the smallest value in a bin."""
    return float(2 ** (bin_number / BINS_PER_OCTAVE))
