"""The plan: which image goes into which shard, and in which order.

Images are sorted by class, and within a class by a keyed hash. The n-th image of this order goes
to shard n mod num_shards. So shard sizes differ by at most one, every shard is a fair sample of
all classes, and nothing depends on archives, hosts or time.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from imagenet_prep.core.errors import UsageError, some
from imagenet_prep.dataset import naming
from imagenet_prep.dataset.member import Member, dump_member, parse_members
from imagenet_prep.shards import runs
from imagenet_prep.storage.os_errors import storage_errors


@dataclass(frozen=True)
class SplitPlan:
    """What a plan says of one split.

    Attributes:
      split: "train", "validation" or "holdout".
      num_shards: at least 1, at most `examples`.
      num_per_class: members by class index.
      source_bytes: of all members.
      largest_shard_bytes: source bytes of the fullest shard.
      digest: sha256 over all plan files in order.
    """

    split: str
    num_shards: int
    num_per_class: tuple[int, ...]
    source_bytes: int
    largest_shard_bytes: int
    digest: str

    @property
    def examples(self) -> int:
        """Members over all shards."""
        return sum(self.num_per_class)

    @property
    def shard_names(self) -> list[str]:
        """Names of the shards, in order."""
        return [naming.shard_name(self.split, i, self.num_shards) for i in range(self.num_shards)]


def keyed_hash(seed: int, *parts: str) -> int:
    """Returns 64 bits that depend on the seed and the parts alone (keyed BLAKE2b)."""
    key = seed.to_bytes(8, "big", signed=True)
    text = "\0".join(parts).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8, key=key).digest(), "big")


def permute(members: Iterable[Member], seed: int) -> list[Member]:
    """Returns the members of one class in the order in which shards are dealt."""
    return sorted(members, key=lambda member: (keyed_hash(seed, member.key), member.key))


def hold_out(
    classes: Iterable[Iterable[Member]], number: int, seed: int
) -> Callable[[Member], bool]:
    """Chooses members by a keyed hash of their keys; returns what tells whether one is chosen.

    Args:
      classes: the members of each class, in any order; read once.
      number: how many are chosen; at most all.
      seed: decides which, together with the keys, and nothing else does.
    """
    ranks = (holdout_rank(member, seed) for members in classes for member in members)
    last = heapq.nsmallest(number, ranks)[-1:]
    return lambda member: [holdout_rank(member, seed)] <= last


def holdout_rank(member: Member, seed: int) -> tuple[int, str]:
    """Returns what decides whether a member is held out: those with the smallest are."""
    return keyed_hash(seed, "holdout", member.key), member.key


def deal_class(
    members: Iterable[Member], first: int, num_shards: int, seed: int
) -> Iterator[tuple[int, Member]]:
    """Yields (shard index, member) for the members of one class.

    Args:
      members: in any order.
      first: how many members of the split have a smaller class index.
      num_shards: of the split.
      seed: decides the permutation.
    """
    for position, member in enumerate(permute(members, seed), first):
        yield position % num_shards, member


def deal(
    classes: Iterable[Iterable[Member]], num_shards: int, seed: int
) -> Iterator[tuple[int, Member]]:
    """Yields (shard index, member) for classes given in class-index order."""
    first = 0
    for members in classes:
        of_class = list(members)
        yield from deal_class(of_class, first, num_shards, seed)
        first += len(of_class)


def place_in_shard(member: Member, seed: int) -> tuple[int, str]:
    """Returns what the members of a shard are sorted by when they are written."""
    return keyed_hash(seed, "order", member.key), member.key


# An entry begins with the number of its shard, and then its place in the shard, in hex digits.
_SHARD_DIGITS = 8
_PLACE_DIGITS = 16


def entry(shard: int, member: Member, seed: int) -> bytes:
    """Returns a member as a line that sorts, as bytes, by shard and by place in the shard."""
    place, _ = place_in_shard(member, seed)
    return b"%08d%016x%b" % (shard, place, dump_member(member))


def content(entries: Iterable[bytes]) -> bytes:
    """Returns the plan file of one shard from its entries, in any order."""
    prefix = _SHARD_DIGITS + _PLACE_DIGITS
    return b"".join(line[prefix:] for line in sorted(entries))


def write(
    folder: Path,
    split: str,
    classes: Iterable[Iterable[Member]],
    *,
    num_classes: int,
    num_shards: int,
    seed: int,
    excluded: Collection[str] = (),
) -> SplitPlan:
    """Writes one file a shard, `folder/<shard>.jsonl`, and returns the summary.

    Members go through sorted runs on the disk, so memory depends on the largest class and the
    largest shard, and not on their number. The files can be made again at any time, so they are
    not synced to the disk.

    Args:
      folder: exists.
      split: "train", "validation" or "holdout".
      classes: the members of each class, in class-index order; read once.
      num_classes: how many classes there are; some may have no member.
      num_shards: at least 1.
      seed: decides the permutation.
      excluded: keys whose members are left out where they were dealt.

    Raises:
      UsageError: a shard is left without a member.
      IncompleteError: the disk is full.
    """
    shard_bytes = [0] * num_shards
    num_per_class = [0] * num_classes
    filled = bytearray(num_shards)

    def entries() -> Iterator[bytes]:
        for shard, member in deal(classes, num_shards, seed):
            if member.key in excluded:
                continue
            filled[shard] = 1
            shard_bytes[shard] += member.size
            num_per_class[member.class_index] += 1
            yield entry(shard, member, seed)

    files = runs.write(folder, split, entries())
    refuse_empty(split, num_shards, {shard for shard, n in enumerate(filled) if n})
    whole = hashlib.sha256()
    for shard, of_shard in runs.merged(files):
        lines = content(of_shard)
        whole.update(lines)
        path = folder / file_name(naming.shard_name(split, shard, num_shards))
        with storage_errors("write", path):
            path.write_bytes(lines)
    for file in files:
        file.unlink()
    return SplitPlan(
        split=split,
        num_shards=num_shards,
        num_per_class=tuple(num_per_class),
        source_bytes=sum(shard_bytes),
        largest_shard_bytes=max(shard_bytes),
        digest=whole.hexdigest(),
    )


def shard_of(line: bytes) -> int:
    """Returns the shard index of what `entry` returned."""
    return int(line[:_SHARD_DIGITS])


def refuse_empty(split: str, num_shards: int, filled: Collection[int]) -> None:
    """Raises UsageError where a shard of a split is left without a member."""
    if len(filled) < num_shards:
        empty = [i for i in range(num_shards) if i not in filled]
        names = [naming.shard_name(split, i, num_shards) for i in empty]
        raise UsageError(f"--exclude leaves no image in {some(names)}. Ask for fewer shards.")


def file_name(shard: str) -> str:
    """Returns the name of a shard's file in the folder of `write`."""
    return f"{shard}.jsonl"


def parse(data: bytes) -> list[Member]:
    """Returns the members of one shard, from its file, in the order in which they are written."""
    return parse_members(data)
