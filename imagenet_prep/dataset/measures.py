"""What a shard's receipt tells of its images: histograms, and a few of them by name.

A few kilobytes a shard, however many records it has. Bins are logarithmic, so that one rule
fits sides, aspects and bytes, and histograms of shards add up to those of a data set.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import NamedTuple

from imagenet_prep.dataset.member import Member, PreparedImage

# An eighth of an octave: 9 % from one bin to the next.
BINS_PER_OCTAVE = 8
# A receipt names between this many images and twice as many. With 1024 shards of ImageNet, of
# which each holds a fair sample, no class is left without one.
_FEWEST = 8

SHORT_SIDE, SOURCE_SHORT_SIDE = "short_side", "source_short_side"
ASPECT, SOURCE_ASPECT = "aspect", "source_aspect"
BYTES, SOURCE_BYTES = "bytes", "source_bytes"

Histograms = dict[str, Counter[int]]


class Origin(NamedTuple):
    """Where one record came from, and what it was there.

    Attributes:
      record: its number in the shard.
      key: of the member.
      archive, offset, size: byte range of the source image.
      height, width: pixels of the source image.
    """

    record: int
    key: str
    archive: str
    offset: int
    size: int
    height: int
    width: int


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What the receipt of a shard says of its images.

    Attributes:
      histograms: counts by bin, by measure.
      sums: exact sums, by measure.
      origins: of some images.
      num_classes: how many different classes the images have.
      max_height, max_width: the largest sides, in pixels.
    """

    histograms: dict[str, dict[str, int]]
    sums: dict[str, float]
    origins: list[Origin]
    num_classes: int
    max_height: int
    max_width: int


class Measures:
    """Collects from the images of one shard, in the order of its records."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, int, int, int, int, int]] = []
        self._origins: list[Origin] = []
        self._stride = 1
        self._classes: set[int] = set()

    def add(self, member: Member, image: PreparedImage) -> None:
        """Counts one stored image."""
        number = len(self._rows)
        self._classes.add(member.class_index)
        height, width = image.source_size or (image.height, image.width)
        self._rows.append(
            (height, width, image.height, image.width, member.size, len(image.encoded))
        )
        if number % self._stride == 0:
            self._origins.append(Origin(number, *member[:4], height, width))
            if len(self._origins) == 2 * _FEWEST:
                # Every second one goes, so that they stay spread over the whole shard.
                self._origins = self._origins[::2]
                self._stride *= 2

    def content(self) -> Measured:
        """Returns what the receipt keeps of at least one image."""
        import numpy as np

        rows = np.maximum(np.asarray(self._rows, dtype=np.float64).reshape(-1, 6), 1)
        source_height, source_width, height, width, source_bytes, num_bytes = rows.T
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
            bins, counts = np.unique(
                np.floor(BINS_PER_OCTAVE * np.log2(column)).astype(np.int64), return_counts=True
            )
            histograms[name] = dict(zip(map(str, bins), counts.tolist(), strict=True))
        return Measured(
            histograms=histograms,
            sums={name: round(float(column.sum()), 3) for name, column in values.items()},
            origins=self._origins,
            num_classes=len(self._classes),
            max_height=int(height.max()),
            max_width=int(width.max()),
        )


def lower_edge(bin_number: int) -> float:
    """Returns the smallest value that falls into a bin."""
    return float(2 ** (bin_number / BINS_PER_OCTAVE))
