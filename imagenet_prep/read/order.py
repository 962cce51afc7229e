"""Orders the examples of an epoch, and assigns them to ranks.

All ranks share one order of an epoch's examples. Each step takes the next world_size * batch_size
examples, and rank r reads the r-th part of them. So every example is read exactly once, and all
ranks have the same number of steps. A run can resume after n examples with any number of ranks.

If the dataset is partitioned among nodes (dataset.column), each node has an order of the
examples that it reads in the epoch, and its ranks share this order.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import operator
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from imagenet_prep.core.errors import UsageError
from imagenet_prep.dataset.column import WHOLE, Placement

if TYPE_CHECKING:
    import numpy.typing as npt

# splitmix64 (Steele, Lea, Flood 2014) is a bijection of 64-bit integers that passes BigCrush.
# NumPy's generators are not used, since they may change between versions.
_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
# The inverse: shifts, and the inverses of the factors modulo 2 ** 64.
_UNMIX = (
    (np.uint64(31), np.uint64(0x319642B2D24D8EC3)),
    (np.uint64(27), np.uint64(0x96DE1B173F119089)),
    (np.uint64(30), np.uint64(1)),
)
_CHUNK = 1 << 15  # numbers that are hashed together: they stay in the processor's cache
# numbers of independent random streams
_EXAMPLES = 1
_SHARDS = 2
_TURN = 3
_LINE = 6
_SIZES = 7
_IN_TURN = 8
MOST_APPEARANCES = 100  # of all chosen examples in an epoch, for each of them


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


def unmix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Returns the values whose splitmix64 are these values."""
    with np.errstate(over="ignore"):
        for bits, factor in _UNMIX:
            values = (values ^ (values >> bits) ^ (values >> (bits + bits))) * factor
        return values - _GAMMA


def shuffle(numbers: npt.NDArray[np.int64], key: np.uint64) -> None:
    """Sorts different numbers by their hashes, which depend on `key`, in their own memory."""
    hashed = numbers.view(np.uint64)
    chunks = [slice(first, first + _CHUNK) for first in range(0, len(hashed), _CHUNK)]
    for chunk in chunks:
        hashed[chunk] = mix(hashed[chunk] ^ key)
    # All hashes differ, so the result does not depend on the sorting algorithm.
    hashed.sort()
    for chunk in chunks:
        hashed[chunk] = unmix(hashed[chunk]) ^ key


def stream(seed: int, *parts: int) -> np.uint64:
    """Returns a 64-bit key derived from a seed and further numbers, e.g. an epoch."""
    state = np.array([seed & (1 << 64) - 1], np.uint64)
    for part in parts:
        state = mix(state) ^ np.uint64(part)
    return np.uint64(mix(state)[0])


@dataclass(frozen=True)
class Appearances:
    """How often each of the chosen examples appears in an epoch.

    The examples of a class together appear as often as expected, to one appearance.
    """

    by_class: tuple[float, ...]  # expected appearances of an example, by class index
    classes: npt.NDArray[np.int64]  # class index of each chosen example

    @functools.cached_property
    def expected(self) -> npt.NDArray[np.float64]:
        """How often each example appears, on average over the epochs."""
        return np.array(self.by_class)[self.classes]

    @functools.cached_property
    def total(self) -> int:
        """The number of appearances in each epoch."""
        return round(float(self.expected.sum()))

    def counts(self, seed: int, epoch: int) -> npt.NDArray[np.int64]:
        """Returns how often each example appears in an epoch: its expected number, rounded.

        This is systematic sampling (Madow 1949): the expected numbers lie on a line, one after the
        other, and each point at a distance of one from the last is an appearance.
        """
        places = np.arange(len(self.expected), dtype=np.uint64)
        hashed = mix(places ^ stream(seed, epoch, _LINE))
        line = np.lexsort((hashed, self.classes))
        start = int(stream(seed, epoch, _LINE, 0) >> np.uint64(11)) * 2.0**-53
        ends = np.floor(np.cumsum(self.expected[line]) + start).astype(np.int64)
        ends[-1] = self.total  # the sum may be inexact
        counts = np.empty(len(line), np.int64)
        counts[line] = np.diff(np.minimum(ends, self.total), prepend=0)
        return counts


@dataclass(frozen=True)
class Order:
    """Computes the order in which one node reads the examples of a split in each epoch.

    An order has the number of each example. If examples appear several times in an epoch, the
    number of all records is added once for the second appearance, twice for the third, and so on:
    `records` returns the numbers of the examples.
    """

    examples_per_shard: Sequence[int]
    seed: int | None  # None keeps the examples in record order
    window: int = 0  # number of shards that are shuffled together; 0 for all shards
    placement: Placement = WHOLE  # the part of the split that the node has
    # Sorted numbers of the examples to read, counted in record order; None for all examples.
    chosen: npt.NDArray[np.int64] | None = None
    appearances: Appearances | None = None  # None: each chosen example appears once

    @functools.cached_property
    def num_records(self) -> int:
        """The number of examples of the split, whether chosen or not."""
        return sum(self.examples_per_shard)

    @property
    def num_examples(self) -> int:
        """The number of examples that all nodes together read per epoch."""
        if self.appearances is not None:
            return self.appearances.total
        return self.num_records if self.chosen is None else len(self.chosen)

    def records(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Returns the numbers of the examples that have these numbers in an order."""
        return numbers if self.appearances is None else numbers % self.num_records

    def epoch(self, epoch: int) -> npt.NDArray[np.int64]:
        """Returns the example numbers of an epoch in reading order."""
        by_window = self.by_window(epoch)
        return by_window.numbers(0, len(by_window))

    def by_window(self, epoch: int) -> WindowedOrder:
        """Returns the order of an epoch, of which only one window at a time is in memory."""
        key = None if self.seed is None else stream(self.seed, epoch, _EXAMPLES)
        windows = self.windows(epoch)
        numbers = self._part(epoch)
        if key is None or len(windows) == 1:
            return WindowedOrder(numbers, [[(0, len(numbers))]], key, windows)
        borders = np.cumsum(self.examples_per_shard)
        if not isinstance(numbers, range):
            borders = np.searchsorted(self.records(numbers), borders)
        spans = [*itertools.pairwise([0, *borders.tolist()])]
        return WindowedOrder(numbers, [[spans[n] for n in w] for w in windows], key, windows)

    def positions(self, epoch: int, number: int) -> list[int]:
        """Returns an example's positions in the order of `epoch`; [] if this node skips it."""
        found: list[int] = np.flatnonzero(self.records(self.epoch(epoch)) == number).tolist()
        return found

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

    def _part(self, epoch: int) -> npt.NDArray[np.int64] | range:
        """Returns the numbers that this node reads in `epoch`, in record order."""
        if self.appearances is not None:
            return self._appearing(self.appearances, epoch)
        if self.chosen is not None:
            return self.chosen
        total = self.num_examples
        if self.placement.nodes == 1:
            return range(total)
        turn = 0
        if self.seed is not None and self.placement.copies > 1:
            most = self.placement.most_turn(total)
            turn = int(stream(self.seed, epoch, _TURN)) % (most + 1)
        first, count = self.placement.part(total, turn)
        numbers = np.arange(first, first + count, dtype=np.int64) % max(total, 1)
        # Without a seed, the part may begin in the middle and end before.
        return numbers if self.seed is None else np.sort(numbers)

    def _appearing(self, appearances: Appearances, epoch: int) -> npt.NDArray[np.int64]:
        assert self.seed is not None
        counts = appearances.counts(self.seed, epoch)
        numbers = np.arange(self.num_records) if self.chosen is None else self.chosen
        repeated = np.repeat(numbers, counts)
        # The number of earlier appearances of the same example.
        earlier = np.arange(len(repeated)) - np.repeat(np.cumsum(counts) - counts, counts)
        return repeated + earlier * self.num_records


class WindowedOrder:
    """The order of an epoch, of which only one shuffle window at a time is in memory."""

    def __init__(
        self,
        numbers: npt.NDArray[np.int64] | range,
        spans: Sequence[Sequence[tuple[int, int]]],
        key: np.uint64 | None,
        shards: list[list[int]],
    ) -> None:
        """Shuffles the first window.

        Args:
          numbers: the numbers that the node reads.
          spans: the parts of `numbers` in each window: first, and last + 1.
          key: key of the hashes that order the numbers of a window; None keeps their order.
          shards: the shards of each window.
        """
        self._numbers = numbers
        self._spans = spans
        self._key = key
        self.shards = shards
        sizes = (sum(stop - first for first, stop in window) for window in spans)
        self._starts = [0, *itertools.accumulate(sizes)]
        # The number of the window in memory, and its examples. It is replaced as a whole, since
        # several threads may read the order.
        self._window = 0, self._shuffled(0)

    def __len__(self) -> int:
        return self._starts[-1]

    def numbers(self, first: int, stop: int) -> npt.NDArray[np.int64]:
        """Returns the numbers at the positions from `first` to `stop` - 1."""
        pieces = [np.empty(0, np.int64)]
        for number in range(bisect.bisect_right(self._starts, first) - 1, len(self._spans)):
            start = self._starts[number]
            if start >= stop:
                break
            in_memory, window = self._window
            if number != in_memory:
                window = self._shuffled(number)
                self._window = number, window
            pieces.append(window[max(0, first - start) : stop - start])
        return pieces[1] if len(pieces) == 2 else np.concatenate(pieces)

    def _shuffled(self, number: int) -> npt.NDArray[np.int64]:
        pieces = [_copy(self._numbers[first:stop]) for first, stop in self._spans[number]]
        numbers = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        if self._key is not None:
            shuffle(numbers, self._key)
        return numbers


def _copy(numbers: npt.NDArray[np.int64] | range) -> npt.NDArray[np.int64]:
    if isinstance(numbers, range):
        return np.arange(numbers.start, numbers.stop, dtype=np.int64)
    return numbers.copy()


class BatchShape(NamedTuple):
    """The size of a batch of one rank."""

    batch_size: int
    size: int = 0  # number in the reader's list of sizes


@dataclass(frozen=True)
class Steps:
    """Divides the remaining examples of an epoch into steps and among the ranks."""

    start: int  # number of the epoch's examples that all ranks together have already read
    num_examples: int  # number of examples of the complete epoch
    world_size: int
    batch_size: int  # examples per rank and step
    drop_tail: bool  # drop an incomplete last step, as in training
    nodes: int = 1  # number of nodes with separate orders; 1 if all ranks share one order
    size: int = 0  # number of the size of all steps in the reader's list of sizes

    def shape_of(self, _step: int) -> BatchShape:
        """Returns the size of a step's batches."""
        return BatchShape(self.batch_size, self.size)

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


@dataclass(frozen=True, kw_only=True)
class Size:
    """The size of batches from an epoch on; a list of them is `sizes` of `make_dataset`.

    If several sizes begin with the same epoch, each step draws one of them.

    Attributes:
      image_size: side, or height and width, in pixels; None: that of the reader.
      batch_size: examples per step and rank; None: that of the reader.
      epoch: the first epoch with this size, from 0.
      share: the share of steps with this size, relative to the other sizes of the same epoch.

    Example:
      >>> from imagenet_prep.read import Size, make_dataset
      >>> sizes = [Size(image_size=128, batch_size=16), Size(image_size=160, epoch=1)]
      >>> reader = make_dataset("/data/imagenet-480", "train", batch_size=8, sizes=sizes)
      >>> next(iter(reader))["images"].shape
      (16, 128, 128, 3)
    """

    image_size: int | tuple[int, int] | None = None
    batch_size: int | None = None
    epoch: int = 0
    share: float = 1.0


@dataclass(frozen=True)
class SizeSchedule:
    """Sizes of batches by epoch and step; `batch_sizes` and `sizes` have the same length."""

    sizes: Sequence[Size]
    batch_sizes: Sequence[int]
    seed: int

    def of_epoch(self, epoch: int) -> list[int]:
        """Returns the numbers of the sizes of an epoch's steps."""
        begun = max(size.epoch for size in self.sizes if size.epoch <= epoch)
        return [number for number, size in enumerate(self.sizes) if size.epoch == begun]

    def steps(
        self,
        epoch: int,
        start: int,
        num_examples: int,
        world_size: int,
        *,
        drop_tail: bool,
        nodes: int,
    ) -> Steps | DrawnSteps:
        """Returns the steps of an epoch after its first `start` examples."""
        numbers = self.of_epoch(epoch)
        if len(numbers) > 1:
            return DrawnSteps(start, num_examples, world_size, self, epoch)
        (number,) = numbers
        batch_size = self.batch_sizes[number]
        return Steps(start, num_examples, world_size, batch_size, drop_tail, nodes, number)

    def drawn(self, epoch: int, start: int) -> int:
        """Returns the number of the size of the step after `start` examples of an epoch."""
        numbers = self.of_epoch(epoch)
        shares = np.cumsum([self.sizes[number].share for number in numbers])
        uniform = int(stream(self.seed, epoch, _SIZES, start) >> np.uint64(11)) * 2.0**-53
        return numbers[int(np.searchsorted(shares, uniform * shares[-1], side="right"))]


@dataclass(frozen=True)
class DrawnSteps:
    """Divides the remaining examples of an epoch into steps of drawn sizes; see `Steps`.

    A step's size depends on the number of examples before it, so a run can resume with any number
    of ranks.
    """

    start: int
    num_examples: int
    world_size: int
    schedule: SizeSchedule
    epoch: int
    drop_tail = True

    @functools.cached_property
    def _steps(self) -> list[tuple[int, int]]:
        """Start and size of each step; the last start is that of the dropped examples."""
        steps = []
        start = self.start
        while True:
            size = self.schedule.drawn(self.epoch, start)
            steps.append((start, size))
            start += self.world_size * self.schedule.batch_sizes[size]
            if start > self.num_examples:
                return steps

    @property
    def count(self) -> int:
        """The number of remaining steps, which is the same for every rank."""
        return len(self._steps) - 1

    @property
    def dropped(self) -> int:
        """The number of examples at the end of the epoch that no rank reads."""
        return self.num_examples - self._steps[-1][0]

    def shape_of(self, step: int) -> BatchShape:
        """Returns the size of a step's batches."""
        size = self._steps[step][1]
        return BatchShape(self.schedule.batch_sizes[size], size)

    def positions(self, step: int, rank: int) -> range:
        """Returns the positions in the order that a rank reads in a step."""
        batch_size = self.shape_of(step).batch_size
        first = self._steps[step][0] + rank * batch_size
        return range(first, first + batch_size)

    def after(self, steps: int) -> int:
        """Returns the number of examples of the epoch that were read after `steps` steps."""
        return self._steps[steps][0]


def epoch_number(epoch: Any) -> int:
    """Returns an epoch as an int; raises UsageError if it is not an integer from 0."""
    # NumPy's integers are integers, but 1.0 and True are none.
    if isinstance(epoch, bool) or not hasattr(epoch, "__index__") or epoch < 0:
        raise UsageError(f"epoch={epoch!r}: expected an integer from 0")
    return operator.index(epoch)


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
        steps: Callable[[int, int], Steps | DrawnSteps],
        position: Callable[[dict[str, Any]], Position],
        state: dict[str, Any],
    ) -> None:
        self._steps = steps
        self._position = position
        self._began = position(state)
        self._state = state
        self._handed_out = 0
        self._is_restored = False

    @property
    def epoch(self) -> int:
        """The epoch of the next `for` loop, from 0."""
        return self._after(self._handed_out).epoch

    def __len__(self) -> int:
        return self._steps(self.epoch, 0).count

    def __iter__(self) -> Iterator[Position]:
        first = self._after(self._handed_out)
        drops = self._steps(first.epoch, 0).drop_tail
        is_second_evaluation = self._handed_out > 0 and not drops
        if not first.examples_read or is_second_evaluation:
            self._began = first._replace(examples_read=0)
        first = self._began
        steps = self._steps(first.epoch, first.examples_read)
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
        self._is_restored = True

    def set_epoch(self, epoch: int) -> None:
        """Begins with this epoch, unless a step has been yielded or a position been restored.

        Programs that store only the number of the epoch call it once. Others, such as Lightning,
        call it before each epoch, which must not change the position.

        Raises:
          UsageError: `epoch` is not an integer from 0.
        """
        number = epoch_number(epoch)
        if not (self._handed_out or self._is_restored or self._began.examples_read):
            self._began = self._began._replace(epoch=number)

    def _after(self, steps: int) -> Position:
        began = self._began
        remaining = self._steps(began.epoch, began.examples_read)
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

    return DistributedStepSampler
