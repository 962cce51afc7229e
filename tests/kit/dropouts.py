"""The losses of single steps of a network with dropout, on different ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from imagenet_prep.core.world import World
from imagenet_prep.trainer import recipe
from imagenet_prep.trainer.config import TrainConfig


def losses(
    framework: str, learner_of: Callable[[TrainConfig], Any], cases: Iterable[tuple[int, int]]
) -> list[float]:
    """Returns the loss for each (rank, step); all begin with the same weights and images."""
    config = TrainConfig(
        synthetic=True, framework=framework, model="mnist", image_size=16, batch_size=4
    )
    learner = learner_of(config)
    learner.build(recipe.resolve(config, 1, 64, 4), jit=False)
    begin = learner.values()
    images = np.random.default_rng(0).normal(size=(4, 16, 16, 3)).astype(np.float32)
    batch = {
        "images": images,
        "class_index": np.arange(4, dtype=np.int32),
        "mask": np.ones(4, bool),
    }
    found = []
    for rank, step in cases:
        learner.assign(begin)
        learner.comm.world = World(rank, 2)
        values, _ = learner.step(step, batch, 0.0, asks=False)
        found.append(float(values[0]))
    return found
