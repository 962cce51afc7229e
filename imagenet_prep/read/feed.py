"""Reads one rank's examples in order, and computes their crops, for all decoding backends.

`Feed` yields the examples of each step as an `EncodedBatch`.

`ColumnRows` reads the rows of a column for examples of a split, and verifies each file before its
first use.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from itertools import dropwhile
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from imagenet_prep.core.errors import DataDamagedError, UsageError, some
from imagenet_prep.dataset import schema
from imagenet_prep.dataset.column import ANY_VIEW, PREFIX
from imagenet_prep.dataset.example import ImageExample
from imagenet_prep.dataset.schema import NO_CLASS
from imagenet_prep.read.augment import Views, boxes_in, central_views, random_views
from imagenet_prep.read.batch import DECODED, leased
from imagenet_prep.read.cache import BackgroundThreads, HeldFile
from imagenet_prep.read.config import ReadConfig
from imagenet_prep.read.order import Order, Steps
from imagenet_prep.read.selection import TableColumns
from imagenet_prep.storage import columns, local_file
from imagenet_prep.storage.dataset_store import missing_files
from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.storage.ledger import Ledger
from imagenet_prep.storage.local_file import storage_errors

if TYPE_CHECKING:
    import numpy.typing as npt

    from imagenet_prep.dataset.column import Column
    from imagenet_prep.dataset.manifest import DatasetFile
    from imagenet_prep.read.records import Records


_FREE = 4  # buffers of one batch each that are kept for reuse


class ColumnRows:
    """Reads rows of a column by example number. Not thread-safe."""

    def __init__(self, records: Records, name: str, config: ReadConfig | None = None) -> None:
        """Opens column.json; checks that the column fits the records and the view of `config`."""
        dataset = records.dataset
        self.column = columns.open_column(dataset, name, records.split)
        if config is not None:
            _require_view(self.column, config, config.view(records.manifest.edition))
        files, _ = self.column.of(records.split, dataset.shards(records.split))
        self._records = records
        self._store = LocalStore(records.root)
        self._files = {rows.shard: rows for rows in files}
        named = [self.column.file(rows) for rows in files]
        # With a cache, the reader downloads the files later.
        wrong = sorted(missing_files(dataset.store, named)) if records.cache is None else []
        if wrong:
            raise DataDamagedError(
                f"{dataset.where}: {some(wrong)}: missing, or the size differs from column.json. "
                "Copy these files again, or rerun the script that writes the column."
            )
        self._ledger = Ledger(self._store, schema.READ_COLUMNS, schema.MAX_SHARDS)
        # By shard: the file and the offset of its first row.
        self._open: dict[int, tuple[HeldFile, int]] = {}
        self._checked: set[int] = set()
        self._dtype = np.dtype(self.column.descr)
        self._free: deque[npt.NDArray[Any]] = deque(maxlen=_FREE)
        local_file.allow_open_files(len(records.shards) + len(files))

    def rows(self, numbers: Sequence[int], size: int) -> npt.NDArray[Any]:
        """Returns [size, *shape]: the rows of examples, padded with rows of zeros."""
        length = self.column.row_bytes
        batch = leased(size * length, self._free)
        for place, number in enumerate(numbers):
            shard, record = self._records.place(number)
            file, start = self._open.get(shard) or self._opened(shard)
            row = batch.data[place * length : (place + 1) * length]
            if os.preadv(file.descriptor, [row], start + record * length) != length:
                where = self._store.where(self.file(shard).name)
                raise DataDamagedError(
                    f"{where}: ends before row {record:,}, so it was truncated after it was "
                    "opened. Copy it again."
                )
            # Release the file: the cache may have to remove it to fetch the next one.
            del file
        batch[len(numbers) * length :] = 0
        return batch.view(self._dtype).reshape(size, *self.column.shape)

    def close(self) -> None:
        """Closes all files. A file that is being read is closed after the read."""
        self._open.clear()

    def file(self, shard: int) -> DatasetFile:
        """Returns the file with the rows of a shard."""
        return self.column.file(self._files[self._records.shards[shard].name])

    def _opened(self, shard: int) -> tuple[HeldFile, int]:
        """Opens and verifies the file of a shard; returns it, and the offset of its first row."""
        rows = self._files[self._records.shards[shard].name]
        start = len(self.column.header(rows.rows))
        name = self.file(shard).name
        # A file from the cache is not kept in `_open`, so that the cache may remove it.
        cache = self._records.cache
        fetched = cache.need(self.file(shard)) if cache is not None else None
        if fetched is not None and shard in self._checked:
            return fetched, start
        self._store.size(name)  # raises an error for a symbolic link
        path = self._store.path(name)
        with storage_errors("open", path):
            file = fetched or HeldFile(path)
            sha256 = rows.sha256
            if fetched is None:
                self._ledger.reload()
                with open(file.descriptor, "rb", closefd=False) as opened:
                    sha256 = self._ledger.sha256(name, opened)
            head = os.pread(file.descriptor, start, 0)
        problem = columns.misfit(self.column, rows, head, sha256, str(path))
        if problem:
            raise DataDamagedError(f"{problem}.")
        if fetched is None:
            self._open[shard] = file, start
        self._checked.add(shard)
        return file, start


def _require_view(made: Column, config: ReadConfig, view: str | None) -> None:
    """Raises UsageError if the column's rows are not valid for the images of the batches."""
    if "images" not in config.fields or made.view == ANY_VIEW:
        return
    if made.view != view:
        raise UsageError(
            f"column {made.name} was made from this view: {made.view}. This reader's images show "
            f"{view or 'random crops or colours'}. Remove 'images' from fields=, read "
            f"images with the column's view, or write the column with view={ANY_VIEW!r} if its "
            "rows are valid for every crop."
        )
    if config.is_training and config.constants.mirrors and "mirrored" not in config.fields:
        raise UsageError(
            f"column {made.name} was made from images that are not mirrored, but half of this "
            "reader's images are. Add 'mirrored' to fields= and adapt the rows of mirrored images."
        )


def numbers_of(values: npt.NDArray[Any], made: Column) -> npt.NDArray[Any]:
    """Converts bfloat16, which is stored as uint16, to float32; returns other types unchanged."""
    is_bfloat16 = made.dtype == "bfloat16"
    return (values.astype(np.uint32) << 16).view(np.float32) if is_bfloat16 else values


_STEPS_AHEAD = 3
# Fields that need the records. All other fields can be read from the sample tables.
_OF_RECORDS = ("images", "boxes")
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
    details: Mapping[str, npt.NDArray[Any]]  # all other requested fields


class _Planned(NamedTuple):
    """The order and the windows of an epoch, which take 0.2 s to compute for ImageNet."""

    key: tuple[int, int]  # epoch and shuffle window
    numbers: npt.NDArray[np.int64]
    windows: list[list[int]]


@dataclass(eq=False)
class Feed:
    """Reads the batches of one rank ahead of the decoding backend.

    Attributes:
      class_numbers: maps a class index in batches to the number of the class in the class list.
      bfloat16: the fields of columns that store bfloat16 as uint16.
      skipped: the error message of each masked record, by example number.
    """

    records: Records
    order: Order
    config: ReadConfig
    class_numbers: Sequence[int]

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
            self._dense = np.zeros(len(self.records.wnids), np.int32)
            self._dense[list(self.class_numbers)] = range(len(self.class_numbers))
        # One thread is enough: `will_need` tells the kernel to read ahead, and more threads would
        # only compete for the interpreter lock.
        self._thread = BackgroundThreads(1, "read")
        self._planned: _Planned | None = None

    def steps(self, start: int) -> Steps:
        """Returns the steps of an epoch after its first `start` examples."""
        nodes = self.order.placement.nodes
        total = self.order.num_examples
        config = self.config
        return Steps(start, total, config.rank.size, config.batch_size, config.is_training, nodes)

    def batches(self, epoch: int, start: int, most: int | None = None) -> Iterator[EncodedBatch]:
        """Yields at most `most` batches of this rank, after `start` examples of the epoch."""
        steps = self.steps(start)
        count = steps.count if most is None else min(most, steps.count)
        key = (epoch, self.order.window)
        if self._planned is None or self._planned.key != key:
            self._planned = _Planned(key, self.order.epoch(epoch), self.order.windows(epoch))
        _, numbers, windows = self._planned
        begin = steps.positions(0, 0).start
        if begin < len(numbers):
            first, _ = self.records.place(int(numbers[begin]))
            windows = list(dropwhile(lambda shards: first not in shards, windows))
        if self._reads_records or self.columns:
            column_files = [rows.file for rows in self.columns.values()]
            self.records.follow(windows, column_files, only_columns=not self._reads_records)
        ahead: deque[Future[EncodedBatch]] = deque()
        try:
            for step in range(count + _STEPS_AHEAD):
                if step < count:
                    positions = steps.positions(step, self.config.rank.rank)
                    rank_numbers = numbers[positions.start : positions.stop].tolist()
                    if self._reads_records:
                        self.records.will_need(rank_numbers)
                    ahead.append(self._thread.submit(self._read, rank_numbers, epoch))
                if step >= _STEPS_AHEAD - 1 and ahead:
                    yield ahead.popleft().result()
        finally:
            # This must not wait. The garbage collector may run it in any thread, even in one that
            # holds a lock that the reading thread needs.
            for batch in ahead:
                batch.cancel()

    def use_order(self, order: Order) -> None:
        """Changes the order, and with it the chosen examples."""
        self.order = order
        self._planned = None

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

    def skip(self, number: int, error: DataDamagedError) -> None:
        """Masks a damaged record from now on; raises `error` unless on_bad_record is "skip"."""
        if self.config.on_bad_record != "skip":
            raise error
        self.skipped[number] = str(error)

    def _read(self, rank_numbers: list[int], epoch: int) -> EncodedBatch:
        """Reads the examples with these numbers; the last batch of an epoch is padded."""
        config = self.config
        size = config.batch_size
        if self._facts is not None:
            self._facts.read(rank_numbers)
        rows = {field: column.rows(rank_numbers, size) for field, column in self.columns.items()}
        numbers = np.full(size, -1, np.int64)
        numbers[: len(rank_numbers)] = rank_numbers
        images: list[ImageExample | None] = []
        sides = np.full((2, size), _PLACEHOLDER_SIDE, np.int64)
        if self._reads_records:
            images = self._images(rank_numbers)
            numbers[[image is None for image in images]] = -1
            sides[0] = [image.width if image else _PLACEHOLDER_SIDE for image in images]
            sides[1] = [image.height if image else _PLACEHOLDER_SIDE for image in images]
        mask = numbers >= 0
        views = self._views(sides, numbers, epoch)
        has_sides = not {"width", "height"}.isdisjoint(config.fields)
        if self._facts is not None and not self._reads_records and has_sides:
            sides = self._facts.sides[:, numbers].astype(np.int64)
        classes = self._classes(numbers, images)
        for values in rows.values():
            values[~mask] = 0
        details = set(config.fields) - set(DECODED) - rows.keys()
        return EncodedBatch(
            [image.encoded if image else PLACEHOLDER for image in images],
            classes,
            mask,
            views,
            numbers,
            {f: self._describe(f, images, numbers, sides, views) for f in details} | rows,
        )

    def _images(self, rank_numbers: list[int]) -> list[ImageExample | None]:
        """Returns the images of a batch; None for masked examples and for padding."""
        images: list[ImageExample | None] = []
        for number, image in zip(rank_numbers, self.records.read_many(rank_numbers), strict=True):
            if image is None or number in self.skipped:
                image = self._read_one(number)
            images.append(image)
        return images + [None] * (self.config.batch_size - len(rank_numbers))

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
        self, sides: npt.NDArray[np.int64], numbers: npt.NDArray[np.int64], epoch: int
    ) -> tuple[Views, ...]:
        """Returns the crops of a batch for each view; () if no field needs them."""
        config = self.config
        widths, heights = sides
        if not self._reads_records and "mirrored" not in config.fields:
            return ()
        if not config.is_training:
            recipe = config.recipe_for(self.records.manifest.edition)
            return (central_views(recipe, heights, widths),)
        which = (config.constants, heights, widths, numbers, config.seed, epoch)
        return tuple(
            random_views(*which, colour=config.colour, view=view) for view in range(config.views)
        )

    def _describe(
        self,
        field: str,
        images: Sequence[ImageExample | None],
        numbers: npt.NDArray[np.int64],
        sides: npt.NDArray[np.int64],
        views: Sequence[Views],
    ) -> npt.NDArray[Any]:
        """Returns one array of `EncodedBatch.details`."""
        if field == "key":
            # Keys come from the tables, since an amended dataset's records may lack them.
            if self._facts is None:
                return np.array([self.records.key(i) if i else "" for i in images], np.str_)
            keys = np.full(len(numbers), "", object)
            keys[numbers >= 0] = self._facts.keys(numbers[numbers >= 0])
            return keys.astype(np.str_)
        if field == "number":
            return numbers
        if field in ("width", "height"):
            return np.where(numbers < 0, 0, sides[int(field == "height")]).astype(np.int32)
        if field == "mirrored":
            return _stacked([np.where(numbers < 0, False, view.mirrored) for view in views])
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
        side = self.config.image_size
        square = self.config.constants.square
        widths, heights = sides
        return _stacked([boxes_in(v, boxes, heights, widths, side, square=square) for v in views])


def _stacked(arrays: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Returns an array with an axis for the views, if there are several."""
    return arrays[0] if len(arrays) == 1 else np.stack(arrays, axis=1)
