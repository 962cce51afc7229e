"""A dataset of four colours that every network can learn, and the files of runs on it."""

from __future__ import annotations

import functools
import importlib.util
import itertools
import json
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from imagenet_prep.dataset.example import ImageExample
from imagenet_prep.trainer import checkpoint, log
from tests.kit.command import wait_until
from tests.kit.processes import words_of
from tests.kit.samples import add_tables
from tests.kit.shared import made_once
from tests.kit.tfrecords import jpeg, wnid, write_dataset

CLASSES = 4
NUM_TRAIN = 67
NUM_VALIDATION = 22
# Flags of examples/single.py and distributed.py.
EXAMPLE = ("--image-size", "16", "--epochs", "2")


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
    """Returns settings as arguments of the command line."""
    words = []
    for name, value in settings.items():
        words += [f"--{name.replace('_', '-')}"] + ([] if value is True else [str(value)])
    return words


def network(name: str, image_size: int, num_classes: int) -> Any:
    """Replaces `tensorflow_learner.build`, whose smallest network is traced for two seconds.

    The loop treats both alike: convolution, batch norm, dense layer. tests/e2e trains the real one.
    """
    import keras

    images = keras.Input((image_size, image_size, 3), name="images")
    x = keras.layers.Conv2D(16, 3, 2, use_bias=False, name="conv1")(images)
    x = keras.layers.BatchNormalization(momentum=0.9, name="bn1")(x)
    x = keras.layers.GlobalAveragePooling2D()(keras.layers.ReLU()(x))
    x = keras.layers.Dense(num_classes, name="classes")(x)
    logits = keras.layers.Activation("linear", dtype="float32", name="logits")(x)
    return keras.Model(images, logits, name=name)


@functools.cache
def built(name: str) -> Any:
    """Returns a network at 64 pixels, with the weights that the last test left."""
    from imagenet_prep.trainer import tensorflow_learner

    return tensorflow_learner.build(name, 64, 1000)


def make_shades(
    root: Path,
    other: str = "validation",
    classes: Sequence[int] = range(CLASSES),
    held: Sequence[int] | None = None,
) -> Path:
    """Writes 67 + 22 noisy images of four colours, in shards of unequal length.

    The 22 are of the split `other` and of the classes `held`. All others are of the `classes`, of
    four.
    """
    colours = [(200, 40, 40), (40, 200, 40), (40, 40, 200), (128, 128, 128)]

    def example(number: int) -> ImageExample:
        rng = np.random.default_rng(number)
        there = classes if held is None or number < NUM_TRAIN else held
        label = there[number % len(there)]
        pixels = np.clip(rng.normal(colours[label], 40, (24, 20, 3)), 0, 255)
        name = f"{wnid(label)}_{number}.JPEG"
        return ImageExample(jpeg(pixels), 24, 20, name, label + 1, wnid(label), "thing")

    def split(counts: Sequence[int], start: int) -> list[list[ImageExample]]:
        ends = np.cumsum([start, *counts]).tolist()
        return [[example(n) for n in range(*pair)] for pair in itertools.pairwise(ends)]

    splits = {"train": split((30, 37), 0), other: split((12, 10), NUM_TRAIN)}
    write_dataset(root, splits, num_classes=CLASSES)
    add_tables(root)
    return root


@pytest.fixture(scope="session")
def shades(shared_cache: Path) -> Path:
    """As `make_shades`, once per run; read-only."""
    return made_once(shared_cache / "shades", lambda folder: make_shades(folder / "set")) / "set"


@pytest.fixture(scope="session")
def horovod() -> None:
    """Horovod for TensorFlow, if it is installed; neither is imported."""
    if importlib.util.find_spec("horovod") is None:
        pytest.skip("Horovod is not installed: run `imagenet-prep install-horovod`")


def rows(log_dir: Path, kind: str) -> list[dict[str, Any]]:
    """Returns the lines of one kind of a run's log."""
    lines = (log_dir / "train.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if row["kind"] == kind]


def end_at_step(
    patch: pytest.MonkeyPatch, asked: int, signum: signal.Signals = signal.SIGTERM
) -> None:
    """Sends a signal to a run of this process as it logs a step; it must log each step."""
    log_step = log.TrainingLog.train

    def log_and_end(self: log.TrainingLog, step: int, *values: float) -> None:
        log_step(self, step, *values)
        if step == asked:
            signal.raise_signal(signum)

    patch.setattr(log.TrainingLog, "train", log_and_end)


def arrays_of(log_dir: Path) -> dict[str, Any]:
    """Returns the content of the last checkpoint of a run."""
    found = checkpoint.load_latest(log_dir)
    assert found is not None
    return dict(found.arrays)


def assert_same_bits(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Asserts that two checkpoints' arrays are equal."""
    assert one.keys() == other.keys()
    assert [name for name in one if one[name].tobytes() != other[name].tobytes()] == []


def running_ranks(running: Any) -> dict[int, int]:
    """Returns the pid of each rank among a launch's processes."""
    found = {}
    for pid in running.workers():
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        rank = [line.partition(b"=")[2] for line in environment if line.startswith(b"HOROVOD_RANK")]
        # The processes that a rank starts have the same environment.
        if rank and b"imagenet_prep" in words_of(pid):
            found[int(rank[0])] = pid
    return found


def wait_for(condition: Any, running: Any) -> None:
    wait_until(lambda: condition() or running.ended, "the run is far enough")
    assert condition(), running.finish()
