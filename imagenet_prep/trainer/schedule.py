"""Learning rates as pure functions of the step."""

from __future__ import annotations

import math
from dataclasses import dataclass

KINDS = ("poly", "cosine", "linear-cosine", "steps")

# From train_imagenet_resnet_hvd.py; the output of the tutorial depends on them.
WARMUP_START = 0.001
_POLY_END = 1e-5
_LINEAR_COSINE_PERIODS = 0.47
_LINEAR_COSINE_FLOOR = 1e-5
# Goyal et al. 2017: a tenth at each.
STEP_EPOCHS = (30.0, 60.0, 80.0)
_STEP_FACTOR = 0.1


@dataclass(frozen=True)
class Schedule:
    """The learning rate of every step: a linear warm-up, then a decay to the last step.

    Attributes:
      kind: one of KINDS.
      peak: learning rate at the end of the warm-up.
      warmup_steps: steps from WARMUP_START, or from the peak where that is smaller, to the peak.
      total_steps: steps of the whole run.
      drops: steps at which "steps" falls to a tenth.
    """

    kind: str
    peak: float
    warmup_steps: int
    total_steps: int
    drops: tuple[int, ...] = ()

    def __call__(self, step: int) -> float:
        """Returns the learning rate of a step, from 0."""
        if step < self.warmup_steps:
            start = min(WARMUP_START, self.peak)
            return start + (self.peak - start) * step / self.warmup_steps
        if self.kind == "steps":
            return self.peak * _STEP_FACTOR ** sum(step >= drop for drop in self.drops)
        decaying = max(1, self.total_steps - self.warmup_steps)
        done = min(1.0, (step - self.warmup_steps) / decaying)
        if self.kind == "poly":
            end = min(_POLY_END, self.peak)
            return (self.peak - end) * (1 - done) ** 2 + end
        if self.kind == "cosine":
            return self.peak * (1 + math.cos(math.pi * done)) / 2
        # Bello et al. 2017, as tf.train.linear_cosine_decay had it.
        swing = (1 + math.cos(2 * math.pi * _LINEAR_COSINE_PERIODS * done)) / 2
        return self.peak * ((1 - done) * swing + _LINEAR_COSINE_FLOOR)
