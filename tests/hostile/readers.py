"""Reads a data set as a trainer does, as a command with an exit code."""

from __future__ import annotations

import sys
from typing import Any

from imagenet_prep.core import program
from imagenet_prep.core.world import World
from imagenet_prep.read import make_dataset, reader
from imagenet_prep.read.choice import Choice
from imagenet_prep.read.config import ReadConfig
from imagenet_prep.read.feed import Feed
from imagenet_prep.read.order import Order

READ = "tests.hostile.readers:read"


def read() -> None:
    """Reads an epoch of a folder's or an address's train split; never returns."""
    program.finish(lambda: _read(sys.argv[1]))


def _read(place: str) -> int:
    """Does what make_dataset does, but for the decoding, which takes seconds to import."""
    config = ReadConfig(place, "train", 2)
    records = reader.open_records(config)
    records.placement.check_ranks(World(), place)
    window = 16 if "://" in place else 0
    order = Order(records.examples_per_shard, 0, window, records.placement)
    feed = Feed(records, order, World(), config, range(len(records.wnids)))
    print(sum(len(batch.encoded) for batch in feed.batches(0, 0)))
    feed.close()
    return 0


def read_keys() -> None:
    """Chooses the examples of a list of keys, as a trainer does; never returns."""
    program.finish(lambda: _read_keys(*sys.argv[1:3]))


def _read_keys(place: str, keys: str) -> int:
    config = ReadConfig(place, "train", 2, keys=keys)
    records = reader.open_records(config)
    choice = Choice(config, records.wnids)
    print(len(choice.numbers(records)))
    return 0


def train() -> None:
    """Trains for some epochs by NumPy, with a folder for its log; never returns."""
    program.finish(lambda: _train(*sys.argv[1:4]))


def _train(data: str, log_dir: str, epochs: str) -> int:
    """Does what `train` does, but for the framework, which takes seconds to import."""
    from imagenet_prep.trainer import loop
    from imagenet_prep.trainer.config import Config
    from tests.kit.numpy_learner import NumpyLearner

    sizes: Any = {"model": "tiny", "image_size": 16, "batch_size": 8, "lr": 0.05}
    how: Any = {"framework": "mxnet", "backend": "native", "num_epochs": float(epochs)}
    config = Config(data_dir=data, log_dir=log_dir, checkpoint_every=4, **sizes, **how)
    loop.connect = NumpyLearner  # type: ignore[assignment]

    def open_reader(split: str, training: bool, world: World) -> reader.Reader:
        more: Any = {"training": training, "world": world, "framework": "numpy"}
        return make_dataset(data, split, 8, 16, backend="native", num_threads=1, **more)

    loop.train(config, open_reader)
    return 0
