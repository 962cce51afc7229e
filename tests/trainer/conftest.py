"""A data set of four colours that anything learns, and runs on it."""

from __future__ import annotations

import importlib.util
import itertools
import json
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from imagenet_prep.dataset.example import ImageExample
from imagenet_prep.trainer import checkpoint, log
from imagenet_prep.trainer.config import Config
from tests.kit.tfrecords import jpeg, wnid, write_set

CLASSES = 4
NUM_TRAIN, NUM_VALIDATION = 67, 22


def flags(data: Path, log_dir: Path, **more: Any) -> dict[str, Any]:
    """Returns the settings of a run of two epochs of eight steps."""
    small = {
        "data_dir": str(data),
        "log_dir": str(log_dir),
        "model": "tiny",
        "image_size": 16,
        "batch_size": 8,
        "num_epochs": 2.0,
        "lr": 0.05,
        "display_every": 4,
        "backend": "tfdata",
    }
    return small | more


def arguments(settings: dict[str, Any]) -> list[str]:
    """Returns settings as the command line has them."""
    words = []
    for name, value in settings.items():
        words += [f"--{name.replace('_', '-')}"] + ([] if value is True else [str(value)])
    return words


def make_shades(root: Path) -> Path:
    """Writes 67 + 22 noisy pictures of four colours, in shards of unequal length."""
    colours = [(200, 40, 40), (40, 200, 40), (40, 40, 200), (128, 128, 128)]

    def example(number: int) -> ImageExample:
        rng = np.random.default_rng(number)
        label = number % CLASSES
        pixels = np.clip(rng.normal(colours[label], 40, (24, 20, 3)), 0, 255)
        name = f"{wnid(label)}_{number}.JPEG"
        return ImageExample(jpeg(pixels), 24, 20, name, label + 1, wnid(label), "thing")

    def split(counts: Sequence[int], start: int) -> list[list[ImageExample]]:
        ends = np.cumsum([start, *counts]).tolist()
        return [[example(n) for n in range(*pair)] for pair in itertools.pairwise(ends)]

    splits = {"train": split((30, 37), 0), "validation": split((12, 10), NUM_TRAIN)}
    write_set(root, splits, num_classes=CLASSES)
    return root


@pytest.fixture(scope="session")
def shades(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `make_shades`; read-only."""
    return make_shades(tmp_path_factory.mktemp("shades") / "set")


@pytest.fixture
def train(tf: Any, shades: Path) -> Callable[..., Any]:
    """Trains in this process: train(log_dir, **settings) -> the last evaluation."""
    from imagenet_prep.train import train as verb

    def run(log_dir: Path, **more: Any) -> Any:
        return verb(Config(**flags(shades, log_dir, **more)))

    return run


@pytest.fixture
def train_by_numpy(shades: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """As `train`, but for the framework: what the loop does is the same for each."""
    from imagenet_prep.read import Reader, make_dataset
    from imagenet_prep.trainer import loop
    from tests.trainer.numpy_learner import NumpyLearner

    monkeypatch.setattr(loop, "connect", NumpyLearner)

    def run(log_dir: Path, **more: Any) -> Any:
        # Not "tensorflow", whose log has TensorBoard's files.
        settings = flags(shades, log_dir, framework="mxnet", backend="native")
        config = Config(**settings | more)

        def open_reader(split: str, training: bool, world: Any) -> Reader:
            how: Any = {"training": training, "world": world, "seed": config.seed}
            sizes = (config.batch_size, config.image_size)
            return make_dataset(shades, split, *sizes, framework="numpy", backend="native", **how)

        return loop.train(config, open_reader)

    return run


@pytest.fixture(scope="session")
def horovod() -> None:
    """Horovod for TensorFlow, where it is installed; neither is imported."""
    if importlib.util.find_spec("horovod") is None:
        pytest.skip("Horovod is not installed: run `imagenet-prep install-horovod`")


def rows(log_dir: Path, kind: str) -> list[dict[str, Any]]:
    """Returns the lines of one kind of a run's log."""
    lines = (log_dir / "train.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if row["kind"] == kind]


def end_at_step(patch: pytest.MonkeyPatch, asked: int) -> None:
    """Lets a run of this process receive SIGTERM as it logs a step; it must log each."""
    log_step = log.Log.train

    def log_and_end(self: log.Log, step: int, *values: float) -> None:
        log_step(self, step, *values)
        if step == asked:
            signal.raise_signal(signal.SIGTERM)

    patch.setattr(log.Log, "train", log_and_end)


def arrays_of(log_dir: Path) -> dict[str, Any]:
    """Returns what the last checkpoint of a run holds."""
    found = checkpoint.load_latest(log_dir)
    assert found is not None
    return dict(found.arrays)


def assert_same_bits(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Asserts that two checkpoints' arrays are equal."""
    assert one.keys() == other.keys()
    assert [name for name in one if one[name].tobytes() != other[name].tobytes()] == []
