"""Reads the rows of a column for examples of a split; verifies each file before its first use."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from imagenet_prep.core.errors import DataDamagedError, UsageError, some
from imagenet_prep.dataset import schema
from imagenet_prep.dataset.column import ANY_VIEW, MOST_ROW_BYTES
from imagenet_prep.read.batch import leased
from imagenet_prep.read.cache import HeldFile
from imagenet_prep.read.config import ReadConfig
from imagenet_prep.storage import columns, local_file
from imagenet_prep.storage.dataset_store import missing_files
from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.storage.ledger import Ledger
from imagenet_prep.storage.local_file import storage_errors
from imagenet_prep.storage.remote import CHUNK_BYTES

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
        self._line_ends: dict[int, npt.NDArray[np.int64]] = {}  # of texts, by shard
        self._dtype = np.dtype(self.column.descr)
        self._free: deque[npt.NDArray[Any]] = deque(maxlen=_FREE)
        local_file.allow_open_files(len(records.shards) + len(files))

    def rows(self, numbers: Sequence[int], size: int) -> npt.NDArray[Any] | list[list[str]]:
        """Returns the rows of examples, padded with empty rows: arrays or lists of texts."""
        if self.column.is_text:
            rows = [*map(self._texts, numbers)]
            return rows + [[] for _ in range(size - len(rows))]
        return self.arrays(numbers, size)

    def arrays(self, numbers: Sequence[int], size: int) -> npt.NDArray[Any]:
        """Returns [size, *shape]: the rows of examples, padded with rows of zeros."""
        length = self.column.row_bytes
        batch = leased(size * length, self._free)
        for place, number in enumerate(numbers):
            shard, record = self._records.place(number)
            file, start = self._open.get(shard) or self._opened(shard)
            row = batch.data[place * length : (place + 1) * length]
            if os.preadv(file.descriptor, [row], start + record * length) != length:
                raise self._truncated(shard, record)
            # Release the file: the cache may have to remove it to fetch the next one.
            del file
        batch[len(numbers) * length :] = 0
        return batch.view(self._dtype).reshape(size, *self.column.shape)

    def _texts(self, number: int) -> list[str]:
        """Returns the texts of an example."""
        shard, record = self._records.place(number)
        file, _ = self._open.get(shard) or self._opened(shard)
        ends = self._line_ends[shard]
        begin = int(ends[record - 1]) if record else 0
        length = min(int(ends[record]) - begin, MOST_ROW_BYTES + 1)
        row = os.pread(file.descriptor, length, begin)
        if len(row) < length:
            raise self._truncated(shard, record)
        where = self._store.where(self.file(shard).name)
        return columns.texts(self.column, row, where, record)

    def _truncated(self, shard: int, record: int) -> DataDamagedError:
        where = self._store.where(self.file(shard).name)
        return DataDamagedError(
            f"{where}: ends before row {record:,}, so it was truncated after it was opened. Copy "
            "it again."
        )

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
        in_text = None
        ends = _line_ends(file.descriptor) if self.column.is_text else None
        if ends is not None and (len(ends) != rows.rows or ends[-1] != rows.num_bytes):
            in_text = f"has {len(ends):,} complete lines, expected {rows.rows:,}"
        problem = columns.misfit(self.column, rows, head, sha256, str(path), in_text)
        if problem:
            raise DataDamagedError(f"{problem}.")
        if ends is not None:
            self._line_ends[shard] = ends
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
    if config.is_training and config.crops.mirror > 0 and "mirrored" not in config.fields:
        raise UsageError(
            f"column {made.name} was made from images that are not mirrored, but half of this "
            "reader's images are. Add 'mirrored' to fields= and adapt the rows of mirrored images."
        )


def _line_ends(descriptor: int) -> npt.NDArray[np.int64]:
    """Returns the offset behind each line feed of a file."""
    ends = []
    offset = 0
    while chunk := os.pread(descriptor, CHUNK_BYTES, offset):
        found = np.flatnonzero(np.frombuffer(chunk, np.uint8) == ord("\n"))
        ends.append(found + (offset + 1))
        offset += len(chunk)
    return np.concatenate([np.empty(0, np.int64), *ends])


def numbers_of(values: npt.NDArray[Any], made: Column) -> npt.NDArray[Any]:
    """Converts bfloat16, which is stored as uint16, to float32; returns other types unchanged."""
    is_bfloat16 = made.dtype == "bfloat16"
    return (values.astype(np.uint32) << 16).view(np.float32) if is_bfloat16 else values
