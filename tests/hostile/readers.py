"""Reads a dataset like a trainer, as a command with an exit code."""

from __future__ import annotations

import sys
from typing import Any

from imagenet_prep.core import program
from imagenet_prep.core.world import World
from imagenet_prep.read import Reader, make_dataset

READ = "tests.hostile.readers:read"


def read() -> None:
    """Reads an epoch of a folder's or an address's train split; never returns."""
    program.finish(lambda: _read(sys.argv[1]))


def _read(place: str) -> int:
    """Reads all records, and decodes none: frameworks take seconds to import."""
    reader = make_dataset(place, "train", 2, world=World(), backend="native")
    print(sum(len(batch.encoded) for batch in reader.encoded_batches()))
    reader.close()
    return 0


def read_keys() -> None:
    """Chooses the examples of a list of keys, like a trainer; never returns."""
    program.finish(lambda: _read_keys(*sys.argv[1:3]))


def _read_keys(place: str, keys: str) -> int:
    print(make_dataset(place, "train", 1, backend="native", keys=keys).num_examples)
    return 0


def train() -> None:
    """Trains for some epochs by NumPy, with a folder for its log; never returns."""
    program.finish(lambda: _train(*sys.argv[1:4]))


def _train(data: str, log_dir: str, epochs: str) -> int:
    """Does the work of `train` without a framework, which takes seconds to import."""
    from imagenet_prep.trainer import loop
    from imagenet_prep.trainer.config import TrainConfig
    from tests.kit.numpy_learner import NumpyLearner

    sizes: Any = {"model": "tiny", "image_size": 16, "batch_size": 8, "lr": 0.05}
    how: Any = {"framework": "mxnet", "backend": "native", "num_epochs": float(epochs)}
    config = TrainConfig(data_dir=data, log_dir=log_dir, checkpoint_every=4, **sizes, **how)
    loop.connect = NumpyLearner  # type: ignore[assignment]

    def open_reader(split: str, training: bool, world: World) -> Reader:
        more: Any = {"training": training, "world": world, "framework": "numpy"}
        return make_dataset(data, split, 8, 16, backend="native", num_threads=1, **more)

    loop.train(config, open_reader)
    return 0


def _read_column(place: str, name: str) -> int:
    """Reads all records of a split with the rows of a column."""
    fields = ("class_index", f"column:{name}")
    reader = make_dataset(place, "train", 2, world=World(), backend="native", fields=fields)
    rows = sum(int((batch["class_index"] >= 0).sum()) for batch in reader)
    reader.close()
    return 0 if rows else 1
