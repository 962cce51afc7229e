"""Reads the examples of a mix of datasets: which part gives each example, and batches of several.

`Proportions` decides which part gives each example of an epoch; `MixFeed` reads the batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from imagenet_prep.read.augment import Views
from imagenet_prep.read.cache import BackgroundThreads
from imagenet_prep.read.feed import EncodedBatch, read_ahead
from imagenet_prep.read.order import BatchShape, Steps, mix, stream
from imagenet_prep.read.reader import Reader

if TYPE_CHECKING:
    import numpy.typing as npt

_SLOTS = 9  # number of the random stream; read/order.py and read/augment.py use 1 to 8
PART = "part"


@dataclass(frozen=True)
class Proportions:
    """How many examples each part gives to each epoch, and in which order.

    After any number of epochs, each part has given its share of all examples, to one example. Each
    share must be at least one example of an epoch: then no count can decrease.
    """

    shares: tuple[float, ...]  # their sum is 1
    num_examples: int  # of an epoch
    seed: int

    def before(self, epoch: int) -> list[int]:
        """Returns how many examples each part gives to all epochs before one.

        These are the shares, rounded down, and one more for the largest remainders.
        """
        total = epoch * self.num_examples
        exact = [share * total for share in self.shares]
        counts = [math.floor(number) for number in exact]
        by_remainder = sorted(range(len(exact)), key=lambda i: (counts[i] - exact[i], i))
        for part in by_remainder[: total - sum(counts)]:
            counts[part] += 1
        return counts

    def parts(self, epoch: int) -> npt.NDArray[np.int64]:
        """Returns the number of the part that gives each example of an epoch."""
        pairs = zip(self.before(epoch), self.before(epoch + 1), strict=True)
        counts = [after - before for before, after in pairs]
        parts = np.repeat(np.arange(len(counts)), counts)
        places = np.arange(len(parts), dtype=np.uint64)
        return parts[np.argsort(mix(places ^ stream(self.seed, epoch, _SLOTS)))]


class _Slots(NamedTuple):
    """The examples of an epoch of a mix, in reading order."""

    epoch: int
    parts: npt.NDArray[np.int64]
    numbers: npt.NDArray[np.int64]  # in the order of the part
    epochs: npt.NDArray[np.int64]  # epoch of the part


class MixFeed:
    """Reads the batches of one rank of a `Mix`, with the feeds of its parts."""

    def __init__(self, readers: Sequence[Reader], proportions: Proportions) -> None:
        self.feeds = [reader.feed for reader in readers]
        self.config = self.feeds[0].config
        self.bfloat16 = set().union(*(feed.bfloat16 for feed in self.feeds))
        self._proportions = proportions
        self._thread = BackgroundThreads(1, "mix")
        self._slots: _Slots | None = None

    def steps(self, start: int) -> Steps:
        """Returns the steps of an epoch after its first `start` examples."""
        config = self.config
        total = self._proportions.num_examples
        return Steps(start, total, config.rank.size, config.batch_size, drop_tail=True)

    def batches(self, epoch: int, start: int, most: int) -> Iterator[EncodedBatch]:
        """Yields at most `most` batches of this rank, after `start` examples of the epoch."""
        if self._slots is None or self._slots.epoch != epoch:
            self._slots = self._of_epoch(epoch)
        slots = self._slots
        steps = self.steps(start)
        positions = (
            steps.positions(step, self.config.rank.rank) for step in range(min(most, steps.count))
        )
        reads = (partial(self._read, slots, slice(at.start, at.stop)) for at in positions)
        yield from read_ahead(self._thread, reads)

    def forget_order(self) -> None:
        """Makes the next batch compute the order again, since shuffle windows have changed."""
        self._slots = None

    def _of_epoch(self, epoch: int) -> _Slots:
        """Computes the order of an epoch: each part continues its own order, epoch after epoch."""
        parts = self._proportions.parts(epoch)
        numbers = np.empty(len(parts), np.int64)
        epochs = np.empty(len(parts), np.int64)
        for part, begin in enumerate(self._proportions.before(epoch)):
            order = self.feeds[part].order
            places = np.flatnonzero(parts == part)
            windows = []
            done = 0
            while done < len(places):
                own_epoch, first = divmod(begin + done, order.num_examples)
                by_window = order.by_window(own_epoch)
                own_numbers = by_window.numbers(first, first + len(places) - done)
                here = places[done : done + len(own_numbers)]
                numbers[here] = own_numbers
                epochs[here] = own_epoch
                windows += by_window.shards
                done += len(own_numbers)
            self.feeds[part].follow(windows)
        return _Slots(epoch, parts, numbers, epochs)

    def _read(self, slots: _Slots, here: slice) -> EncodedBatch:
        """Reads a batch: the examples of each part and epoch of it together."""
        parts = slots.parts[here]
        epochs = slots.epochs[here]
        numbers = slots.numbers[here]
        places = []
        batches = []
        for part, epoch in sorted(set(zip(parts.tolist(), epochs.tolist(), strict=True))):
            own = np.flatnonzero((parts == part) & (epochs == epoch))
            batches.append(self.feeds[part].read(numbers[own], epoch, BatchShape(len(own))))
            places.append(own)
        return _joined(batches, np.argsort(np.concatenate(places)), parts)

    def mask_undecodable(self, batch: EncodedBatch, decode: Callable[[bytes], None]) -> bool:
        """Masks the images of a batch that cannot be decoded; see `Feed.mask_undecodable`."""
        found = False
        parts = np.asarray(batch.details[PART])
        for number, feed in enumerate(self.feeds):
            own = batch._replace(mask=batch.mask & (parts == number))
            found |= feed.mask_undecodable(own, decode)
        return found


def _joined(
    batches: Sequence[EncodedBatch], order: npt.NDArray[np.int64], parts: npt.NDArray[np.int64]
) -> EncodedBatch:
    """Returns one batch with the examples of several ones, in the given order."""

    def join(values: Sequence[Any]) -> Any:
        if isinstance(values[0], list):
            together = [value for batch in values for value in batch]
            # No field may need the images.
            return [together[place] for place in order.tolist()] if together else []
        return np.concatenate(values)[order]

    details: dict[str, Any] = {}
    for name in batches[0].details:
        values: list[Any] = [batch.details[name] for batch in batches]
        if name == "boxes":
            values = _padded(values)
        details[name] = join(values)
    mask = join([batch.mask for batch in batches])
    details[PART] = np.where(mask, parts, -1).astype(np.int32)
    views = []
    for view in range(len(batches[0].views)):
        own = [batch.views[view] for batch in batches]
        views.append(_joined_views(own, join))
    return batches[0]._replace(
        encoded=join([[*batch.encoded] for batch in batches]),
        class_index=join([batch.class_index for batch in batches]),
        mask=mask,
        views=tuple(views),
        numbers=join([batch.numbers for batch in batches]),
        details=details,
    )


def _joined_views(views: Sequence[Views], join: Any) -> Views:
    boxes = join([view.boxes for view in views])
    mirrored = join([view.mirrored for view in views])
    optional = {}
    for name in ("colours", "cubic"):
        values = [getattr(view, name) for view in views]
        optional[name] = None if values[0] is None else join(values)
    return Views(boxes, mirrored, **optional)


def _padded(boxes: Sequence[npt.NDArray[Any]]) -> list[npt.NDArray[Any]]:
    """Pads boxes [batch, ..., most, 4] with zeros to the same number of boxes."""
    most = max(array.shape[-2] for array in boxes)
    padded = []
    for array in boxes:
        width = [(0, 0)] * array.ndim
        width[-2] = (0, most - array.shape[-2])
        padded.append(np.pad(array, width))
    return padded
