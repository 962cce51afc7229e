"""Which shards a node holds, and which examples its ranks read. Pure.

The examples of a split, counted through all shards, are laid round a circle. Node k of N
reads the k-th arc of N equal ones, and holds every shard that the arc touches: a shard on a
border lies on both nodes. With R copies it holds the arc of R times that length that begins
there, and all arcs that are read turn together within what is held, by another angle each
epoch. So every example lies on at least R nodes and is read on exactly one, nodes read
equally much whatever the numbers of shards and nodes, and no node reads what it lacks.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path

from imagenet_prep.core import records, regular_file
from imagenet_prep.core.errors import DataDamagedError, ManifestError, StoreError, UsageError
from imagenet_prep.core.terminal import counted
from imagenet_prep.core.world import World
from imagenet_prep.dataset import naming
from imagenet_prep.dataset.column import Column
from imagenet_prep.dataset.manifest import File, Manifest, Shard

# Nodes, more than anyone has: what computes with their number has 64 bits.
_MOST_NODES = 1 << 20
_MOST_BYTES = 1 << 16


@dataclass(frozen=True)
class Placement:
    """One node's part of a data set.

    Attributes:
      node: its number, from 0, in the order of the hosts file.
      nodes: how many there are.
      copies: nodes that hold each example, at least.
    """

    node: int = 0
    nodes: int = 1
    copies: int = 1

    def __post_init__(self) -> None:
        """Refuses what cannot be."""
        if self.nodes > _MOST_NODES:
            raise ValueError(f"more than {_MOST_NODES:,} nodes")
        if not 0 <= self.node < self.nodes:
            raise ValueError(f"node {self.node}: expected 0 to {self.nodes - 1}")
        if not 1 <= self.copies <= self.nodes:
            raise ValueError(f"{self.copies} copies: expected 1 to {self.nodes}, one a node")

    def __str__(self) -> str:
        if self.nodes == 1:
            return "the whole data set"
        return f"part {self.node} of {self.nodes}, copies: {self.copies}"

    def part(self, num_examples: int, turn: int) -> tuple[int, int]:
        """Returns (first, count) of the examples that its ranks read; they may go past the end.

        Args:
          num_examples: of the split.
          turn: of all arcs; 0 to `most_turn`.
        """
        first, stop = (self._border(self.node + step, num_examples) for step in (0, 1))
        return first + turn, stop - first

    def most_turn(self, num_examples: int) -> int:
        """Returns how many examples the arcs can turn, and no node reads what it lacks."""
        return self._border(self.copies - 1, num_examples)

    def held(self, examples_per_shard: Sequence[int]) -> list[int]:
        """Returns the shards that lie on the node, in their order."""
        borders = list(accumulate(examples_per_shard, initial=0))
        total = borders[-1]
        first = self._border(self.node, total)
        stop = self._border(self.node + self.copies, total)
        # Once round the circle, and once more where the arc goes past its end.
        return [
            shard
            for shard, (begin, end) in enumerate(pairwise(borders))
            if any(begin + turn < stop and first < end + turn for turn in (0, total))
        ]

    def shards(self, manifest: Manifest, split: str) -> list[Shard]:
        """Returns the shards of a split that lie on the node."""
        shards = manifest.splits[split].shards
        if self.nodes == 1:
            return shards
        return [shards[number] for number in self.held([shard.examples for shard in shards])]

    def files(self, manifest: Manifest, columns: Sequence[Column] = ()) -> list[File]:
        """Returns the files on the node that are not published last; a shard follows its own."""
        shards = {split: self.shards(manifest, split) for split in manifest.splits}
        rows = (
            column.file(file)
            for column in columns
            for split in column.splits
            for file in column.of(split, shards.get(split, ()))[0]
        )
        placed = itertools.chain.from_iterable(shards.values())
        return [*manifest.files, *(file for shard in placed for file in shard.files), *rows]

    def check_ranks(self, world: World, data_dir: str) -> None:
        """Raises UsageError if these ranks would not read each part of the set exactly once."""
        if self.nodes == 1:
            return
        where = f"{data_dir} is {self}"
        if world.size != self.nodes * world.local_size:
            raise UsageError(
                f"{where}: {self.nodes} hosts with equally many ranks must read it together, but "
                f"there {'is' if world.size == 1 else 'are'} {counted(world.size, 'rank')}, "
                f"{world.local_size} on this host. Start them on all "
                "hosts, or replicate to the hosts that are there."
            )
        if world.cross_rank != self.node:
            raise UsageError(
                f"{where}, but this host is number {world.cross_rank} among those that train. "
                "Start them in the order of the hosts file that replicate was given."
            )

    def dumps(self, digest: str) -> bytes:
        """Returns the bytes of placement.json of a data set."""
        content = {"dataset": digest, **vars(self)}
        return json.dumps(content, indent=1, sort_keys=True).encode() + b"\n"

    def _border(self, number: int, num_examples: int) -> int:
        return number * num_examples // self.nodes


@dataclass(frozen=True, kw_only=True)
class _Placed(Placement):
    """What placement.json says: which part lies here of the set whose manifest has this digest."""

    dataset: str


WHOLE = Placement()


def load(root: Path, manifest: Manifest) -> Placement:
    """Returns what the data set's folder says it holds: all, where it says nothing."""
    path = root / naming.PLACEMENT
    try:
        data = regular_file.read(path, _MOST_BYTES)
    except FileNotFoundError:
        return WHOLE
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror}") from error
    except DataDamagedError as error:
        raise ManifestError(str(error)) from None
    advice = "Run the same replicate command again, or remove the folder and replicate anew."
    try:
        found = records.loads(_Placed, data)
    except ValueError as error:
        raise ManifestError(f"{path}: damaged ({error}). {advice}") from None
    if found.dataset != manifest.digest:
        raise ManifestError(
            f"{path}: of the data set {found.dataset[:16]}, the manifest beside it is of "
            f"{manifest.digest[:16]}. {advice}"
        )
    return Placement(found.node, found.nodes, found.copies)
