"""The plan of a split: assigns each image to a shard and to a position in the shard.

Images are sorted by class, and within a class by a keyed hash. The n-th image of this order goes
to shard n mod num_shards. So the sizes of shards differ by at most one image, each shard is a
representative sample of all classes, and the plan does not depend on archives, hosts or time.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from imagenet_prep.core.errors import UsageError, some
from imagenet_prep.dataset import naming
from imagenet_prep.dataset.member import Member, dump_member

# Maximum size of a plan file, which is enough for a shard of ten million images.
MOST_BYTES = 1 << 30


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
        return [naming.shard_name(self.split, i, self.num_shards) for i in range(self.num_shards)]


def keyed_hash(seed: int, *parts: str) -> int:
    """Returns a 64-bit hash that depends only on the seed and the parts (keyed BLAKE2b)."""
    hasher = _keyed(seed).copy()
    hasher.update("\0".join(parts).encode())
    return int.from_bytes(hasher.digest(), "big")


# Cached, because it takes a third of the time of a hash, and each image needs two hashes.
@functools.cache
def _keyed(seed: int) -> hashlib.blake2b:
    return hashlib.blake2b(digest_size=8, key=seed.to_bytes(8, "big", signed=True))


def permute(members: Iterable[Member], seed: int) -> list[Member]:
    """Returns the members of a class in the order in which they are assigned to shards."""
    return sorted(members, key=lambda member: (keyed_hash(seed, member.key), member.key))


def rank(member: Member, seed: int) -> tuple[int, str]:
    """Returns a member's sort key; the lowest keys of each class go to the holdout split."""
    return keyed_hash(seed, "holdout", member.key), member.key


def deal_class(
    members: Iterable[Member], first: int, num_shards: int, seed: int
) -> Iterator[tuple[int, Member]]:
    """Yields (shard index, member) for a class; earlier classes have `first` members in total."""
    for position, member in enumerate(permute(members, seed), first):
        yield position % num_shards, member


# An entry starts with its shard number, followed by its position in the shard in hex digits.
_SHARD_DIGITS = 8
_PLACE_DIGITS = 16


def entry(shard: int, member: Member, seed: int) -> bytes:
    """Returns a member as a line that sorts, as bytes, by shard and by position in the shard."""
    place = keyed_hash(seed, "order", member.key)
    return b"%08d%016x%b" % (shard, place, dump_member(member))


def files(
    split: str, num_shards: int, entries: Iterable[tuple[int, list[bytes]]]
) -> Iterator[tuple[int, str, bytes]]:
    """Yields the number, plan file name and plan file contents of each shard."""
    prefix = _SHARD_DIGITS + _PLACE_DIGITS
    for shard, lines in entries:
        data = b"".join(line[prefix:] for line in lines)
        yield shard, file_name(naming.shard_name(split, shard, num_shards)), data


def digest(contents: Iterable[bytes]) -> str:
    """Returns the sha256 over the plan files of all shards, in order."""
    total = hashlib.sha256()
    for data in contents:
        total.update(data)
    return total.hexdigest()


def shard_of(line: bytes) -> int:
    """Returns the shard index of a line from `entry`."""
    return int(line[:_SHARD_DIGITS])


def refuse_empty(split: str, num_shards: int, filled: Collection[int]) -> None:
    """Raises UsageError if a shard of a split has no members."""
    empty = [naming.shard_name(split, i, num_shards) for i in range(num_shards) if i not in filled]
    if empty:
        raise UsageError(f"--exclude leaves no image in {some(empty)}. Request fewer shards.")


def file_name(shard: str) -> str:
    """Returns the name of a shard's plan file."""
    return f"{shard}.jsonl"
