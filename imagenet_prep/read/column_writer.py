"""`ColumnWriter` adds a column to a dataset; a user's loop computes the rows batch by batch."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import io
import operator
import os
import shlex
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, Self, cast

import numpy as np

from imagenet_prep.core import small_files, strict_json
from imagenet_prep.core.arguments import checked
from imagenet_prep.core.errors import BusyError, DataDamagedError, UsageError
from imagenet_prep.core.strict_json import Json
from imagenet_prep.core.terminal import counted
from imagenet_prep.core.world import World, this_process
from imagenet_prep.dataset import column, text_rows
from imagenet_prep.dataset.column import Column, ColumnFile
from imagenet_prep.read.backend import say_once
from imagenet_prep.read.batch import array_over
from imagenet_prep.read.cache import only_one
from imagenet_prep.read.column_rows import numbers_of
from imagenet_prep.read.config import Decoding, ReadConfig
from imagenet_prep.read.order import Order
from imagenet_prep.read.reader import Reader, open_feed
from imagenet_prep.storage import columns, local_file
from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.storage.local_file import complete_file
from imagenet_prep.storage.remote import hashed

if TYPE_CHECKING:
    from imagenet_prep.read.feed import Feed

# Arguments of `make_dataset` that may be keys of the argument `reader`.
_OPTIONS = {"image_size", *(option.name for option in dataclasses.fields(Decoding))}


class ColumnWriter:
    """Writes a column. Iterating yields batches in record order; call `write` after each batch.

    No two ranks write rows of the same shard. If a rank is killed, run the same loop again, with
    any number of ranks: it yields only the records that have no rows yet. Once all rows exist, the
    last rank writes column.json, which readers need to open the column, and `is_complete` is True
    after the `with` block. `column` holds the settings of the column.

    Example:
      >>> import numpy as np
      >>> from imagenet_prep.read import ColumnWriter, make_dataset
      >>> with ColumnWriter("/data/imagenet-480", "train", "mean", (3,), "float32",
      ...                   about={"made": "mean colour"}, batch_size=64,
      ...                   reader={"backend": "native", "dtype": "uint8"}) as column:
      ...     for batch in column:
      ...         column.write(batch["images"].mean(axis=(1, 2), dtype=np.float32))
      >>> column.is_complete
      True
      >>> reader = make_dataset("/data/imagenet-480", "train", batch_size=8, backend="native",
      ...                       fields=("class_index", "column:mean"))
      >>> next(iter(reader))["column:mean"].shape
      (8, 3)
    """

    @checked
    def __init__(
        self,
        data_dir: str | os.PathLike[str],
        split: str,
        name: str,
        shape: Sequence[int],
        dtype: str,
        about: Any = None,
        *,
        batch_size: int,
        view: str | None = None,
        world: World | None = None,
        finite: bool = True,
        reader: Mapping[str, Any] | None = None,
    ) -> None:
        """Starts a new column, or continues an unfinished one.

        Args:
          data_dir: folder of a complete dataset that has tables of samples.
          split: split to write; a column can have rows for several splits, one after the other.
          name: name of the column: letters, digits, dots, hyphens and underscores.
          shape: shape of one row; () for a single value, and for texts.
          dtype: "bool", "int8" to "uint64", "float16" to "float64" or "bfloat16"; or "str": a row
            then has any number of texts, such as captions.
          about: any JSON that describes how the rows are computed; must be the same when a column
            is continued.
          batch_size: records per batch.
          view: "image" if the rows are valid for every crop of an image, mirrored or not. By
            default, they are valid only for the crop in the batches.
          world: rank and size of this process; by default from the launcher or framework.
          finite: raise UsageError for values that are infinite or not a number.
          reader: arguments for `make_dataset`: image_size, recipe, share, keep_aspect, filter,
            mean, std, backend, framework, fields, dtype, layout, antialias, device, num_threads,
            originals. By default, batches have only images. With "class_index" or "key" in fields,
            the column is marked as derived from the class.

        Raises:
          UsageError: an argument is invalid, or differs from the settings of the existing column.
          DataDamagedError: files of the column are damaged.
        """
        if not isinstance(reader, Mapping | None):
            raise UsageError(f"reader={reader!r}: expected a dict of arguments for make_dataset")
        if not isinstance(world, World | None):
            raise UsageError(f"world={world!r}: expected World(rank, size)")
        options: Json = {"fields": ("images",), **(reader or {})}
        unknown = options.keys() - _OPTIONS
        if unknown:
            raise UsageError(
                f"reader={sorted(unknown)}: expected some of {', '.join(sorted(_OPTIONS))}"
            )
        if "://" in os.fspath(data_dir):
            raise UsageError(
                f"{data_dir}: a column can only be written in a local folder. Run imagenet-prep "
                "replicate first."
            )
        if view not in (None, column.ANY_VIEW):
            raise UsageError(f"view={view!r}: expected {column.ANY_VIEW!r} or None")
        options["fields"] = tuple(dict.fromkeys((*options["fields"], "number")))
        # Each rank reads its own shards, as if it were the only one.
        only_rank = World()
        config = ReadConfig(data_dir, split, batch_size, training=False, world=only_rank, **options)
        feed, choice = open_feed(config)
        self._batch_size = batch_size
        self._finite = finite
        self._records = feed.records
        self._records.dataset.require_complete()
        self._records.dataset.require_samples()
        self._store = LocalStore(self._records.root)
        self.column = _new_column(name, dtype, shape, about, view or _view_of(feed), feed)
        self._folder = column.folder_name(name)
        self.is_complete = False
        with only_one(self._store, self._folder):
            self._existing = self._begin()
        world = world or this_process()
        self._done = {
            shard: self._finished(shard)
            for shard in range(world.rank, len(self._records.shards), world.size)
        }
        numbers: list[int] = []
        for shard in self._done:
            examples = self._records.numbers_of(shard)
            numbers += (examples[record] for record in self._missing(shard))
        if world.rank == 0:
            self._tell_kept()
        chosen = np.array(numbers, np.int64)
        feed.use_order(Order(self._records.examples_per_shard, None, chosen=chosen))
        self._reader = Reader(feed, choice)
        self._is_entered = False
        self._due: list[int] = []
        self._num_written = 0
        self._num_empty = 0
        self._file: Generator[None, bytes | memoryview, None] | None = None

    def __len__(self) -> int:
        return len(self._reader)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yields batches of this rank's records that have no rows yet."""
        if not self._is_entered:
            raise UsageError(
                "a ColumnWriter completes its column at the end of a with statement: write `with "
                "ColumnWriter(...) as writer:` around the loop"
            )
        if not self._reader.num_examples:
            return
        # After a loop that ended early, this loop continues, since rows are written in order.
        self._reader.restore(self._reader.state())
        for batch in self._reader:
            numbers = np.asarray(batch["number"])
            self._due = numbers[numbers >= 0].tolist()
            yield cast("dict[str, Any]", batch)
            if self._due:
                raise UsageError("write() was not called for a batch: call it after each batch")

    def write(self, rows: Any) -> None:
        """Writes the rows of the last yielded batch, and ignores the rows for padding.

        `rows` is a NumPy array, or an array in CPU memory that supports DLPack. For texts, it is a
        list with a list of strings for each image, which may be empty; a string is a list of one.
        """
        due = self._due
        self._due = []
        if not due:
            raise UsageError("write() was called twice or too early: call it once after each batch")
        checked = self._texts if self.column.is_text else self._values
        new = checked(rows, due)
        if self.column.is_text:
            self._num_written += len(new)
            self._num_empty += new.count(self.column.empty_row)
        for number, row in zip(due, new, strict=True):
            if self._file is None:
                self._file = self._shard_file(self._records.place(number)[0])
                next(self._file)
            try:
                self._file.send(row)
            except StopIteration:
                self._file = None

    def finish(self) -> bool:
        """Writes column.json if the rows of all shards exist; returns `is_complete`."""
        with only_one(self._store, self._folder):
            self._existing = columns.find(self._store, self.column.name)
            results = [self._finished(shard) for shard in range(len(self._records.shards))]
            files = [rows for rows in results if rows is not None and not rows.missing]
            self.is_complete = len(files) == len(results)
            if self.is_complete:
                complete = (self._existing or self.column).with_files(self._records.split, files)
                if complete != self._existing:
                    self._store.write(column.record_name(complete.name), complete.dumps())
                self._remove_receipts()
        self._tell_empty()
        return self.is_complete

    def __enter__(self) -> Self:
        self._is_entered = True
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if self._file is not None:
            self._file.close()
        if kind is None:
            self.finish()
        self._reader.close()

    def _begin(self) -> Column | None:
        """Saves the settings, or compares them with those saved; returns column.json, or None."""
        name = self.column.name
        existing = columns.find(self._store, name)
        begun = columns.find(self._store, name, begun=True)
        for other in filter(None, (existing, begun)):
            differing = self.column.differing(other)
            if differing:
                raise UsageError(
                    f"{self._store.where(self._folder)}: the column was started with a different "
                    f"{', '.join(differing)}. Use the same settings or a different name, or first "
                    f"run {self._removal()}."
                )
        is_new = existing is None or self._records.split not in existing.splits
        if is_new and begun is None:
            self._store.write(column.begun_name(name), self.column.dumps())
        return existing

    def _removal(self) -> str:
        place = shlex.quote(str(self._records.root))
        return f"imagenet-prep remove-column {place} {self.column.name}"

    def _tell_kept(self) -> None:
        """Logs the number of rows that exist already: a changed script does not change them."""
        kept = total = 0
        for number, shard in enumerate(self._records.shards):
            total += shard.examples
            done = self._done[number] if number in self._done else self._finished(number)
            if done is not None:
                kept += shard.examples - len(done.missing)
        if kept:
            say_once(
                f"{self._store.where(self._folder)}: {kept:,} of {counted(total, 'row')} of "
                f"{self._records.split} exist already, and stay as they are. To compute them "
                f"again, first run {self._removal()}."
            )

    def _tell_empty(self) -> None:
        """Tells the number of images without a text, as after a lookup by names that are no keys.

        For example, the blanks of a class folder are underscores in keys.
        """
        if self._num_empty:
            place = shlex.quote(str(self._records.root))
            say_once(
                f"{self._store.where(self._folder)}: {self._num_empty:,} of "
                f"{counted(self._num_written, 'new row')} of {self._records.split} have no text. "
                "If the script looks up texts by key: keys are CLASS/NAME, as printed by "
                f"imagenet-prep show {place} --keys. To write the column again, first run "
                f"{self._removal()}."
            )

    def _finished(self, number: int) -> ColumnFile | None:
        """Returns a shard's entry from its receipt or column.json; None if it has no rows yet."""
        shard = self._records.shards[number]
        rows = [columns.receipt(self._store, self.column.name, shard.name)]
        if self._existing:
            rows += self._existing.of(self._records.split, [shard])[0]
        for file in filter(None, rows):
            size = self._store.size(self.column.file(file).name)
            if file.is_of(shard) and size == file.num_bytes:
                return file
        return None

    def _missing(self, number: int) -> Sequence[int]:
        """Returns the records of a shard that had no rows when this writer started."""
        done = self._done[number]
        return range(self._records.shards[number].examples) if done is None else done.missing

    def _shard_file(self, number: int) -> Generator[None, bytes | memoryview, None]:
        """Writes a shard's file and receipt; the caller passes each missing row with `send`."""
        made = self.column
        store = self._store
        shard = self._records.shards[number]
        name = made.file_name(shard.name)
        receipt = column.receipt_name(made.name, shard.name)
        digest = hashlib.sha256()
        missing = {*self._missing(number)}
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(only_one(store, name, fcntl.LOCK_NB))
            except BlockingIOError:
                raise self._busy(name) from None
            if self._finished(number) != self._done[number]:
                raise self._busy(name)
            existing = stack.enter_context(self._verified(number, name))
            with complete_file(store.path(name), None) as file:
                header = made.header(shard.examples)
                digest.update(header)
                size = file.write(header)
                for record in range(shard.examples):
                    row: bytes | memoryview = made.read_row(existing)
                    if record in missing:
                        row = yield
                    digest.update(row)
                    size += file.write(row)
                # If the process is killed, the old receipt must not remain with the new file.
                store.remove(receipt)
            table = shard.samples_sha256
            rows = ColumnFile(shard.name, shard.examples, size, digest.hexdigest(), table)
            store.write(receipt, strict_json.dumps(rows))

    @contextlib.contextmanager
    def _verified(self, number: int, name: str) -> Iterator[BinaryIO]:
        """Verifies the sha256 of the rows that `amend` kept for a shard, and yields their file."""
        done = self._done[number]
        if done is None:
            yield io.BytesIO()
            return
        digest = hashlib.sha256()
        with self._store.open_file(name) as file:
            deque(hashed(file, [digest]), maxlen=0)
            if digest.hexdigest() != done.sha256:
                raise DataDamagedError(
                    f"{self._store.where(name)}: its sha256 differs from that in its receipt. "
                    "Remove the file and run the same script again."
                )
            file.seek(len(self.column.header(done.rows)))
            yield file

    def _busy(self, name: str) -> BusyError:
        return BusyError(
            f"{self._store.where(name)}: another process is writing this file, or has written it "
            "since this run started. Give each rank a different World(rank, size), and wait "
            "until other runs have ended."
        )

    def _remove_receipts(self) -> None:
        store = self._store
        name = self.column.name
        store.remove(*columns.receipts(store, name, self._records.shards))
        if not columns.receipts(store, name, self._records.manifest.shards):
            store.remove(column.begun_name(name))
        with local_file.folder_inside(store.root, self._folder) as folder:
            for partial in store.names(self._folder):
                if column.is_partial(partial):
                    small_files.remove_killed(folder, partial)

    def _texts(self, rows: Any, due: Sequence[int]) -> list[bytes | memoryview]:
        """Returns the rows of texts for the examples `due` as lines of JSON."""
        if isinstance(rows, np.ndarray):
            rows = rows.tolist()
        expected = f"write(): expected a list of {len(due):,} lists of strings, one per image"
        if not isinstance(rows, list | tuple):
            raise UsageError(f"{expected}, got {type(rows).__name__}")
        if len(rows) not in (len(due), self._batch_size):
            raise UsageError(f"{expected}, got {len(rows):,}")
        lines: list[bytes | memoryview] = []
        for number, row in zip(due, rows, strict=False):
            texts = [row] if isinstance(row, str) else row
            wrong = [row]
            if isinstance(texts, list | tuple):
                wrong = [text for text in texts if not isinstance(text, str)]
            if wrong:
                raise UsageError(
                    f"write(): the texts of example {number:,} have the type "
                    f"{type(wrong[0]).__name__}, expected a list of strings. If the image has no "
                    "text, write an empty list."
                )
            try:
                line = text_rows.render(self.column.name, texts)
            except ValueError as error:
                raise UsageError(f"write(): example {number:,}: {error}") from None
            if len(line) > column.MOST_ROW_BYTES:
                raise UsageError(
                    f"write(): the texts of example {number:,} have {len(line):,} bytes, but a row "
                    f"has at most {column.MOST_ROW_BYTES:,}"
                )
            lines.append(line)
        return lines

    def _values(self, rows: Any, due: Sequence[int]) -> list[bytes | memoryview]:
        """Returns the rows of the examples `due`, after checking their shape, type and values."""
        count = len(due)
        made = self.column
        try:
            values = np.asarray(rows) if isinstance(rows, np.ndarray) else array_over(rows)
        except (TypeError, ValueError, BufferError, RuntimeError) as error:
            raise UsageError(
                f"write(): not a NumPy array or a tensor in CPU memory ({error}). For a list, "
                f"write numpy.asarray(rows, {made.dtype!r})."
            ) from error
        given = str(getattr(rows, "dtype", values.dtype))
        if values.dtype.name == "bfloat16":
            values = values.view(np.uint16)
        fits = values.dtype == made.descr and values.shape[1:] == made.shape
        fits &= "bfloat16" not in given or made.dtype == "bfloat16"
        if not fits or len(values) not in (count, self._batch_size):
            shape = [count, *made.shape]
            raise UsageError(
                f"write(): expected {made.dtype} {shape}, got {given} {list(values.shape)}"
            )
        values = np.ascontiguousarray(values[:count])
        if self._finite and not np.isfinite(numbers_of(values, made)).all():
            raise UsageError(
                "write(): a value is infinite or not a number. If this is intended, create the "
                "writer with finite=False."
            )
        return [row.data for row in values.reshape(count, -1).view(np.uint8)]


def _new_column(
    name: str, dtype: str, shape: Sequence[int], about: Any, view: str, feed: Feed
) -> Column:
    """Returns the settings of a column; raises UsageError if one of them is invalid."""
    for what, text in (("name", name), ("dtype", dtype)):
        if not isinstance(text, str):
            raise UsageError(f"column {name!r}: {what}={text!r}: expected a string")
    try:
        row_shape = tuple(map(operator.index, shape))
    except TypeError:
        raise UsageError(
            f"column {name!r}: shape={shape!r}: expected a list of numbers, such as (4, 32, 32)"
        ) from None
    try:
        about = strict_json.loads(strict_json.dumps(about))
    except (ValueError, TypeError):
        raise UsageError(
            f"column {name!r}: about={about!r}: expected dicts, lists, strings and finite "
            "numbers, which JSON can hold"
        ) from None
    made_from = column.OF_CLASS if _is_of_class(feed) else column.OF_IMAGE
    version = column.version_of(dtype)
    try:
        made = Column(name, dtype, row_shape, about, view, made_from, column_version=version)
        column.require_new_name(name)
        column.loads(made.dumps(), "", name)
    except (ValueError, TypeError, DataDamagedError) as error:
        raise UsageError(f"column {name!r}: {error}") from None
    return made


def _view_of(feed: Feed) -> str:
    """Returns the view for which rows are valid that are computed from these batches."""
    views = {rows.column.view for rows in feed.columns.values()}
    if "images" in feed.config.fields:
        views.add(str(feed.config.view(feed.records.manifest.edition)))
    return " and ".join(sorted(views - {column.ANY_VIEW})) or column.ANY_VIEW


def _is_of_class(feed: Feed) -> bool:
    """Returns whether rows that are computed from these batches may depend on the class."""
    if not {"class_index", "key"}.isdisjoint(feed.config.fields):
        return True
    return any(rows.column.made_from == column.OF_CLASS for rows in feed.columns.values())
