"""One rank of PyTorch for tests: `launch ... -- python pytorch_rank.py FOLDER SETTINGS`.

It trains a network without batch norms and dropout, so ranks and one process give equal results,
and saves its variables. Each rank starts with different weights.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from imagenet_prep.train import readers
from imagenet_prep.trainer import loop, pytorch_learner, recipe
from imagenet_prep.trainer.comm import launched
from imagenet_prep.trainer.config import TrainConfig
from imagenet_prep.trainer.pytorch_learner import PytorchLearner


def network(_name: str, _size: int, num_classes: int) -> Any:
    """Replaces `pytorch_learner.build`."""
    convolution = nn.Conv2d(3, 16, 3, 2)
    pool = nn.AdaptiveAvgPool2d(1)
    return nn.Sequential(convolution, nn.ReLU(), pool, nn.Flatten(), nn.Linear(16, num_classes))


def main(folder: Path, settings: dict[str, Any]) -> None:
    """Trains, and saves the variables of this rank."""
    pytorch_learner.build = network
    config = TrainConfig(**settings, framework="pytorch", log_dir=str(folder / "run"))
    world = launched()
    torch.manual_seed(0)
    learner = PytorchLearner(dataclasses.replace(config, seed=config.seed + world.rank))
    loop.connect = lambda _: learner
    score = loop.train(config, readers(recipe.settled(config)))
    values = {f"v{n}": value for n, value in enumerate(learner.values())}
    np.savez(folder / f"weights-{world.rank}.npz", **values)
    (folder / f"score-{world.rank}.json").write_text(json.dumps(score))


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
