"""Reads one rank's examples in order, and computes their crops, for all decoding backends.

`Feed` yields the examples of each step as an `EncodedBatch`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from itertools import dropwhile
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from imagenet_prep.core.errors import DataDamagedError, UsageError
from imagenet_prep.dataset.column import PREFIX
from imagenet_prep.dataset.example import ImageExample
from imagenet_prep.dataset.schema import NO_CLASS
from imagenet_prep.read.augment import Views, boxes_in, central_views, random_views
from imagenet_prep.read.batch import DECODED
from imagenet_prep.read.cache import BackgroundThreads
from imagenet_prep.read.column_rows import ColumnRows
from imagenet_prep.read.config import ReadConfig, Shown, each_view
from imagenet_prep.read.decoder import problem
from imagenet_prep.read.order import BatchShape, DrawnSteps, Order, Steps, WindowedOrder
from imagenet_prep.read.selection import TableColumns

if TYPE_CHECKING:
    import numpy.typing as npt

    from imagenet_prep.read.records import Records


_STEPS_AHEAD = 3
# Fields that need the records. All other fields can be read from the sample tables.
_OF_RECORDS = ("images", "boxes", "encoded")
MOST_BOXES = 5_000  # per image: a batch is padded to the most boxes of its images

# A grey JPEG of 8 x 8 pixels, which is decoded instead of masked examples.
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
    """The examples of one step and rank before decoding; see `Batch` for the arrays."""

    # [batch] JPEGs, which may share a buffer; PLACEHOLDER if the mask is False. Empty if no field
    # needs the records.
    encoded: list[bytes | memoryview]
    class_index: npt.NDArray[np.int32]
    mask: npt.NDArray[np.bool_]
    views: tuple[Views, ...]
    numbers: npt.NDArray[np.int64]
    # All other requested fields: arrays, stored images, and texts of columns.
    details: Mapping[str, npt.NDArray[Any] | list[bytes] | list[list[str]]]
    shown: tuple[Shown, ...]  # what each array of images shows


def read_ahead(
    thread: BackgroundThreads, reads: Iterator[Callable[[], EncodedBatch]]
) -> Iterator[EncodedBatch]:
    """Yields the results of calls, which a thread makes a few steps ahead."""
    ahead: deque[Future[EncodedBatch]] = deque()
    try:
        for read in reads:
            ahead.append(thread.submit(read))
            if len(ahead) == _STEPS_AHEAD:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
    finally:
        # This must not wait. The garbage collector may run it in any thread, even in one that
        # holds a lock that the reading thread needs.
        for batch in ahead:
            batch.cancel()


@dataclass(eq=False)
class Feed:
    """Reads the batches of one rank ahead of the decoding backend.

    Attributes:
      class_numbers: maps a class index in batches to the number of the class in the class list.
      bfloat16: the fields of columns that store bfloat16 as uint16.
      mix: the mix that has numbered the classes, if the reader is a part of one.
      skipped: the error message of each masked record, by example number.
    """

    records: Records
    order: Order
    config: ReadConfig
    class_numbers: Sequence[int]
    mix: object = None

    def __post_init__(self) -> None:
        self.skipped: dict[int, str] = {}
        fields = set(self.config.fields)
        has_samples = self.records.manifest.has_samples
        self.columns = {
            field: ColumnRows(self.records, field.removeprefix(PREFIX), self.config)
            for field in self.config.columns
        }
        self.bfloat16 = {f for f, rows in self.columns.items() if rows.column.dtype == "bfloat16"}
        self._reads_records = not has_samples or not fields.isdisjoint(_OF_RECORDS)
        self._facts: TableColumns | None = None
        if has_samples and (not self._reads_records or "key" in fields):
            self._facts = TableColumns(self.records, fields)
        self._dense: npt.NDArray[np.int32] | None = None
        if len(self.class_numbers) < len(self.records.wnids):
            self.renumber(range(len(self.class_numbers)))
        # One thread is enough: `will_need` tells the kernel to read ahead, and more threads would
        # only compete for the interpreter lock.
        self._thread = BackgroundThreads(1, "read")
        # The plans of the current epoch and of the next one, by epoch and shuffle window.
        self._plans: dict[tuple[int, int], Future[WindowedOrder]] = {}

    def renumber(self, numbers: Sequence[int]) -> None:
        """Gives the class i of `class_numbers` the class index `numbers[i]` in the batches."""
        self._dense = np.zeros(len(self.records.wnids), np.int32)
        self._dense[list(self.class_numbers)] = numbers

    def steps(self, epoch: int, start: int) -> Steps | DrawnSteps:
        """Returns the steps of an epoch after its first `start` examples."""
        config = self.config
        return config.schedule.steps(
            epoch,
            start,
            self.order.num_examples,
            config.rank.size,
            drop_tail=config.is_training,
            nodes=self.order.placement.nodes,
        )

    def batches(self, epoch: int, start: int, most: int | None = None) -> Iterator[EncodedBatch]:
        """Yields at most `most` batches of this rank, after `start` examples of the epoch."""
        steps = self.steps(epoch, start)
        count = steps.count if most is None else min(most, steps.count)
        plan = self._plan(epoch)
        self._plans = {(epoch, self.order.window): plan}  # without the plan of the last epoch
        order = plan.result()
        windows = order.shards
        begin = steps.positions(0, 0).start
        if begin < len(order):
            (number,) = self.order.records(order.numbers(begin, begin + 1)).tolist()
            first, _ = self.records.place(number)
            windows = list(dropwhile(lambda shards: first not in shards, windows))
        self.follow(windows)

        def reads() -> Iterator[Callable[[], EncodedBatch]]:
            for step in range(count):
                positions = steps.positions(step, self.config.rank.rank)
                ordered = order.numbers(positions.start, positions.stop)
                if self._reads_records:
                    self.records.will_need(self.order.records(ordered).tolist())
                yield partial(self.read, ordered, epoch, steps.shape_of(step))
            # The workers of a DataLoader read single steps, and may end with the epoch.
            if self.config.is_training and most != 1:
                self._plan(epoch + 1)

        yield from read_ahead(self._thread, reads())

    def _plan(self, epoch: int) -> Future[WindowedOrder]:
        """Starts to compute the order of an epoch, in the reading thread."""
        key = (epoch, self.order.window)
        if key not in self._plans:
            self._plans[key] = self._thread.submit(self.order.by_window, epoch)
        return self._plans[key]

    def follow(self, windows: Sequence[Sequence[int]]) -> None:
        """Tells the cache which shards will be read, window by window."""
        if self._reads_records or self.columns:
            column_files = [rows.file for rows in self.columns.values()]
            self.records.follow(windows, column_files, only_columns=not self._reads_records)

    def use_order(self, order: Order) -> None:
        """Changes the order, and with it the chosen examples."""
        self.order = order
        self._plans = {}

    def use_window(self, window: int) -> None:
        """Changes the shuffle window of the order, in shards; 0 for all shards."""
        if window != self.order.window:
            self.order = replace(self.order, window=window)

    def close(self) -> None:
        """Closes the shards; the next epoch opens them again."""
        self.records.close()
        # The reading thread may have reopened a shard, so it closes all shards after its tasks.
        self._thread.submit(self._close).result()

    def _close(self) -> None:
        self.records.close()
        for rows in self.columns.values():
            rows.close()

    def mask_undecodable(self, batch: EncodedBatch, decode: Callable[[bytes], None]) -> bool:
        """Masks the images of a batch that cannot be decoded; returns whether there are any.

        `decode` is `Backend.decode`.

        Raises:
          DataDamagedError: an image cannot be decoded, and on_bad_record is not "skip".
        """
        found = False
        for number in batch.numbers[batch.mask].tolist():
            encoded = self.records.read(number).encoded
            why = problem(encoded, decode, self.config.backend)
            if why:
                self.skip(number, DataDamagedError(f"{self.records.where(number)}: {why}"))
                found = True
        return found

    def skip(self, number: int, error: DataDamagedError) -> None:
        """Masks a damaged record from now on; raises `error` unless on_bad_record is "skip"."""
        if self.config.on_bad_record != "skip":
            raise error
        self.skipped[number] = str(error)

    def read(self, ordered: npt.NDArray[np.int64], epoch: int, shape: BatchShape) -> EncodedBatch:
        """Reads the examples with these numbers of an order; pads the last batch of an epoch."""
        config = self.config
        size = shape.batch_size
        rank_numbers = self.order.records(ordered).tolist()
        if self._facts is not None:
            self._facts.read(rank_numbers)
        rows = {field: column.rows(rank_numbers, size) for field, column in self.columns.items()}
        numbers = np.full(size, -1, np.int64)
        numbers[: len(rank_numbers)] = rank_numbers
        images: list[ImageExample | None] = []
        sides = np.full((2, size), _PLACEHOLDER_SIDE, np.int64)
        if self._reads_records:
            images = self._images(rank_numbers, size)
            numbers[[image is None for image in images]] = -1
            sides[0] = [image.width if image else _PLACEHOLDER_SIDE for image in images]
            sides[1] = [image.height if image else _PLACEHOLDER_SIDE for image in images]
        mask = numbers >= 0
        shown = config.shown[shape.size]
        drawn = numbers.copy()
        drawn[: len(ordered)] = ordered  # each appearance of an example has its own crops
        views = self._views(sides, drawn, epoch, shown)
        has_sides = not {"width", "height"}.isdisjoint(config.fields)
        if self._facts is not None and not self._reads_records and has_sides:
            sides = self._facts.sides[:, numbers].astype(np.int64)
        classes = self._classes(numbers, images)
        for values in rows.values():
            if isinstance(values, list):
                for place in np.flatnonzero(~mask):
                    values[place] = []
            else:
                values[~mask] = 0
        details: dict[str, Any] = dict(rows)
        for field in set(config.fields) - set(DECODED) - rows.keys():
            details[field] = self._describe(field, images, numbers, sides, views, shown)
        return EncodedBatch(
            [image.encoded if image else PLACEHOLDER for image in images],
            classes,
            mask,
            views,
            numbers,
            details,
            shown,
        )

    def _images(self, rank_numbers: list[int], size: int) -> list[ImageExample | None]:
        """Returns the images of a batch; None for masked examples and for padding."""
        images: list[ImageExample | None] = []
        for number, image in zip(rank_numbers, self.records.read_many(rank_numbers), strict=True):
            if image is None or number in self.skipped:
                image = self._read_one(number)
            images.append(image)
        return images + [None] * (size - len(rank_numbers))

    def _classes(
        self, numbers: npt.NDArray[np.int64], images: Sequence[ImageExample | None]
    ) -> npt.NDArray[np.int32]:
        """Returns the class indices of a batch; NO_CLASS where the mask is False."""
        if self._facts is not None and not self._reads_records:
            classes = self._facts.classes[numbers]
        else:
            offset = self.records.manifest.label_offset
            classes = np.array([i.stored_label - offset if i else 0 for i in images], np.int32)
        if self._dense is not None:
            classes = self._dense[classes]
        return np.where(numbers >= 0, classes, np.int32(NO_CLASS))

    def _read_one(self, number: int) -> ImageExample | None:
        if number in self.skipped:
            return None
        # Outside of `try`, because a damaged shard must not be skipped like a bad record.
        self.records.open_shard(number)
        try:
            return self.records.read(number)
        except DataDamagedError as error:
            self.skip(number, error)
            return None

    def _views(
        self,
        sides: npt.NDArray[np.int64],
        numbers: npt.NDArray[np.int64],
        epoch: int,
        shown: Sequence[Shown],
    ) -> tuple[Views, ...]:
        """Returns the crops of a batch for each view; () if no field needs them."""
        config = self.config
        widths, heights = sides
        if not self._reads_records and "mirrored" not in config.fields:
            return ()
        if not config.is_training:
            recipe = config.recipe_for(self.records.manifest.edition)
            return (central_views(recipe, heights, widths, shown[0].size),)
        which = (heights, widths, numbers, config.seed, epoch)
        return tuple(
            random_views(each.crops, *which, colour=config.colour, view=view)
            for view, each in enumerate(each_view(shown))
        )

    def _describe(
        self,
        field: str,
        images: Sequence[ImageExample | None],
        numbers: npt.NDArray[np.int64],
        sides: npt.NDArray[np.int64],
        views: Sequence[Views],
        shown: Sequence[Shown],
    ) -> npt.NDArray[Any] | list[bytes]:
        """Returns one field of `EncodedBatch.details`."""
        if field == "key":
            # Keys come from the tables, since an amended dataset's records may lack them.
            if self._facts is None:
                return np.array([self.records.key(i) if i else "" for i in images], np.str_)
            keys = np.full(len(numbers), "", object)
            keys[numbers >= 0] = self._facts.keys(numbers[numbers >= 0])
            return keys.astype(np.str_)
        if field == "encoded":
            return [bytes(image.encoded) if image else b"" for image in images]
        if field == "number":
            return numbers
        if field in ("width", "height"):
            return np.where(numbers < 0, 0, sides[int(field == "height")]).astype(np.int32)
        if field == "mirrored":
            mirrored = [np.where(numbers < 0, False, view.mirrored) for view in views]
            return self._stacked(mirrored)
        counts = [len(image.boxes.xmin) if image else 0 for image in images]
        most = max(counts)
        if most > MOST_BOXES:
            raise UsageError(
                f"example {numbers[counts.index(most)]} has {most:,} boxes, but a batch holds at "
                f"most {MOST_BOXES:,} per image. Remove 'boxes' from fields= or exclude the example"
            )
        boxes = np.zeros((len(images), most, 4))
        for rows, image in zip(boxes, images, strict=True):
            if image:
                b = image.boxes
                rows[: len(b.xmin)].T[:] = b.xmin, b.ymin, b.xmax, b.ymax
        widths, heights = sides
        square = self.config.crops.square
        sizes = [each.size for each in each_view(shown)]
        pairs = zip(views, sizes, strict=True)
        return self._stacked(
            [boxes_in(view, boxes, heights, widths, size, square=square) for view, size in pairs]
        )

    def _stacked(self, arrays: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
        """Returns an array with an axis for the views, if there are several or a list."""
        if len(arrays) == 1 and not self.config.has_view_list:
            return arrays[0]
        return np.stack(arrays, axis=1)
