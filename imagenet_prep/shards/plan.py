"""The plan of a split: assigns each image to a shard and to a position in the shard.

Images are sorted by class, and within a class by a keyed hash. The n-th image of this order goes
to shard n mod num_shards. So the sizes of shards differ by at most one image, each shard is a
representative sample of all classes, and the plan does not depend on archives, hosts or time.

The images are rows of arrays: as objects, 14 million images would take 5 GB.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from imagenet_prep.dataset import schema
from imagenet_prep.dataset.member import Member

# Maximum size of a plan file, which is enough for a shard of ten million images.
MOST_BYTES = 1 << 30
# Larger image files have this size in an `ENTRY`; they are never read completely.
_MOST_SIZE = (1 << 32) - 1

Array = npt.NDArray[Any]
# The fields of an image that decide its position; the array of a list has one entry per line.
ENTRY = np.dtype(
    [
        ("hash", "<u8"),  # sorts the images of a class
        ("order", "<u8"),  # sorts the images of a shard
        ("class_index", "<u4"),
        ("size", "<u4"),  # bytes of the image
        ("line_bytes", "<u4"),  # bytes of its line in the list
    ]
)
# With the hash that chooses the images of a holdout.
RANKED_ENTRY = np.dtype([*ENTRY.descr, ("rank", "<u8")])


@dataclass(frozen=True)
class SplitPlan:
    """Summary of the plan of one split; `digest` is the sha256 over all plan files in order."""

    split: str
    num_shards: int
    num_per_class: tuple[int, ...]
    source_bytes: int
    digest: str

    @property
    def examples(self) -> int:
        """Number of members in all shards."""
        return sum(self.num_per_class)

    @property
    def shard_names(self) -> list[str]:
        """Names of the shards, in order."""
        return [schema.shard_name(self.split, i, self.num_shards) for i in range(self.num_shards)]


def keyed_hash(seed: int, *parts: str) -> int:
    """Returns a 64-bit hash that depends only on the seed and the parts (keyed BLAKE2b)."""
    hasher = _keyed(seed).copy()
    hasher.update("\0".join(parts).encode())
    return int.from_bytes(hasher.digest(), "big")


# Cached, because it takes a third of the time of a hash, and each image needs two hashes.
@functools.cache
def _keyed(seed: int) -> hashlib.blake2b:
    return hashlib.blake2b(digest_size=8, key=seed.to_bytes(8, "big", signed=True))


def hashes(seed: int, keys: Sequence[str], *purpose: str) -> Array:
    """Returns the `keyed_hash` of each key; `purpose` precedes the keys."""
    numbers = (keyed_hash(seed, *purpose, key) for key in keys)
    return np.fromiter(numbers, np.uint64, len(keys))


def entries(
    members: Sequence[Member], line_bytes: Sequence[int], seed: int, *, ranked: bool
) -> Array:
    """Returns the `ENTRY` of each member of a list, or its `RANKED_ENTRY`."""
    keys = [member.key for member in members]
    rows = np.empty(len(members), RANKED_ENTRY if ranked else ENTRY)
    rows["hash"] = hashes(seed, keys)
    rows["order"] = hashes(seed, keys, "order")
    rows["class_index"] = [member.class_index for member in members]
    rows["size"] = [min(member.size, _MOST_SIZE) for member in members]
    rows["line_bytes"] = line_bytes
    if ranked:
        rows["rank"] = hashes(seed, keys, "holdout")
    return rows


def first_of_each_class(
    class_index: Array,
    hashes_of_rows: Array,
    numbers: Sequence[int],
    keys_of: Callable[[Array], Sequence[str]],
) -> Array:
    """Returns the rows with the lowest hashes of each class, sorted by class and hash.

    `numbers` is the number of rows to return by class index. `keys_of` returns the keys of rows;
    it is only called for rows with equal hashes, which are sorted by key.
    """
    # With 32 bits instead of 64, the rows of 14 million images take 57 MB instead of 114.
    rows = np.lexsort((hashes_of_rows, class_index)).astype(np.uint32)
    ordered = hashes_of_rows[rows]
    equal = np.flatnonzero(ordered[1:] == ordered[:-1])
    del ordered
    same_class = class_index[rows[equal]] == class_index[rows[equal + 1]]
    is_used = np.array(numbers, dtype=bool)[class_index[rows[equal]]]
    equal = equal[same_class & is_used]
    if len(equal):
        # Rows of one tie are adjacent, and all ties are in the order of class and hash already. So
        # sorting the rows of all ties at once only changes the order within each tie.
        places = np.union1d(equal, equal + 1)
        tied = np.sort(rows[places])
        facts = (class_index[tied].tolist(), hashes_of_rows[tied].tolist(), keys_of(tied), tied)
        rows[places] = [row for *_, row in sorted(zip(*facts, strict=True))]
    by_class = split_rows(rows, np.bincount(class_index, minlength=len(numbers)))
    return np.concatenate(
        [of_class[:number] for of_class, number in zip(by_class, numbers, strict=True)]
    )


def split_rows(rows: Array, numbers: Sequence[int] | Array) -> list[Array]:
    """Divides rows into parts with these numbers of rows."""
    return np.split(rows, np.cumsum(numbers)[:-1])


def file_name(shard: str) -> str:
    """Returns the name of a shard's plan file."""
    return f"{shard}.jsonl"
