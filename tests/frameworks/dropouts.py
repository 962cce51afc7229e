"""Prints the loss of one step of PyTorch's learner as JSON, for several ranks and steps.

`python dropouts.py RANK:STEP ...`: each begins with the same weights and has the same images.
"""

from __future__ import annotations

import json
import sys

import numpy as np

from imagenet_prep.core.world import World
from imagenet_prep.trainer import recipe
from imagenet_prep.trainer.config import TrainConfig
from imagenet_prep.trainer.pytorch_learner import PytorchLearner


def losses(cases: list[str]) -> list[float]:
    config = TrainConfig(
        synthetic=True, framework="pytorch", model="mnist", image_size=16, batch_size=4
    )
    learner = PytorchLearner(config)
    learner.build(recipe.resolve(config, 1, 64, 4), jit=False)
    begin = learner.values()
    images = np.random.default_rng(0).normal(size=(4, 16, 16, 3)).astype(np.float32)
    batch = {
        "images": images,
        "class_index": np.arange(4, dtype=np.int32),
        "mask": np.ones(4, bool),
    }
    found = []
    for case in cases:
        rank, step = map(int, case.split(":"))
        learner.assign(begin)
        learner.comm.world = World(rank, 2)
        values, _ = learner.step(step, batch, 0.0, asks=False)
        found.append(float(values[0]))
    return found


if __name__ == "__main__":
    print(json.dumps(losses(sys.argv[1:])))
