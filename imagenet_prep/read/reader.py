"""`Reader` yields the batches of one rank, and can resume from a saved state.

`open_reader` opens a dataset. `open_records` opens the records of a split, and `open_feed` creates
the `Choice`, `Order` and `Feed` of a reader.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import hashlib
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, cast

import numpy as np

from imagenet_prep.core import strict_json
from imagenet_prep.core.address import absolute
from imagenet_prep.core.errors import UsageError
from imagenet_prep.core.strict_json import Json
from imagenet_prep.core.terminal import counted
from imagenet_prep.core.world import World, require_same_ranks, this_process
from imagenet_prep.dataset import schema
from imagenet_prep.dataset.class_list import ClassList
from imagenet_prep.dataset.example import ImageExample
from imagenet_prep.dataset.manifest import Manifest
from imagenet_prep.dataset.schema import OBJECTNET
from imagenet_prep.read import source
from imagenet_prep.read.backend import (
    Backend,
    choose_backend,
    open_backend,
    refuse_contradictions,
    say_once,
)
from imagenet_prep.read.batch import Array, Batch
from imagenet_prep.read.config import ReadConfig
from imagenet_prep.read.decode_steps import (
    as_batch,
    decoded_steps,
    require_last_loop,
    require_same_process,
)
from imagenet_prep.read.feed import EncodedBatch, Feed
from imagenet_prep.read.order import (
    Appearances,
    BatchShape,
    DrawnSteps,
    Order,
    Position,
    Steps,
    StepSampler,
    epoch_number,
    step_sampler,
)
from imagenet_prep.read.receipt import STATE_VERSION, packed, require_state
from imagenet_prep.read.recipes import RESNET, RESNET_1, Colours
from imagenet_prep.read.records import Records
from imagenet_prep.read.selection import Choice, Finder, class_indices, expected_by_class
from imagenet_prep.read.shared_batches import worker_pool
from imagenet_prep.read.source import ExampleSource
from imagenet_prep.storage.dataset_store import Dataset, open_dataset

if TYPE_CHECKING:
    import numpy.typing as npt


def open_feed(config: ReadConfig) -> tuple[Feed, Json]:
    """Returns the `Feed` of a reader with these settings, and the content of `Reader.choice`."""
    world = config.world or this_process()
    config = replace(config, world=world)
    config = replace(config, backend=choose_backend(config))
    refuse_contradictions(config)
    dataset = open_dataset(config.location, parts=True)
    records = open_records(dataset, config.split, config.cache_dir, config.cache_gb)
    if config.is_training and records.manifest.edition == OBJECTNET:
        raise UsageError(
            f"{config.location}: {OBJECTNET}'s licence allows only evaluation, not training or "
            "tuning. Pass training=False."
        )
    if "images" in config.fields:
        if config.crops.square:
            _tell_changed(config, records)
        _tell_crop(config, records)
    records.placement.require_whole_ranks(world, config.location)
    choice = Choice(config, records.dataset.classes)
    filters = choice.filters()
    chosen = None
    if filters:
        (chosen,) = choice.numbers([records])
        # With this digest, a rank with a different choice rejects the state of other ranks.
        filters["numbers"] = hashlib.sha256(chosen.tobytes()).hexdigest()
    seed = config.seed if config.is_training else None
    if records.placement.nodes > 1 and (config.weights is not None or config.sizes):
        raise UsageError(
            f"{config.location}: is one host's part of a partitioned dataset, which supports "
            "neither weights= nor sizes=. Use a complete copy of the dataset"
        )
    appearances = None
    if config.weights is not None:
        appearances = _appearances(config, records, chosen)
    order = Order(
        records.examples_per_shard, seed, config.window, records.placement, chosen, appearances
    )
    feed = Feed(records, order, config, choice.class_numbers)
    if config.is_training and not feed.steps(0, 0).count:
        raise UsageError(
            f"{config.split}: {counted(feed.order.num_examples, 'example')}, not enough for one "
            f"step of {counted(world.size, 'rank')} with batch size {config.batch_size}. Choose a "
            "smaller batch size."
        )
    return feed, filters


def _appearances(
    config: ReadConfig, records: Records, chosen: npt.NDArray[np.int64] | None
) -> Appearances:
    """Returns how often each chosen example appears in an epoch."""
    assert config.weights is not None
    indices = class_indices(records)
    if chosen is not None:
        indices = indices[chosen]
    by_class = expected_by_class(config.weights, records.dataset.classes, indices)
    return Appearances(tuple(by_class), indices)


def _tell_changed(config: ReadConfig, records: Records) -> None:
    """Warns if `prepare` changed images; raises UsageError if `config.originals` forbids it."""
    manifest = records.manifest
    split = manifest.splits[records.split]
    short_side = manifest.settings.short_side(records.split)
    advice = "Prepare it with --keep-original, or pass originals=False to accept these images."
    if config.originals is None and short_side is not None and short_side <= max(config.size):
        raise UsageError(
            f"{config.location}: its images were downscaled to a short side of {short_side}, so "
            f"crops of {config.image_size} pixels differ from crops of the originals. {advice}"
        )
    repaired = sum(manifest.repaired.values())
    if not split.resized and not repaired:
        return
    changed = (
        f"{config.location}: prepare downscaled {split.resized:,} of the "
        f"{counted(split.examples, 'image')} of {records.split}, and repaired "
        f"{counted(repaired, 'image')} of the dataset ({', '.join(manifest.repaired) or 'none'})"
    )
    if config.originals:
        raise UsageError(f"{changed}, but originals=True accepts no changed image. {advice}")
    if config.rank.rank == 0:
        say_once(f"{changed}. Their crops may differ from crops of the originals.")


def _tell_crop(config: ReadConfig, records: Records) -> None:
    """Logs the evaluation crop if the dataset's edition needs a different one than the recipe."""
    edition = records.manifest.edition
    crop = config.recipe_for(edition).share
    if config.is_training or config.rank.rank != 0 or crop == config.crops.share:
        return
    say_once(
        f"{config.location}: crops are {crop:.1%} of the shorter side, as {edition} needs, instead "
        f"of {config.crops.share:.1%}"
    )


def open_records(
    dataset: Dataset,
    split: str,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_gb: float | None = None,
) -> Records:
    """Returns the records of a split; a remote dataset is read through the node's cache."""
    if dataset.store.as_folder is not None:
        return Records(dataset, split)
    from imagenet_prep.read.cache import NodeCache

    folder = Path(cache_dir).expanduser() if cache_dir else schema.cache_folder()
    limit = None if cache_gb is None else round(cache_gb * 1e9)
    return Records(dataset, split, NodeCache(dataset, folder, limit))


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
        self._loop: object = None  # the last one that began
        self._process = os.getpid()

    @property
    def feed(self) -> Feed:
        """The feed of this reader, for `make_mix`."""
        return self._feed

    @property
    def is_at_start(self) -> bool:
        """Whether the next batch is the first one of its epoch."""
        return self._examples_read == 0

    @property
    def next_step_examples(self) -> int:
        """The number of examples of the next step, over all ranks."""
        steps = self._feed.steps(self.epoch, self._examples_read)
        return steps.shape_of(0).batch_size * self._feed.config.rank.size

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
    def classes_digest(self) -> str:
        """The sha256 of the dataset's class list, which may have more classes than are read."""
        return self._feed.records.dataset.classes.digest

    @property
    def normalisation(self) -> tuple[Colours, Colours]:
        """Mean and standard deviation of R, G, B in [0, 255] for normalised images."""
        crops = self._feed.config.crops
        return crops.mean, crops.std

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
        """The number of batches of the complete current epoch, the same on every rank."""
        return self._feed.steps(self.epoch, 0).count

    @property
    def steps_left(self) -> int:
        """The number of remaining batches of the current epoch."""
        return self._feed.steps(self.epoch, self._examples_read).count

    @property
    def dropped_per_epoch(self) -> int:
        """The number of examples that training drops per epoch; each epoch drops different ones."""
        return self._feed.steps(self.epoch, 0).dropped

    @property
    def skipped(self) -> list[str]:
        """One message per record that this rank has skipped."""
        return [reason for _, reason in sorted(self._feed.skipped.items())]

    def __len__(self) -> int:
        return self.steps_per_epoch

    def __repr__(self) -> str:
        config = self._feed.config
        return (
            f"{type(self).__name__}({config.location!r}, {config.split!r}: "
            f"{counted(self.num_examples, 'example')}, batch_size={config.batch_size}, "
            f"fields={config.fields})"
        )

    def __iter__(self) -> Iterator[Batch[Array]]:
        self._require_no_mix()
        yield from self.loop()

    def _require_no_mix(self) -> None:
        if self._feed.mix is not None:
            raise UsageError(
                "this reader is a part of a mix, which numbers its classes differently. Read the "
                "mix, or make a separate reader with make_dataset."
            )

    def loop(self) -> Iterator[Batch[Array]]:
        """Yields the remaining batches of the epoch; only the mix that has the reader calls it."""
        self._own()
        self._examples_read = self._loop_start
        self._is_restored = False
        self._loop = loop = object()
        process = os.getpid()
        steps = self.steps_left
        for read, batch in self._batches(self.epoch, self._examples_read, steps):
            if self._feed.config.is_training:
                require_last_loop(self._loop, loop)
            self._examples_read = read
            steps -= 1
            if not steps:
                # Do this before the yield, since a loop that counts steps ends after this batch.
                self._begin_epoch()
            yield batch
            require_same_process(process)

    @property
    def _loop_start(self) -> int:
        """The number of the epoch's examples before the first batch of the next `for` loop."""
        continues = self._feed.config.is_training or self._is_restored
        return self._examples_read if continues else 0

    def _batches(self, epoch: int, start: int, count: int) -> Iterator[tuple[int, Batch[Array]]]:
        """Yields `count` pairs: the number of the epoch's examples read so far, and a batch."""
        require_same_ranks(self._feed.config.rank)
        feed = self._feed
        for read, images, encoded in decoded_steps(
            self._backend,
            functools.partial(feed.batches, epoch),
            feed.mask_undecodable,
            functools.partial(feed.steps, epoch),
            start,
            count,
        ):
            yield read, as_batch(images, encoded, feed.config, feed.bfloat16)

    def batch_of(self, number: int, epoch: int, lock: threading.Lock) -> dict[str, Any]:
        """Returns a batch with the example at a place of the choice, for `ExampleSource`."""
        self._require_no_mix()
        self._own()
        chosen = self._feed.order.chosen
        number = number if chosen is None else int(chosen[number])
        size = self._feed.config.schedule.of_epoch(epoch)[0]
        # Columns are read by one thread at a time.
        with lock if self._feed.columns else contextlib.nullcontext():
            encoded = self._feed.read(np.array([number]), epoch, BatchShape(1, size))
        (images,) = self._backend.batches(iter([encoded]), 1)
        batch = as_batch(images, encoded, self._feed.config, self._feed.bfloat16)
        return cast("dict[str, Any]", batch)

    def source(self, fields: Sequence[str] = source.FIELDS, *, epoch: int = 0) -> ExampleSource:
        """Returns the chosen examples by number, for loaders that choose the order themselves.

        Args:
          fields: keys of `Batch`, or "column:NAME". With "images", an example has the reader's
            crops: in training, those of `epoch`.
          epoch: the epoch whose random crops `images` shows.

        Raises:
          UsageError: a field is unknown, or this host has only a part of the dataset.
        """
        source.require_random_access(self, fields)
        config = replace(
            self._feed.config,
            batch_size=1,
            fields=tuple(fields),
            as_tuple=False,
            on_bad_record="raise",
            out=None,
            weights=None,
            world=World(),
            framework=self._feed.config.framework if "images" in fields else "numpy",
        )
        return ExampleSource(open_reader(config), epoch)

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
            "training": self._feed.config.is_training,
            "recipe": self._feed.config.recipe_version,
            "seed": self._feed.config.seed,
            "window": self._feed.order.window,
            "nodes": self._feed.order.placement.nodes,
            "copies": self._feed.order.placement.copies,
            "epoch": self.epoch,
            "examples_read": self._examples_read,
            **({"choice": self.choice} if self.choice else {}),
            **self._drawing(),
        }

    def _drawing(self) -> dict[str, str]:
        """Returns the digests of `weights` and `sizes`; batch sizes may change with the ranks."""
        digests = {}
        appearances = self._feed.order.appearances
        if appearances is not None:
            digests["weights"] = strict_json.digest([*appearances.by_class])
        config = self._feed.config
        if config.sizes:
            shown = [array.size for array, *_ in config.shown]
            pairs = zip(config.sizes, shown, strict=True)
            numbers = [[*sides, size.epoch, float(size.share)] for size, sides in pairs]
            digests["sizes"] = strict_json.digest(numbers)
        return digests

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
            "data_dir": absolute(config.location),
            "ranks": config.rank.size,
            "batch_size": config.batch_size,
            "crops": config.description(),
            **({} if chosen is None else {"chosen": packed(chosen, len(self._feed.records))}),
            **self._drawn(),
        }

    def _drawn(self) -> dict[str, Any]:
        """Returns, as JSON, the settings of `weights` and `sizes` that receipts need."""
        drawn: dict[str, Any] = {}
        appearances = self._feed.order.appearances
        if appearances is not None:
            drawn["appearances"] = [*appearances.by_class]
        schedule = self._feed.config.schedule
        if self._feed.config.sizes:
            drawn["size_epochs"] = [size.epoch for size in schedule.sizes]
            drawn["size_shares"] = [float(size.share) for size in schedule.sizes]
            drawn["batch_sizes"] = [*schedule.batch_sizes]
        return drawn

    def restore(self, state: dict[str, Any]) -> None:
        """Continues from `state`; the number of ranks and the batch size may have changed.

        The dataset may be at a different location: the reader continues with the shuffle window of
        the state. If less than one step of the epoch remains, the next epoch starts. A partitioned
        dataset must have the same number of nodes as before.

        Raises:
          UsageError: dataset, split, `training`, seed, partition or choice differ from the state,
            or the state is of a version whose recipe "resnet" did not antialias.
        """
        self.epoch, self._examples_read, window = self._position(state)
        self._feed.use_window(window)
        self._loop = None  # a running loop would go on at its own position
        self._is_restored = True
        if not self.steps_left:
            self._begin_epoch()

    state_dict, load_state_dict = state, restore  # the names that PyTorch's loaders use

    def set_epoch(self, epoch: int) -> None:
        """Continues at the first batch of `epoch`; does nothing if this is the current epoch.

        Programs that store no state call it, such as the Trainer of transformers.

        Raises:
          UsageError: `epoch` is not an integer from 0.
        """
        number = epoch_number(epoch)
        if number != self.epoch:
            self.epoch = number
            self._examples_read = 0
            self._loop = None

    def _position(self, state: dict[str, Any]) -> Position:
        """Returns the position of a valid state."""
        own = self.state()
        require_state(state)
        if state.get("version") != STATE_VERSION:
            raise UsageError(
                f"the state has version {state.get('version')!r}, but this reader supports "
                f"{STATE_VERSION}. The version of imagenet-prep that created the state reads "
                "examples in a different order. Use that version, or start from epoch 0."
            )
        # States of earlier versions do not tell the mode.
        state = {"training": own["training"], **state}
        names = ("dataset", "split", "training", "seed", "nodes", "copies", "choice")
        for name in (*names, "weights", "sizes"):
            if state.get(name) != own.get(name):
                raise UsageError(
                    f"the state has {name} {state.get(name)!r}, but this reader has "
                    f"{own.get(name)!r}. Use the same dataset and settings, or start from epoch 0."
                )
        # The recipe "resnet" of older versions, whose states have no recipe, is "resnet-1" now.
        self._require_recipe(state.get("recipe", RESNET_1))
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

    def _require_recipe(self, saved: Any) -> None:
        """Raises UsageError if images would change with the recipe of a state."""
        config = self._feed.config
        own = config.recipe_version
        decides = config.is_training and config.antialias is None and "images" in config.fields
        if decides and (saved, own) in ((RESNET, RESNET_1), (RESNET_1, RESNET)):
            raise UsageError(
                f"the state is of a run with recipe {saved!r}, but this reader has {own!r}, which "
                f"filters training images differently. Pass recipe={saved!r} (imagenet-prep train: "
                f"--crops {saved}) to continue with the images of the run, or start from epoch 0."
            )

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

    def _steps(self, epoch: int, start: int) -> Steps | DrawnSteps:
        require_same_ranks(self._feed.config.rank)
        return self._feed.steps(epoch, start)

    def __getitem__(self, position: Position) -> Batch[Array]:
        """Returns the batch at a position from `sampler`; does not change the reader's position."""
        found = self._as_position(position)
        if found is None or not self._feed.steps(found.epoch, found.examples_read).count:
            raise UsageError(
                f"reader[{position!r}]: a DataLoader over a reader needs batch_size=None and "
                "sampler=reader.sampler(), which yields positions (EPOCH, EXAMPLES READ, SHUFFLE "
                "WINDOW). For a single example, call reader.example(NUMBER)."
            )
        self._require_no_mix()
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
        worker_pool()  # also for tensors that a worker makes of stored bytes
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
