"""`make_dataset` and the `Reader` that it returns: batches, and a state to resume from."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from imagenet_prep.core.errors import UsageError
from imagenet_prep.core.world import World
from imagenet_prep.dataset.example import ImageExample
from imagenet_prep.dataset.manifest import Manifest
from imagenet_prep.dataset.placement import Placement
from imagenet_prep.read.augment import RECIPES
from imagenet_prep.read.config import ReadConfig
from imagenet_prep.read.decoder import Decoder, open_decoder
from imagenet_prep.read.diagnosis import Diagnosis
from imagenet_prep.read.feed import EncodedBatch, Feed
from imagenet_prep.read.order import Order
from imagenet_prep.read.records import Records

_STATE_VERSION = 1
# Default for remote sets: shards whose examples are shuffled with each other.
_REMOTE_WINDOW = 16


class Reader:
    """The batches of one rank. Iterating yields the rest of the current epoch, then the next.

    A batch is a dict of `images` [batch, height, width, 3] (or [batch, 3, height, width]),
    `class_index` [batch] int32 and `mask` [batch] bool: False where evaluation pads its last
    step, and where a damaged record was skipped.

    Attributes:
      epoch: of the next batch, from 0.
      num_classes: class indices are smaller than this.
    """

    def __init__(self, feed: Feed, decoder: Decoder, convert: Callable[[Any], Any]) -> None:
        """Use make_dataset."""
        self._feed = feed
        self._decoder = decoder
        self._convert = convert
        self.epoch = 0
        self.num_classes = len(feed.records.wnids)
        self._examples_read = 0

    @property
    def manifest(self) -> Manifest:
        """The manifest of the data set."""
        return self._feed.records.manifest

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits of the data set."""
        return tuple(self._feed.records.manifest.splits)

    @property
    def num_examples(self) -> int:
        """Examples of the split, over all ranks."""
        return len(self._feed.records)

    @property
    def steps_per_epoch(self) -> int:
        """Batches of a whole epoch, the same on every rank."""
        return self._feed.steps(0).count

    @property
    def steps_left(self) -> int:
        """Batches that are left of this epoch."""
        return self._feed.steps(self._examples_read).count

    @property
    def dropped_per_epoch(self) -> int:
        """Examples that fill no training step, others in each epoch; 0 in evaluation."""
        return self._feed.steps(0).dropped

    @property
    def skipped(self) -> list[str]:
        """One sentence for each record that this rank has skipped."""
        return [reason for _, reason in sorted(self._feed.skipped.items())]

    def __len__(self) -> int:
        return self.steps_per_epoch

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yields the rest of the current epoch.

        Raises:
          DataDamagedError: a record or an image is damaged; shard, record and offset are named.
        """
        left = self.steps_left
        if not left:
            # The state was restored where less than one step of this many ranks is left.
            self._begin_epoch()
        while left:
            steps = self._feed.steps(self._examples_read)
            diagnosis = Diagnosis(self._feed, self.epoch, self._examples_read)
            batches = self._decoder.batches(diagnosis.batches, steps.count)
            for step in range(1, steps.count + 1):
                try:
                    batch = next(batches)
                except Exception as error:  # noqa: BLE001 - it is raised again, explained
                    # It returns if it has masked images that do not decode. Then the epoch
                    # continues with the step that failed.
                    diagnosis.explain(error, step - 1)
                    break
                left -= 1
                self._examples_read = steps.after(step)
                if not left:
                    # Before the last batch is yielded: a trainer that counts its steps never asks
                    # for another one.
                    self._begin_epoch()
                yield {name: self._convert(value) for name, value in batch.items()}

    def _begin_epoch(self) -> None:
        self.epoch += 1
        self._examples_read = 0

    def encoded_batches(self) -> Iterator[EncodedBatch]:
        """Yields an epoch's batches before they are decoded; the position of reading stays."""
        return self._feed.batches(self.epoch, 0)

    def state(self) -> dict[str, Any]:
        """Returns the position of reading as JSON, the same on every rank."""
        edition = self.manifest.edition
        return {
            "version": _STATE_VERSION,
            "dataset": self.manifest.digest,
            **({"edition": edition} if edition else {}),
            "split": self._feed.records.split,
            "seed": self._feed.seed,
            "window": self._feed.order.window,
            "nodes": self._feed.order.placement.nodes,
            "copies": self._feed.order.placement.copies,
            "epoch": self.epoch,
            "examples_read": self._examples_read,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continues at the position of `state`, with any number of ranks and any batch size.

        If nodes hold parts of the set, their number must stay the same.

        Raises:
          UsageError: the state is of another data set, split, seed, window or partition.
        """
        own = self.state()
        for name in ("version", "dataset", "split", "seed", "window", "nodes", "copies"):
            # Older states of sets that all nodes hold whole lack these two.
            if state.get(name, 1 if name in ("nodes", "copies") else None) != own[name]:
                raise UsageError(
                    f"the state has {name} {state.get(name)!r}, this reader {own[name]!r}: the "
                    "order would be another one. Use the same data set and settings, or start "
                    "from epoch 0."
                )
        epoch: Any = state.get("epoch")
        read: Any = state.get("examples_read")
        counts = isinstance(epoch, int) and isinstance(read, int)
        if not (counts and epoch >= 0 and 0 <= read <= self.num_examples):
            raise UsageError(
                f"the state is damaged: epoch {epoch!r}, examples_read {read!r} of "
                f"{self.num_examples:,}. Use another one, or start from epoch 0."
            )
        self.epoch, self._examples_read = epoch, read

    # Under the names that PyTorch's loaders ask for.
    state_dict, load_state_dict = state, restore

    def example(self, number: int) -> ImageExample:
        """Returns an example as it is stored, proven: its encoded image, size, class and boxes.

        Args:
          number: counted through the shards of the split in record order; the order in which an
            epoch shows examples is another one.

        Raises:
          IndexError: there is no such number.
          DataDamagedError: shard, record and offset are named.
        """
        if not 0 <= number < self.num_examples:
            raise IndexError(f"example {number} of {self.num_examples:,}")
        return self._feed.records.read(number)

    def find(self, key: str) -> int:
        """Returns the number of the example with a key: CLASS/NAME, or NAME alone.

        The first call reads the name of every example of the split: 20 µs each.

        Raises:
          KeyError: there is none.
          DataDamagedError: a record is damaged.
        """
        return self._numbers[key]

    @cached_property
    def _numbers(self) -> dict[str, int]:
        """The numbers of the examples by their keys."""
        found = {}
        for number in range(self.num_examples):
            example = self._feed.records.read(number)
            found[f"{example.wnid}/{example.filename}"] = number
            found.setdefault(example.filename, number)
        return found

    def close(self) -> None:
        """Closes the shards."""
        self._feed.close()


def make_dataset(
    data_dir: str | os.PathLike[str],
    split: str,
    batch_size: int,
    image_size: int = 224,
    **options: Any,
) -> Reader:
    """Returns the batches of one rank of a prepared data set.

    Labels, counts and shards come from the manifest. Every example comes exactly once an
    epoch over all ranks; training leaves out what does not fill a step of all ranks
    (`Reader.dropped_per_epoch`), evaluation pads its last step and masks the padding.

    Args:
      data_dir: folder of the data set, or its s3:// or http(s):// address.
      split: "train" or "validation".
      batch_size: examples a step and rank.
      image_size: height and width of the images in pixels.
      options: the other fields of `ReadConfig`, by name.

    Raises:
      UsageError: no manifest, an unknown choice, a backend that is not installed, or a part of
        a partitioned set that other hosts than its own are to read.
      DataDamagedError: shards are missing or cut.
      StoreError: the system cannot read them, or the server refuses.
      IncompleteError: the server fails again and again, or the disk is full.
    """
    return open_reader(ReadConfig(os.fspath(data_dir), split, batch_size, image_size, **options))


def open_reader(config: ReadConfig) -> Reader:
    """Returns what `make_dataset` returns, for a whole configuration.

    Raises:
      UsageError, DataDamagedError: as for `make_dataset`.
    """
    world = config.world or World.from_environment()
    records = _open_records(config)
    _check_world(world, records.placement, config.data_dir)
    window = config.shuffle_window
    if window is None:
        window = _REMOTE_WINDOW if config.is_remote else 0
    order_seed = config.seed if config.is_training else None
    feed = Feed(
        records=records,
        order=Order(records.examples_per_shard, order_seed, window, records.placement),
        world=world,
        batch_size=config.batch_size,
        training=config.is_training,
        recipe=RECIPES[config.recipe],
        colour=config.is_coloured,
        seed=config.seed,
        skip_bad=config.on_bad_record == "skip",
    )
    if config.is_training and not feed.steps(0).count:
        raise UsageError(
            f"{config.split} has {len(records):,} examples, fewer than one step of {world.size} "
            f"ranks with {config.batch_size} each. Choose a smaller batch size."
        )
    decoder, convert = open_decoder(config, world, records.manifest.splits[config.split])
    return Reader(feed, decoder, convert)


def _open_records(config: ReadConfig) -> Records:
    """Returns the records of the split; those of a remote set come through the node's cache."""
    if not config.is_remote:
        return Records(Path(config.data_dir).expanduser(), config.split)
    from imagenet_prep.read.cache import DEFAULT_FOLDER, FOLDER_VARIABLE, NodeCache

    folder = config.cache_dir or os.environ.get(FOLDER_VARIABLE) or DEFAULT_FOLDER
    limit = None if config.cache_gb is None else round(config.cache_gb * 1e9)
    cache = NodeCache(config.data_dir, Path(folder).expanduser(), limit)
    return Records(cache.root, config.split, cache)


def _check_world(world: World, placement: Placement, data_dir: str) -> None:
    """Raises UsageError if these ranks would not read each part of the set exactly once."""
    if placement.nodes == 1:
        return
    where = f"{data_dir} is {placement}"
    if world.size != placement.nodes * world.local_size:
        raise UsageError(
            f"{where}: {placement.nodes} hosts with equally many ranks must read it together, but "
            f"there are {world.size} ranks, {world.local_size} on this host. Start them on all "
            "hosts, or replicate to the hosts that are there."
        )
    if world.cross_rank != placement.node:
        raise UsageError(
            f"{where}, but this host is number {world.cross_rank} among those that train. Start "
            "them in the order of the hosts file that replicate was given."
        )
