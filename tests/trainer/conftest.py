"""A dataset of four colours that every network can learn, and fixtures that train on it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep.trainer.config import TrainConfig
from tests.kit.training import flags, horovod, network, shades

__all__ = ["horovod", "shades"]


@pytest.fixture(autouse=True)
def default_precision() -> Iterator[None]:
    """Undoes what a training sets for its whole process: Keras builds all networks by it."""
    yield
    if "keras" in sys.modules:
        sys.modules["keras"].config.set_dtype_policy("float32")


@pytest.fixture
def small_network(tf: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets TensorFlow train a network that is traced in half a second, for every model name."""
    monkeypatch.setattr("imagenet_prep.trainer.tensorflow_learner.build", network)


@pytest.fixture
def train(small_network: None, shades: Path) -> Callable[..., Any]:
    """Trains in this process: train(log_dir, **settings) -> the last evaluation."""
    from imagenet_prep.train import train as verb

    def run(log_dir: Path, **more: Any) -> Any:
        return verb(TrainConfig(**flags(shades, log_dir, **more)))

    return run


@pytest.fixture
def train_by_numpy(shades: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """As `train`, but with NumPy as the framework: the loop is the same for each framework."""
    from imagenet_prep.train import readers
    from imagenet_prep.trainer import loop
    from tests.kit.numpy_learner import NumpyLearner

    monkeypatch.setattr(loop, "connect", NumpyLearner)

    def run(log_dir: Path, **more: Any) -> Any:
        # The framework is not "tensorflow", because its log includes TensorBoard's files.
        settings = flags(shades, log_dir, framework="mxnet", backend="native")
        config = TrainConfig(**settings | more)
        return loop.train(config, readers(config))

    return run


@pytest.fixture
def evaluated(
    train_by_numpy: Callable[..., Any], shades: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Any]:
    """Evaluates a run with flags of the command line; returns the config and the score."""
    from imagenet_prep import train as verb
    from imagenet_prep.trainer import loop

    def run(log_dir: Path, *words: str, data_dir: Path = shades) -> Any:
        found: list[Any] = []

        def evaluate(config: Any) -> None:
            found.append((config, loop.train(config, verb.readers(config))))

        monkeypatch.setattr(verb, "train", evaluate)
        given = ("--data-dir", str(data_dir), "--log-dir", str(log_dir), "--backend", "native")
        verb.run([*given, "--evaluate", *words])
        return found[-1]

    return run
