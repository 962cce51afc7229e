"""Prints losses of TensorFlow's learner and of PyTorch's from the same weights, as JSON.

`python agree.py TYPE STEPS MODEL OPTIMIZER RATE ...` prints the losses of both for each three
arguments. In float32, rounding errors grow from step to step in a series of batch norms: one such
error in the weights of a ResNet-50 changes PyTorch's own tenth loss by 2e-3. Deep networks are
therefore compared in float64, in which both compute everything except the loss.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Any

import numpy as np
import tensorflow as tf
import torch

from imagenet_prep.trainer import interface, recipe, tensorflow_learner
from imagenet_prep.trainer.config import TrainConfig
from imagenet_prep.trainer.pytorch_learner import PytorchLearner
from imagenet_prep.trainer.tensorflow_learner import TensorFlowLearner

CLASSES = 4
BATCH = 8
LAST_GAMMA = 0.2


def named_as_torch(model: str, size: int, arrays: dict[str, Any]) -> dict[str, Any]:
    """Returns the variables of TensorFlow's network by PyTorch's names."""
    for path, array in arrays.items():
        if path == "hidden/kernel":  # flattened with the channels last
            side = {("cifar", 32): 2, ("mnist", 28): 4}[model, size]
            turned = array.reshape(side, side, -1, array.shape[1]).transpose(2, 0, 1, 3)
            arrays[path] = turned.reshape(array.shape)
    known = dict(arrays)
    if model in ("cifar", "mnist"):
        known = {path.replace(".", "_"): array for path, array in arrays.items()}
    # All networks are named by one rule, including those that torchvision does not have.
    return interface.tensors({"model": interface.TINY}, known)


def losses(
    kept: str, steps: int, model: str, optimizer: str, rate: float
) -> list[list[list[float]]]:
    """Returns loss and total loss of each step, first of TensorFlow and then of PyTorch."""
    size = {"cifar": 32, "mnist": 28}.get(model, 64)
    dtype = np.dtype(kept).type
    tensorflow_learner._POLICIES["float32"] = kept
    torch.set_default_dtype(getattr(torch, kept))
    both = []
    given: dict[str, Any] = {}
    for framework, kind in (("tensorflow", TensorFlowLearner), ("pytorch", PytorchLearner)):
        asked = TrainConfig(
            synthetic=True,
            framework=framework,
            model=model,
            image_size=size,
            batch_size=BATCH,
            optimizer=optimizer,
            lr=rate,
            nesterov=optimizer == "sgd",
        )
        plan = recipe.resolve(asked, 1, steps * BATCH, CLASSES)
        learner = kind(asked)
        learner.build(dataclasses.replace(plan, label_smoothing=0.1), jit=False)
        silence(learner)
        if not given:
            named = dict(zip(learner.names(), learner.values(), strict=True))
            for name, array in named.items():
                # Otherwise each residual block starts as its shortcut, and its other layers have no
                # effect.
                if name.endswith("gamma") and not array.any():
                    array += LAST_GAMMA
            learner.assign(list(named.values()))
            forward = learner._forward
            learner._forward = lambda *batch, of=forward: [tf.cast(v, kept) for v in of(*batch)]
            given = named_as_torch(model, size, named)
        else:
            paths = [name for name in learner.names() if not name.startswith(interface.SLOT)]
            learner.assign([given[path] for path in paths])
        rng = np.random.default_rng(7)
        rows = []
        for step in range(steps):
            labels = rng.integers(CLASSES, size=BATCH, dtype=np.int32)
            noise = rng.standard_normal((BATCH, size, size, 3), np.float32)
            mask = np.arange(BATCH) < BATCH - step % 2
            batch = {
                "images": (noise + labels[:, None, None, None].astype("f") / 4).astype(dtype),
                # As in a batch of the reader: masked images have no class.
                "class_index": np.where(mask, labels, -1).astype(np.int32),
                "mask": mask,
            }
            values, _ = learner.step(step, learner.hold(batch), dtype(rate), asks=False)
            rows.append([float(each) for each in values][:2])
        both.append(rows)
    return both


def silence(learner: Any) -> None:
    """Disables dropout, because the frameworks draw different random numbers."""
    if isinstance(learner, PytorchLearner):
        for module in learner._network.modules():
            if type(module).__name__ == "Dropout":
                module.p = 0.0
    else:
        for layer in learner._model.layers:
            if type(layer).__name__ == "Dropout":
                layer.rate = 0.0


kept = sys.argv[1]
steps = int(sys.argv[2])
words = iter(sys.argv[3:])
for model, optimizer, rate in zip(words, words, words, strict=True):
    both = losses(kept, steps, model, optimizer, float(rate))
    print(json.dumps([model, optimizer, both]), flush=True)
