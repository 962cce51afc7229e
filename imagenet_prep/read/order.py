"""Orders the examples of an epoch, and assigns them to ranks.

All ranks share one order of an epoch's examples. Each step takes the next world_size * batch_size
examples, and rank r reads the r-th part of them. So every example is read exactly once, and all
ranks have the same number of steps. A run can resume after n examples with any number of ranks.

If the dataset is partitioned among nodes (dataset.column), each node has an order of the
examples that it reads in the epoch, and its ranks share this order.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from imagenet_prep.dataset.column import WHOLE, Placement

if TYPE_CHECKING:
    import numpy.typing as npt

# splitmix64 (Steele, Lea, Flood 2014) is a bijection of 64-bit integers that passes BigCrush.
# NumPy's generators are not used, since they may change between versions.
_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
# numbers of independent random streams
_EXAMPLES = 1
_SHARDS = 2
_TURN = 3
_IN_TURN = 8


class Position(NamedTuple):
    """The position of a step: the request of a sampler to a DataLoader's worker."""

    epoch: int
    examples_read: int  # number of the epoch's examples that all ranks together have read before
    window: int  # shuffle window in shards: a worker may have been started with a different one


def mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Returns splitmix64 of each value."""
    with np.errstate(over="ignore"):
        mixed = values + _GAMMA
        mixed = (mixed ^ (mixed >> np.uint64(30))) * _MIX_1
        mixed = (mixed ^ (mixed >> np.uint64(27))) * _MIX_2
    return mixed ^ (mixed >> np.uint64(31))


def stream(seed: int, *parts: int) -> np.uint64:
    """Returns a 64-bit key derived from a seed and further numbers, e.g. an epoch."""
    state = np.array([seed & (1 << 64) - 1], np.uint64)
    for part in parts:
        state = mix(state) ^ np.uint64(part)
    return np.uint64(mix(state)[0])


@dataclass(frozen=True)
class Order:
    """Computes the order in which one node reads the examples of a split in each epoch."""

    examples_per_shard: Sequence[int]
    seed: int | None  # None keeps the examples in record order
    window: int = 0  # number of shards that are shuffled together; 0 for all shards
    placement: Placement = WHOLE  # the part of the split that the node has
    # Sorted numbers of the examples to read, counted in record order; None for all examples.
    chosen: npt.NDArray[np.int64] | None = None

    @property
    def num_examples(self) -> int:
        """The number of examples that all nodes together read per epoch."""
        return sum(self.examples_per_shard) if self.chosen is None else len(self.chosen)

    def epoch(self, epoch: int) -> npt.NDArray[np.int64]:
        """Returns the example numbers of an epoch in reading order."""
        numbers = self._part(epoch)
        if self.seed is None:
            return numbers
        hashed, window_of = self._sorted_by(epoch, numbers)
        # All hashes differ, so the result does not depend on the sorting algorithm.
        in_order = np.argsort(hashed)
        if window_of is not None:
            in_order = in_order[np.argsort(window_of[in_order], kind="stable")]
        return numbers[in_order]

    def position(self, epoch: int, number: int) -> int | None:
        """Returns an example's position in the order of `epoch`; None if this node skips it."""
        numbers = self._part(epoch)
        places = np.flatnonzero(numbers == number)
        if not len(places) or self.seed is None:
            return int(places[0]) if len(places) else None
        hashed, window_of = self._sorted_by(epoch, numbers)
        before = hashed < hashed[places[0]]
        if window_of is not None:
            own = window_of[places[0]]
            before = (window_of < own) | (window_of == own) & before
        return int(np.count_nonzero(before))

    def _sorted_by(
        self, epoch: int, numbers: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.unsignedinteger] | None]:
        """Returns the sort keys of examples: hashes, and windows (None for a single window)."""
        assert self.seed is not None
        hashed = mix(numbers.astype(np.uint64) ^ stream(self.seed, epoch, _EXAMPLES))
        if not 0 < self.window < len(self.examples_per_shard):
            return hashed, None
        # Sorting 16-bit numbers takes a fifth of the time.
        count = len(self.examples_per_shard)
        window = np.empty(count, np.min_scalar_type(count))
        for number, shards in enumerate(self.windows(epoch)):
            window[shards] = number
        return hashed, np.repeat(window, self.examples_per_shard)[numbers]

    def windows(self, epoch: int) -> list[list[int]]:
        """Returns the shuffle windows of an epoch, which are lists of shards, in reading order."""
        shards = self.placement.held(self.examples_per_shard)
        if self.chosen is not None:
            borders = np.cumsum(self.examples_per_shard)
            shards = np.unique(np.searchsorted(borders, self.chosen, side="right")).tolist()
        size = self.window
        if self.seed is None:
            size = _IN_TURN  # shards are read one by one; those of a window are fetched together
        elif 0 < self.window < len(shards):
            hashed = mix(np.array(shards, np.uint64) ^ stream(self.seed, epoch, _SHARDS))
            shards = [shards[place] for place in np.argsort(hashed, kind="stable")]
        else:
            return [shards]
        return [shards[i : i + size] for i in range(0, len(shards), size)]

    def _part(self, epoch: int) -> npt.NDArray[np.int64]:
        """Returns the numbers of the examples that this node reads in `epoch`, in record order."""
        if self.chosen is not None:
            return self.chosen
        total = self.num_examples
        turn = 0
        if self.seed is not None and self.placement.copies > 1:
            most = self.placement.most_turn(total)
            turn = int(stream(self.seed, epoch, _TURN)) % (most + 1)
        first, count = self.placement.part(total, turn)
        return np.arange(first, first + count, dtype=np.int64) % max(total, 1)


@dataclass(frozen=True)
class Steps:
    """Divides the remaining examples of an epoch into steps and among the ranks."""

    start: int  # number of the epoch's examples that all ranks together have already read
    num_examples: int  # number of examples of the complete epoch
    world_size: int
    batch_size: int  # examples per rank and step
    drop_tail: bool  # drop an incomplete last step, as in training
    nodes: int = 1  # number of nodes with separate orders; 1 if all ranks share one order

    @property
    def global_batch(self) -> int:
        """The number of examples per step, over all ranks."""
        return self.world_size * self.batch_size

    @property
    def count(self) -> int:
        """The number of remaining steps, which is the same for every rank."""
        remaining = self.num_examples - self.start
        return (
            remaining // self.global_batch if self.drop_tail else -(-remaining // self.global_batch)
        )

    @property
    def dropped(self) -> int:
        """The number of examples at the end of the epoch that no rank reads."""
        remaining = self.num_examples - self.start
        return remaining % self.global_batch if self.drop_tail else 0

    def positions(self, step: int, rank: int) -> range:
        """Returns the positions in the node's order that a rank reads in a step."""
        # If nodes have separate orders, this node's order may be one example shorter.
        rank %= self.world_size // self.nodes
        first = (self.start + step * self.global_batch) // self.nodes + rank * self.batch_size
        end = -(-self.num_examples // self.nodes)
        return range(min(first, end), min(first + self.batch_size, end))

    def after(self, steps: int) -> int:
        """Returns the number of examples of the epoch that were read after `steps` steps."""
        return min(self.start + steps * self.global_batch, self.num_examples)


class StepSampler:
    """A sampler for a PyTorch DataLoader over a reader; created by `Reader.sampler`.

    Each `for` loop over the DataLoader is one epoch, or the rest of a restored epoch. If a loop
    ends before the sampler has yielded all steps, the next loop starts the same epoch again. In
    evaluation, only the first loop is the rest of a restored epoch.

    Example:
      >>> from imagenet_prep.read import make_dataset
      >>> reader = make_dataset("/data/imagenet-480", "train", batch_size=8, backend="native")
      >>> sampler = reader.sampler()
      >>> position = next(iter(sampler))  # the request to a worker
      >>> batch = reader[position]  # the worker's result
      >>> sampler.state_dict(1)["examples_read"]
      8
    """

    def __init__(
        self,
        steps: Callable[[int], Steps],
        position: Callable[[dict[str, Any]], Position],
        state: dict[str, Any],
    ) -> None:
        self._steps = steps
        self._position = position
        self._handed_out = 0
        self.load_state_dict(state)

    @property
    def epoch(self) -> int:
        """The epoch of the next `for` loop, from 0."""
        return self._after(self._handed_out).epoch

    def __len__(self) -> int:
        return self._steps(0).count

    def __iter__(self) -> Iterator[Position]:
        first = self._after(self._handed_out)
        is_second_evaluation = self._handed_out > 0 and not self._steps(0).drop_tail
        if not first.examples_read or is_second_evaluation:
            self._began = first._replace(examples_read=0)
        first = self._began
        steps = self._steps(first.examples_read)
        for step in range(steps.count):
            self._handed_out = step + 1
            yield first._replace(examples_read=steps.after(step))

    def state_dict(self, steps: int | None = None) -> dict[str, Any]:
        """Returns the reader's state after the first `steps` steps of the current `for` loop.

        Pass the number of trained steps, since a DataLoader's workers run ahead of training.
        By default, all yielded steps are counted, as torchdata's StatefulDataLoader needs.
        """
        position = self._after(self._handed_out if steps is None else steps)
        return self._state | position._asdict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from a state of this sampler or of a reader, like `Reader.restore`."""
        self._began = self._position(state)
        self._state = state
        self._handed_out = 0

    def _after(self, steps: int) -> Position:
        began = self._began
        remaining = self._steps(began.examples_read)
        if steps < remaining.count:
            return began._replace(examples_read=remaining.after(steps))
        return began._replace(epoch=began.epoch + 1, examples_read=0)


def step_sampler() -> type[StepSampler]:
    """Returns the class of samplers for this process; with PyTorch, it is a DistributedSampler.

    Lightning, Composer and Ray Train split the steps of each other sampler among the ranks again.
    """
    torch: Any = sys.modules.get("torch.utils.data")
    return StepSampler if torch is None else _distributed(torch.DistributedSampler)


@functools.cache
def _distributed(base: Any) -> type[StepSampler]:
    class DistributedStepSampler(StepSampler, base):
        """A `StepSampler` that PyTorch's programs take for already distributed."""

        def set_epoch(self, epoch: int) -> None:
            """Does nothing: each `for` loop is one epoch."""

    return DistributedStepSampler
