"""The input of all backends: the encoded images of one rank in order, and their crops."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cached_property
from itertools import dropwhile
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from imagenet_prep.core.errors import DataDamagedError, UsageError
from imagenet_prep.dataset.example import ImageExample
from imagenet_prep.read.augment import Views, boxes_in, central_views, random_views
from imagenet_prep.read.background import BackgroundThreads
from imagenet_prep.read.batch import DECODED
from imagenet_prep.read.config import ReadConfig
from imagenet_prep.read.names import Names
from imagenet_prep.read.order import Order, Steps

if TYPE_CHECKING:
    import numpy.typing as npt

    from imagenet_prep.read.records import Records

# Steps that are read ahead.
_STEPS_AHEAD = 3
# The most boxes of one image. A batch has room for as many boxes of each image as one of its
# images has.
MOST_BOXES = 5_000

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
      views: the crop of each image; another one for each further view.
      numbers: [batch] int64 example numbers; -1 where the mask is False.
      details: the fields that were asked for and need no decoder.
    """

    encoded: list[bytes | memoryview]
    class_index: npt.NDArray[np.int32]
    mask: npt.NDArray[np.bool_]
    views: tuple[Views, ...]
    numbers: npt.NDArray[np.int64]
    details: Mapping[str, npt.NDArray[Any]]


@dataclass(eq=False)
class Feed:
    """Reads the batches of one rank ahead of the backend that decodes them.

    Attributes:
      config: training has random views and no padding; else views are central, and the last step
        is padded.
      class_numbers: the number in the class list of each class index.
      skipped: one sentence for each damaged record that was masked, by example number.
    """

    records: Records
    order: Order
    config: ReadConfig
    class_numbers: Sequence[int]

    def __post_init__(self) -> None:
        self.skipped: dict[int, str] = {}
        # Keys by shard and record that the records of an amended set do not tell.
        self._former: dict[int, dict[int, str]] = {}
        self._dense: npt.NDArray[np.int32] | None = None
        if len(self.class_numbers) < len(self.records.wnids):
            self._dense = np.zeros(len(self.records.wnids), np.int32)
            self._dense[list(self.class_numbers)] = range(len(self.class_numbers))
        # One thread is enough, since the kernel knows what comes next and reads it ahead. More
        # threads would only wait for each other's interpreter lock.
        self._thread = BackgroundThreads(1, "read")
        # Epoch, its order and its windows: of ImageNet they take 0.2 s.
        self._planned: tuple[int, npt.NDArray[np.int64], list[list[int]]] | None = None

    def steps(self, start: int) -> Steps:
        """Returns how the rest of an epoch is divided, from its `start`-th example on."""
        nodes = self.order.placement.nodes
        total = self.order.num_examples
        size, training = self.config.batch_size, self.config.is_training
        return Steps(start, total, self.config.rank.size, size, training, nodes)

    def batches(self, epoch: int, start: int, most: int | None = None) -> Iterator[EncodedBatch]:
        """Yields this rank's steps of the rest of an epoch, or the first `most` of them."""
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
                    positions = steps.positions(step, self.config.rank.rank)
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
        # The thread may have opened a shard again, so it closes them once more after its work.
        self._thread.submit(self.records.close).result()

    def skip(self, number: int, error: DataDamagedError) -> None:
        """Masks a record from now on; raises its error if none may be skipped."""
        if self.config.on_bad_record != "skip":
            raise error
        self.skipped[number] = str(error)

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
            self.skip(number, error)
            return None

    def _assemble(
        self, of_rank: list[int], images: list[ImageExample | None], epoch: int
    ) -> EncodedBatch:
        config = self.config
        images = images + [None] * (config.batch_size - len(images))
        there = np.array([image is not None for image in images])
        numbers = np.full(config.batch_size, -1, np.int64)
        numbers[: len(of_rank)] = of_rank
        numbers[~there] = -1
        heights = np.array([i.height if i else _PLACEHOLDER_SIDE for i in images], np.int64)
        widths = np.array([i.width if i else _PLACEHOLDER_SIDE for i in images], np.int64)
        if config.is_training:
            which = (config.constants, heights, widths, numbers, config.seed, epoch)
            views = tuple(
                random_views(*which, colour=config.colour, view=view)
                for view in range(config.views)
            )
        else:
            views = (central_views(config.constants, heights, widths),)
        asked = set(config.fields) - set(DECODED)
        offset = self.records.manifest.label_offset
        classes = np.array([i.stored_label - offset if i else 0 for i in images], np.int32)
        if self._dense is not None:
            classes = np.where(there, self._dense[classes], np.int32(0))
        return EncodedBatch(
            [image.encoded if image else PLACEHOLDER for image in images],
            classes,
            there,
            views,
            numbers,
            {f: self._describe(f, images, numbers, heights, widths, views) for f in asked},
        )

    @cached_property
    def _names(self) -> Names:
        return Names(self.records)

    def _key(self, image: ImageExample, number: int) -> str:
        """Returns the key of an image: the one in the table, if its record may spell another."""
        manifest = self.records.manifest
        if not (manifest.has_own_keys and manifest.has_samples):
            return self.records.key(image)
        shard, record = self.records.place(number)
        if shard not in self._former:
            wnids = self.records.wnids
            self._former[shard] = {
                place: key
                for place, (class_index, key, _) in enumerate(self._names.of(shard))
                if "~" in key or not key.startswith(f"{wnids[class_index]}/")
            }
        return self._former[shard].get(record) or self.records.key(image)

    def _describe(
        self,
        field: str,
        images: Sequence[ImageExample | None],
        numbers: npt.NDArray[np.int64],
        heights: npt.NDArray[np.int64],
        widths: npt.NDArray[np.int64],
        views: Sequence[Views],
    ) -> npt.NDArray[Any]:
        """Returns a field that is not decoded; empty keys, -1 and zeros where there is no image."""
        if field == "key":
            named = zip(images, numbers.tolist(), strict=True)
            return np.array([self._key(image, n) if image else "" for image, n in named], np.str_)
        if field == "number":
            return numbers
        if field != "boxes":
            sides = heights if field == "height" else widths
            return np.where(numbers < 0, 0, sides).astype(np.int32)
        counts = [len(image.boxes.xmin) if image else 0 for image in images]
        most = max(counts)
        if most > MOST_BOXES:
            raise UsageError(
                f"example {numbers[counts.index(most)]} has {most:,} boxes, and a batch has room "
                f"for {MOST_BOXES:,} of each image: leave boxes out of fields=, or leave that "
                "example out"
            )
        boxes = np.zeros((len(images), most, 4))
        for of_image, image in zip(boxes, images, strict=True):
            if image:
                found = image.boxes
                of_image[: len(found.xmin)].T[:] = found.xmin, found.ymin, found.xmax, found.ymax
        side = self.config.image_size
        shown = [boxes_in(each, boxes, heights, widths, side) for each in views]
        return shown[0] if len(shown) == 1 else np.stack(shown, axis=1)
