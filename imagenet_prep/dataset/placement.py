"""Decides which shards a node stores, and which examples its ranks read.

The examples of a split are arranged on a circle, in the order of the shards, and the circle is cut
into N equal arcs. Node k of N reads the k-th arc and stores every shard that the arc touches. So a
shard on a border is stored on both nodes. With R copies, a node stores R arcs, starting with its
own arc. In each epoch, the arcs to read are shifted by a different number of examples, but never
beyond the stored arcs.

So every example is stored on at least R nodes, and exactly one node reads it in each epoch. Nodes
only read examples that they store. All nodes read the same number, for any number of shards.
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

# Far more nodes than any cluster has; products with this number fit into 64 bits.
_MOST_NODES = 1 << 20
_MOST_BYTES = 1 << 16


@dataclass(frozen=True)
class Placement:
    """The part of a dataset that one node stores."""

    node: int = 0  # 0-based number of the node in the hosts file
    nodes: int = 1
    copies: int = 1  # least number of nodes that store each example

    def __post_init__(self) -> None:
        if self.nodes > _MOST_NODES:
            raise ValueError(f"more than {_MOST_NODES:,} nodes")
        if not 0 <= self.node < self.nodes:
            raise ValueError(f"node {self.node}: expected 0 to {self.nodes - 1}")
        if not 1 <= self.copies <= self.nodes:
            raise ValueError(f"{self.copies} copies: expected 1 to {self.nodes} (all nodes)")

    def __str__(self) -> str:
        if self.nodes == 1:
            return "the complete dataset"
        return f"part {self.node} of {self.nodes}, copies: {self.copies}"

    def part(self, num_examples: int, turn: int) -> tuple[int, int]:
        """Returns (first, count) of the examples to read, shifted by `turn` (0 to `most_turn`).

        The range may pass the end of the split; it then continues with example 0.
        """
        first, stop = (self._border(self.node + step, num_examples) for step in (0, 1))
        return first + turn, stop - first

    def most_turn(self, num_examples: int) -> int:
        """Returns the largest shift for which every node stores all examples that it reads."""
        return self._border(self.copies - 1, num_examples)

    def held(self, examples_per_shard: Sequence[int]) -> list[int]:
        """Returns the 0-based numbers of the shards stored on the node, in order."""
        borders = list(accumulate(examples_per_shard, initial=0))
        total = borders[-1]
        first = self._border(self.node, total)
        stop = self._border(self.node + self.copies, total)
        # The arc may pass the end of the circle, so compare each shard again one circle later.
        return [
            shard
            for shard, (begin, end) in enumerate(pairwise(borders))
            if any(begin + turn < stop and first < end + turn for turn in (0, total))
        ]

    def shards(self, manifest: Manifest, split: str) -> list[Shard]:
        """Returns the shards of a split that are stored on the node."""
        shards = manifest.splits[split].shards
        if self.nodes == 1:
            return shards
        return [shards[number] for number in self.held([shard.examples for shard in shards])]

    def files(self, manifest: Manifest, columns: Sequence[Column] = ()) -> list[File]:
        """Returns the node's files except dataset.json; index and table precede their shard."""
        shards = {split: self.shards(manifest, split) for split in manifest.splits}
        files = [*manifest.files]
        for shard in itertools.chain.from_iterable(shards.values()):
            files += shard.files
        for column in columns:
            for split in column.splits:
                rows, _ = column.of(split, shards.get(split, ()))
                files += map(column.file, rows)
        return files

    def check_ranks(self, world: World, data_dir: str) -> None:
        """Raises UsageError unless these ranks would read each part exactly once."""
        if self.nodes == 1:
            return
        where = f"{data_dir} is {self}"
        if world.size != self.nodes * world.local_size:
            raise UsageError(
                f"{where}: it must be read by {self.nodes} hosts with equal numbers of ranks, but "
                f"this run has {counted(world.size, 'rank')}, {world.local_size} of them on this "
                "host. Start ranks on all hosts, or replicate again to the hosts that train."
            )
        if world.cross_rank != self.node:
            raise UsageError(
                f"{where}, but this host is number {world.cross_rank} of the hosts that train. "
                "Start the hosts in the order of the hosts file that was used for replicate."
            )

    def dumps(self, digest: str) -> bytes:
        """Returns the bytes of placement.json for the dataset with this digest."""
        content = {"dataset": digest, **vars(self)}
        return json.dumps(content, indent=1, sort_keys=True).encode() + b"\n"

    def _border(self, number: int, num_examples: int) -> int:
        return number * num_examples // self.nodes


@dataclass(frozen=True, kw_only=True)
class _Placed(Placement):
    """The contents of placement.json; `dataset` is the digest of the manifest."""

    dataset: str


WHOLE = Placement()


def load(root: Path, manifest: Manifest) -> Placement:
    """Returns the placement stored in the dataset's folder; WHOLE if there is none."""
    path = root / naming.PLACEMENT
    try:
        data = regular_file.read(path, _MOST_BYTES)
    except FileNotFoundError:
        return WHOLE
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror}") from error
    except DataDamagedError as error:
        raise ManifestError(str(error)) from None
    advice = "Run the same replicate command again, or remove the folder and replicate again."
    try:
        placed = records.loads(_Placed, data)
    except ValueError as error:
        raise ManifestError(f"{path}: damaged ({error}). {advice}") from None
    if placed.dataset != manifest.digest:
        raise ManifestError(
            f"{path}: belongs to the dataset {placed.dataset[:16]}, but the manifest in this "
            f"folder is {manifest.digest[:16]}. {advice}"
        )
    return Placement(placed.node, placed.nodes, placed.copies)
