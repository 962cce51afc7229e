"""The input of all backends: the encoded images of one rank in order, and their crops."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import dropwhile
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from imagenet_prep.core.errors import DataDamagedError
from imagenet_prep.core.world import World
from imagenet_prep.dataset.example import ImageExample
from imagenet_prep.read.augment import Recipe, Views, central_views, random_views
from imagenet_prep.read.fields import DECODED, describe, sides_of
from imagenet_prep.read.order import Order, Steps

if TYPE_CHECKING:
    import numpy.typing as npt

    from imagenet_prep.read.records import Records

# Steps that are read ahead.
_STEPS_AHEAD = 3

# A grey JPEG of 8 x 8 pixels. It is decoded in places that the mask marks as empty.
PLACEHOLDER = bytes.fromhex(
    "ffd8ffe000104a46494600010100000100010000ffdb004300100b0c0e0c0a100e0d0e1211101318281a1816"
    "16183123251d283a333d3c3933383740485c4e404457453738506d51575f626768673e4d71797064785c6567"
    "63ffdb0043011112121815182f1a1a2f63423842636363636363636363636363636363636363636363636363"
    "6363636363636363636363636363636363636363636363636363ffc000110800080008030122000211010311"
    "01ffc40014000100000000000000000000000000000000ffc400141001000000000000000000000000000000"
    "00ffc40014010100000000000000000000000000000000ffc400141101000000000000000000000000000000"
    "00ffda000c03010002110311003f00000fffd9"
)
_PLACEHOLDER_SIDE = 8


class EncodedBatch(NamedTuple):
    """One step of one rank, not decoded yet.

    Attributes:
      encoded: [batch] JPEGs, some of them parts of one buffer; a placeholder where the mask is
        False.
      class_index: [batch] int32; 0 where the mask is False.
      mask: [batch] bool: whether there is an example.
      views: crop of each image.
      numbers: [batch] int64 example numbers; -1 where the mask is False.
      further_views: crops of a second view of each image, of a third and so on.
      details: the fields that were asked for and are not decoded.
    """

    encoded: list[bytes | memoryview]
    class_index: npt.NDArray[np.int32]
    mask: npt.NDArray[np.bool_]
    views: Views
    numbers: npt.NDArray[np.int64]
    further_views: tuple[Views, ...] = ()
    details: Mapping[str, npt.NDArray[Any]] = MappingProxyType({})

    @property
    def all_views(self) -> tuple[Views, ...]:
        """The crops of all views, the first one's first."""
        return (self.views, *self.further_views)


@dataclass
class Feed:
    """Reads the batches of one rank ahead of the backend that decodes them.

    Attributes:
      records: of the split.
      order: of the examples.
      world: this rank.
      batch_size: examples a step.
      training: random views and no padding; else central views, and the last step padded.
      recipe: constants of the views.
      seed: of the views.
      skip_bad: mask damaged records and list them, instead of raising.
      colour: draw colours for training.
      num_views: crops of each image.
      fields: what batches hold.
      image_size: height and width of what is shown, for boxes.
      skipped: one sentence for each damaged record that was masked, by example number.
    """

    records: Records
    order: Order
    world: World
    batch_size: int
    training: bool
    recipe: Recipe
    seed: int
    skip_bad: bool
    colour: bool = False
    num_views: int = 1
    fields: tuple[str, ...] = DECODED
    image_size: int = 0
    skipped: dict[int, str] = field(default_factory=dict)
    # One thread is enough, since the kernel knows what comes next and reads it ahead. More threads
    # would only wait for each other's interpreter lock.
    _thread: ThreadPoolExecutor = field(
        default_factory=partial(ThreadPoolExecutor, 1, thread_name_prefix="read"),
        init=False,
        repr=False,
    )

    # Epoch, its order and its windows: of ImageNet they take 0.2 s.
    _planned: tuple[int, npt.NDArray[np.int64], list[list[int]]] | None = field(
        default=None, init=False, repr=False
    )

    def steps(self, start: int) -> Steps:
        """Returns how the rest of an epoch is divided, from its `start`-th example on."""
        nodes = self.order.placement.nodes
        total = self.order.num_examples
        return Steps(start, total, self.world.size, self.batch_size, self.training, nodes)

    def batches(self, epoch: int, start: int, most: int | None = None) -> Iterator[EncodedBatch]:
        """Yields this rank's steps of the rest of an epoch, or the first `most` of them.

        Raises:
          DataDamagedError: a record is damaged and `skip_bad` is False, or a whole shard is.
          ImagenetPrepError: a disk fails, or a shard cannot be fetched.
        """
        steps = self.steps(start)
        count = steps.count if most is None else min(most, steps.count)
        if self._planned is None or self._planned[0] != epoch:
            self._planned = epoch, self.order.epoch(epoch), self.order.windows(epoch)
        _, numbers, windows = self._planned
        begin = steps.positions(0, 0).start
        if begin < len(numbers):
            first, _ = self.records.place(int(numbers[begin]))
            windows = list(dropwhile(lambda shards: first not in shards, windows))
        self.records.follow(windows)
        ahead: deque[tuple[list[int], Future[list[ImageExample | None]]]] = deque()
        try:
            for step in range(count + _STEPS_AHEAD):
                if step < count:
                    positions = steps.positions(step, self.world.rank)
                    of_rank = numbers[positions.start : positions.stop].tolist()
                    self.records.will_need(of_rank)
                    ahead.append((of_rank, self._thread.submit(self._read, of_rank)))
                if step >= _STEPS_AHEAD - 1 and ahead:
                    of_rank, read = ahead.popleft()
                    yield self._assemble(of_rank, read.result(), epoch)
        finally:
            # This must not wait. If the epoch was not read to its end, the garbage collector calls
            # this in any thread, which may hold any lock, such as one that joining a thread takes.
            for _, read in ahead:
                read.cancel()

    def close(self) -> None:
        """Closes the shards; another epoch opens them again."""
        self.records.close()
        # Once more after the thread's present work, which may have opened a shard again.
        self._thread.submit(self.records.close).result()

    def skip(self, number: int, reason: str) -> None:
        """Masks a record from now on."""
        self.skipped[number] = reason

    def _read(self, numbers: list[int]) -> list[ImageExample | None]:
        images = self.records.read_many(numbers)
        return [
            image if image and number not in self.skipped else self._read_one(number)
            for number, image in zip(numbers, images, strict=True)
        ]

    def _read_one(self, number: int) -> ImageExample | None:
        if number in self.skipped:
            return None
        # Outside of `try`: a damaged shard is not a bad record and must not be skipped.
        self.records.open_shard(number)
        try:
            return self.records.read(number)
        except DataDamagedError as error:
            if not self.skip_bad:
                raise
            self.skip(number, str(error))
            return None

    def _assemble(
        self, of_rank: list[int], images: list[ImageExample | None], epoch: int
    ) -> EncodedBatch:
        images = images + [None] * (self.batch_size - len(images))
        there = [image is not None for image in images]
        numbers = np.full(self.batch_size, -1, np.int64)
        numbers[: len(of_rank)] = of_rank
        numbers[~np.array(there)] = -1
        views = self._views(*sides_of(images, _PLACEHOLDER_SIDE), numbers, epoch)
        asked = set(self.fields) - set(DECODED)
        named = images if "key" in asked else []
        keys = [self.records.key(image) if image else "" for image in named]
        offset = self.records.manifest.label_offset
        return EncodedBatch(
            [image.encoded if image else PLACEHOLDER for image in images],
            np.array([i.stored_label - offset if i else 0 for i in images], np.int32),
            np.array(there),
            views[0],
            numbers,
            tuple(views[1:]),
            {f: describe(f, images, keys, numbers, views, self.image_size) for f in asked},
        )

    def _views(
        self,
        heights: npt.NDArray[np.int64],
        widths: npt.NDArray[np.int64],
        numbers: npt.NDArray[np.int64],
        epoch: int,
    ) -> list[Views]:
        if not self.training:
            return [central_views(self.recipe, heights, widths)]
        which = (self.recipe, heights, widths, numbers, self.seed, epoch)
        return [random_views(*which, colour=self.colour, view=v) for v in range(self.num_views)]
