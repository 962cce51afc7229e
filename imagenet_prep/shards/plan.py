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
from imagenet_prep.storage.os_errors import storage_errors


@dataclass(frozen=True)
class SplitPlan:
    """What a plan says of one split.

    Attributes:
      split: "train", "validation" or "holdout".
      num_shards: at least 1, at most `examples`.
      num_per_class: members by class index.
      source_bytes: of all members.
      digest: sha256 over all plan files in order.
    """

    split: str
    num_shards: int
    num_per_class: tuple[int, ...]
    source_bytes: int
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


def hold_out(members: Iterable[Member], number: int, seed: int) -> Callable[[Member], bool]:
    """Chooses members by a keyed hash of their keys; returns what tells whether one is chosen.

    Args:
      members: in any order; read once.
      number: how many are chosen; at most all.
      seed: decides which, together with the keys, and nothing else does.
    """
    if not number:
        return lambda _: False
    return held_up_to(heapq.nsmallest(number, (rank(m, seed) for m in members))[-1], seed)


def rank(member: Member, seed: int) -> tuple[int, str]:
    """Returns what is least in the members that are held out."""
    return keyed_hash(seed, "holdout", member.key), member.key


def held_up_to(last: tuple[int, str], seed: int) -> Callable[[Member], bool]:
    """Returns what tells whether a member is held out, from the largest rank of those that are."""
    return lambda member: rank(member, seed) <= last


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


def entry_by_rank(member: Member, parts: int, seed: int) -> bytes:
    """Returns a member as a line that sorts by its rank; its number is one of `parts` ranges."""
    place, _ = rank(member, seed)
    return b"%08d%016x%b" % (place * parts >> 64, place, dump_member(member))


def content(entries: Iterable[bytes]) -> bytes:
    """Returns the plan file of one shard from its entries, in any order."""
    prefix = _SHARD_DIGITS + _PLACE_DIGITS
    return b"".join(line[prefix:] for line in sorted(entries))


def write(
    folder: Path, split: str, num_shards: int, entries: Iterable[tuple[int, list[bytes]]]
) -> list[int]:
    """Writes one file a shard, `folder/<shard>.jsonl`; returns the numbers of the shards.

    The files can be made again at any time, so they are not synced to the disk.

    Args:
      folder: exists.
      split, num_shards: for the names.
      entries: of some shards, as `runs.read` yields them.

    Raises:
      IncompleteError: the disk is full.
    """
    written = []
    for shard, of_shard in entries:
        path = folder / file_name(naming.shard_name(split, shard, num_shards))
        with storage_errors("write", path):
            path.write_bytes(content(of_shard))
        written.append(shard)
    return written


def digest(folder: Path, shards: Iterable[str]) -> str:
    """Returns sha256 over the files of all shards, in this order."""
    whole = hashlib.sha256()
    for shard in shards:
        whole.update((folder / file_name(shard)).read_bytes())
    return whole.hexdigest()


def shard_of(line: bytes) -> int:
    """Returns the shard index of what `entry` returned."""
    return int(line[:_SHARD_DIGITS])


def refuse_empty(split: str, num_shards: int, filled: Collection[int]) -> None:
    """Raises UsageError where a shard of a split is left without a member."""
    if empty := [i for i in range(num_shards) if i not in filled]:
        names = [naming.shard_name(split, i, num_shards) for i in empty]
        raise UsageError(f"--exclude leaves no image in {some(names)}. Ask for fewer shards.")


def file_name(shard: str) -> str:
    """Returns the name of a shard's file in the folder of `write`."""
    return f"{shard}.jsonl"


def parse(data: bytes) -> list[Member]:
    """Returns the members of one shard, from its file, in the order in which they are written."""
    return parse_members(data)
