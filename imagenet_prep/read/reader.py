"""`Reader` yields the batches of one rank, and can resume from a saved state."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Generic, cast

from imagenet_prep.core.address import absolute
from imagenet_prep.core.canonical import Json
from imagenet_prep.core.errors import UsageError
from imagenet_prep.core.world import require_same_ranks
from imagenet_prep.dataset.class_list import ClassList
from imagenet_prep.dataset.example import ImageExample
from imagenet_prep.dataset.manifest import Manifest
from imagenet_prep.read.augment import Colours
from imagenet_prep.read.backend import Backend, open_backend
from imagenet_prep.read.batch import Array, Batch
from imagenet_prep.read.choice import Finder
from imagenet_prep.read.config import ReadConfig
from imagenet_prep.read.diagnosis import Diagnosis
from imagenet_prep.read.feed import EncodedBatch, Feed
from imagenet_prep.read.frameworks import CONVERTERS
from imagenet_prep.read.opening import open_feed
from imagenet_prep.read.order import Position, Steps, StepSampler, step_sampler
from imagenet_prep.read.receipt import STATE_VERSION, packed


class Reader(Generic[Array]):
    """Reads the batches of one rank; created by `make_dataset`.

    In training, each `for` loop over a reader yields the remaining batches of the current epoch,
    and the next loop yields the next epoch. In evaluation, each loop yields all batches, even if
    the loop before it ended early; only the first loop after `restore` continues from the state.
    Type checkers know the batches of `Reader[numpy.ndarray]` as `Batch[numpy.ndarray]`.

    Attributes:
      epoch: epoch of the next batch, from 0.
      choice: the filters as JSON, with lists as digests, and a digest of the chosen example
        numbers; {} if all examples are read.

    Example:
      >>> from imagenet_prep.read import make_dataset
      >>> train = make_dataset("/data/imagenet-480", "train", batch_size=8, backend="native")
      >>> batch = next(iter(train))
      >>> state = train.state()  # JSON, for a checkpoint
      >>> again = make_dataset("/data/imagenet-480", "train", batch_size=8, backend="native")
      >>> again.restore(state)
      >>> train.steps_per_epoch - again.steps_left
      1
      >>> example = train.example(0)  # the stored image, not decoded
      >>> train.find(example.filename)
      0
    """

    # Lightning takes an object with an attribute `sampler` for a DataLoader, and asks for this.
    batch_sampler = None

    def __init__(self, feed: Feed, choice: Json) -> None:
        self._feed = feed
        self.choice = choice
        self.epoch = 0
        self._examples_read = 0
        self._is_restored = False  # until the first loop after `restore`
        self._process = os.getpid()

    @property
    def num_classes(self) -> int:
        """The number of classes; class indices are from 0 to `num_classes` - 1."""
        return len(self.class_numbers)

    @property
    def class_numbers(self) -> Sequence[int]:
        """Maps a class index to the number of the class in the class list; see `remap`."""
        return self._feed.class_numbers

    @property
    def present(self) -> tuple[int, ...]:
        """The sorted class indices that occur in the split."""
        present = self.manifest.present(self._feed.records.split, self._feed.records.wnids)
        return tuple(n for n, number in enumerate(self.class_numbers) if number in present)

    @property
    def classes(self) -> tuple[str, ...]:
        """The WNID of each class index."""
        return tuple(self._feed.records.wnids[number] for number in self.class_numbers)

    @property
    def class_list(self) -> ClassList:
        """The class of each class index: its WNID and its words."""
        listed = self._feed.records.dataset.classes
        return ClassList(self.classes, tuple(listed.words[n] for n in self.class_numbers))

    @property
    def normalisation(self) -> tuple[Colours, Colours]:
        """Mean and standard deviation of R, G, B in [0, 255] for normalised images."""
        constants = self._feed.config.constants
        return constants.mean, constants.std

    @property
    def manifest(self) -> Manifest:
        """The manifest of the dataset."""
        return self._feed.records.manifest

    @property
    def decoder(self) -> dict[str, str]:
        """The decoding backend and its device."""
        return {"backend": self._feed.config.backend, "device": self._feed.config.device}

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits of the dataset."""
        return tuple(self._feed.records.manifest.splits)

    @property
    def num_examples(self) -> int:
        """The number of chosen examples per epoch, over all ranks."""
        return self._feed.order.num_examples

    @property
    def steps_per_epoch(self) -> int:
        """The number of batches per complete epoch, which is the same on every rank."""
        return self._feed.steps(0).count

    @property
    def steps_left(self) -> int:
        """The number of remaining batches of the current epoch."""
        return self._feed.steps(self._examples_read).count

    @property
    def dropped_per_epoch(self) -> int:
        """The number of examples that training drops per epoch; each epoch drops different ones."""
        return self._feed.steps(0).dropped

    @property
    def skipped(self) -> list[str]:
        """One message per record that this rank has skipped."""
        return [reason for _, reason in sorted(self._feed.skipped.items())]

    def __len__(self) -> int:
        return self.steps_per_epoch

    def __iter__(self) -> Iterator[Batch[Array]]:
        self._own()
        self._examples_read = self._loop_start
        self._is_restored = False
        steps = self.steps_left
        for read, batch in self._batches(self.epoch, self._examples_read, steps):
            self._examples_read = read
            steps -= 1
            if not steps:
                # Do this before the yield, since a loop that counts steps ends after this batch.
                self._begin_epoch()
            yield batch

    @property
    def _loop_start(self) -> int:
        """The number of the epoch's examples before the first batch of the next `for` loop."""
        continues = self._feed.config.is_training or self._is_restored
        return self._examples_read if continues else 0

    def _batches(self, epoch: int, start: int, count: int) -> Iterator[tuple[int, Batch[Array]]]:
        """Yields `count` pairs: the number of the epoch's examples read so far, and a batch."""
        require_same_ranks(self._feed.config.rank)
        while count:
            steps = self._feed.steps(start)
            diagnosis = Diagnosis(self._feed, self._backend.decode, epoch, start, count)
            batches = self._backend.batches(diagnosis.batches(), count)
            for step in range(1, count + 1):
                try:
                    images = next(batches)
                except Exception as error:  # noqa: BLE001 - `explain` may raise it again
                    diagnosis.explain(error)
                    break  # the images that cannot be decoded are now masked: repeat the step
                encoded = diagnosis.decoded()
                count -= 1
                start = steps.after(step)
                yield start, self._fields(images, encoded)

    def _fields(self, images: Any, encoded: EncodedBatch) -> Batch[Array]:
        config, bits = self._feed.config, self._feed.bfloat16
        convert = CONVERTERS[config.array_framework]
        arrays = {"class_index": encoded.class_index, "mask": encoded.mask, **encoded.details}
        fields = {
            name: images if name == "images" else convert(arrays[name], name in bits)
            for name in config.fields
        }
        return cast("Batch[Array]", fields)

    def _begin_epoch(self) -> None:
        self.epoch += 1
        self._examples_read = 0

    def encoded_batches(self) -> Iterator[EncodedBatch]:
        """Yields the current epoch's undecoded batches for `bench-read`. Not a stable API."""
        return self._feed.batches(self.epoch, 0)

    def state(self) -> dict[str, Any]:
        """Returns the reader's position as JSON, the same on every rank."""
        edition = self.manifest.edition
        return {
            "version": STATE_VERSION,
            "dataset": self.manifest.digest,
            **({"edition": edition} if edition else {}),
            "split": self._feed.records.split,
            "seed": self._feed.config.seed,
            "window": self._feed.order.window,
            "nodes": self._feed.order.placement.nodes,
            "copies": self._feed.order.placement.copies,
            "epoch": self.epoch,
            "examples_read": self._examples_read,
            **({"choice": self.choice} if self.choice else {}),
        }

    def _next_state(self) -> dict[str, Any]:
        """Returns the state before the first batch of the next `for` loop."""
        return self.state() | {"examples_read": self._loop_start}

    def receipt(self) -> dict[str, Any]:
        """Returns, as JSON, the state and all settings that determine the images of each step.

        docs/train.md explains how to log it for `imagenet-prep show RUN`.
        """
        config, chosen = self._feed.config, self._feed.order.chosen
        return {
            **self.state(),
            "data_dir": absolute(config.where),
            "ranks": config.rank.size,
            "batch_size": config.batch_size,
            "training": config.is_training,
            **({} if chosen is None else {"chosen": packed(chosen, len(self._feed.records))}),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continues from `state`; the number of ranks and the batch size may have changed.

        The dataset may be at a different location: the reader continues with the shuffle window of
        the state. If less than one step of the epoch remains, the next epoch starts. A partitioned
        dataset must have the same number of nodes as before.

        Raises:
          UsageError: dataset, split, seed, partition or choice differ from the state.
        """
        self.epoch, self._examples_read, window = self._position(state)
        self._feed.use_window(window)
        self._is_restored = True
        if not self.steps_left:
            self._begin_epoch()

    state_dict, load_state_dict = state, restore  # the names that PyTorch's loaders use

    def _position(self, state: dict[str, Any]) -> Position:
        """Returns the position of a valid state."""
        own = self.state()
        if state.get("version") != STATE_VERSION:
            raise UsageError(
                f"the state has version {state.get('version')!r}, but this reader supports "
                f"{STATE_VERSION}. The version of imagenet-prep that created the state reads "
                "examples in a different order. Use that version, or start from epoch 0."
            )
        for name in ("dataset", "split", "seed", "nodes", "copies", "choice"):
            if state.get(name) != own.get(name):
                raise UsageError(
                    f"the state has {name} {state.get(name)!r}, but this reader has "
                    f"{own.get(name)!r}. Use the same dataset and settings, or start from epoch 0."
                )
        values = tuple(state.get(name) for name in Position._fields)
        position = self._as_position(values)
        if position is None:
            epoch, read, window = values
            raise UsageError(
                f"the state is damaged: epoch {epoch!r}, examples_read {read!r} of "
                f"{self.num_examples:,}, window {window!r}. Use a different state, or start from "
                "epoch 0."
            )
        return position

    def _as_position(self, values: Any) -> Position | None:
        """Returns the position with these values, or None if this reader has no such position."""
        if not isinstance(values, tuple) or len(values) != len(Position._fields):
            return None
        if any(type(value) is not int or value < 0 for value in values):
            return None
        position = Position(*values)
        return position if position.examples_read <= self.num_examples else None

    def sampler(self) -> StepSampler:
        """Returns a sampler for a PyTorch DataLoader; the loader's workers make the batches.

            sampler = reader.sampler()
            loader = DataLoader(reader, batch_size=None, sampler=sampler, num_workers=4)

        The sampler starts where the next `for` loop over this reader would start. It does not
        change the reader's position.

        Raises:
          UsageError: the backend is not "native", or `out` is set.
        """
        config = self._feed.config
        if config.backend != "native":
            raise UsageError(
                f"backend {config.backend!r} cannot run in the workers of a DataLoader: choose "
                "backend='native'"
            )
        if config.out is not None:
            raise UsageError(
                "out= provides memory of this process, but a DataLoader's workers are separate "
                "processes: remove out=, and pass pin_memory=True to the DataLoader"
            )
        return step_sampler()(self._steps, self._position, self._next_state())

    def _steps(self, start: int) -> Steps:
        require_same_ranks(self._feed.config.rank)
        return self._feed.steps(start)

    def __getitem__(self, position: Position) -> Batch[Array]:
        """Returns the batch at a position from `sampler`; does not change the reader's position."""
        found = self._as_position(position)
        if found is None or not self._feed.steps(found.examples_read).count:
            raise UsageError(
                f"reader[{position!r}]: a DataLoader over a reader needs batch_size=None and "
                "sampler=reader.sampler(), which yields positions (EPOCH, EXAMPLES READ, SHUFFLE "
                "WINDOW). For a single example, call reader.example(NUMBER)."
            )
        self._own()
        own_window = self._feed.order.window
        self._feed.use_window(found.window)
        try:
            ((_, batch),) = self._batches(found.epoch, found.examples_read, 1)
        finally:
            self._feed.use_window(own_window)
        return batch

    def _own(self) -> None:
        """Reopens the reader if this process was forked from the one that opened it."""
        if self._process != os.getpid():
            # In a forked process, locks that the parent's threads held are never released. Closing
            # the parent's files needs such locks, so they stay open.
            opened = vars(copy.copy(self))
            of_parent = dict(vars(self))
            self.__dict__.clear()
            self.__dict__.update(opened, _of_parent=of_parent)

    def __reduce__(self) -> tuple[Any, ...]:
        """Makes a copied or unpickled reader open the dataset again, with the same next loop."""
        config = replace(self._feed.config, num_threads=self._feed.config.num_threads or 1)
        return open_reader, (config,), self._next_state()

    __setstate__ = restore

    def example(self, number: int) -> ImageExample:
        """Returns a verified example: its encoded image, size, class and boxes.

        `number` counts all examples of the split from 0 in record order, whether chosen or not.

        Raises:
          IndexError: `number` is not below the number of examples.
          DataDamagedError: the record is damaged; the message names shard, record and offset.
        """
        if not 0 <= number < len(self._feed.records):
            raise IndexError(f"example {number} of {len(self._feed.records):,}")
        self._own()
        return self._feed.records.read(number)

    def find(self, key: str) -> int:
        """Returns the number of the example with a key, which is CLASS/NAME or NAME.

        The first call reads the split's sample tables, which takes about 1 µs per example. For a
        remote dataset, it fetches these tables. If a dataset has no tables, it reads every record.

        Raises:
          KeyError: no example has this key.
          DataDamagedError: a table is damaged; the message names the table and line.
          ImagenetPrepError: a table cannot be read or fetched.
        """
        self._own()
        return self._finder.find(key)

    @cached_property
    def _finder(self) -> Finder:
        return Finder(self._feed.records)

    @cached_property
    def _backend(self) -> Backend:
        """The decoding backend; its framework is imported only here, for the first batch."""
        split = self._feed.records.split
        return open_backend(self._feed.config, self.manifest.splits[split])

    def close(self) -> None:
        """Closes the shards opened by this process."""
        if self._process == os.getpid():
            self._feed.close()


def open_reader(config: ReadConfig) -> Reader:
    """Opens the dataset and returns a reader; see `make_dataset`."""
    return Reader(*open_feed(config))
