"""Learning rates: pure functions of the step, and what evaluations do to them."""

from __future__ import annotations

import math
from dataclasses import dataclass

KINDS = ("poly", "cosine", "cosine-restarts", "linear-cosine", "steps", "plateau")

# train_imagenet_resnet_hvd.py has these constants, and the tutorial's output depends on them.
WARMUP_START = 0.001
_POLY_END = 1e-5
_LINEAR_COSINE_PERIODS = 0.47
_LINEAR_COSINE_FLOOR = 1e-5
# Its cosine_decay_restarts: the first decay takes a third of the steps, every other one twice as
# many as the one before and begins at a tenth of its rate.
_FIRST_DECAY = 0.33
_RESTART_LONGER = 2.0
_RESTART_LOWER = 0.1
# Goyal et al. 2017: a tenth at each.
STEP_EPOCHS = (30.0, 60.0, 80.0)
_STEP_FACTOR = 0.1
# As Keras' ReduceLROnPlateau: after so many evaluations in a row without improvement, the rate
# falls to this share. A loss that is less lower than the gain is no improvement.
_PATIENCE = 10
_PLATEAU_FACTOR = 0.1
_LEAST_GAIN = 1e-4


@dataclass(frozen=True)
class Schedule:
    """The learning rate of every step: a linear warm-up, then a decay to the last step.

    Attributes:
      kind: one of KINDS.
      peak: learning rate at the end of the warm-up.
      warmup_steps: steps from `start`, or from the peak where that is smaller, to the peak.
      total_steps: steps of the whole run.
      drops: steps at which "steps" falls.
      start: learning rate of step 0.
      rates: those of "steps" before the first drop and after each one; empty: a tenth at each.
    """

    kind: str
    peak: float
    warmup_steps: int
    total_steps: int
    drops: tuple[int, ...] = ()
    start: float = WARMUP_START
    rates: tuple[float, ...] = ()

    def __call__(self, step: int) -> float:
        """Returns the learning rate of a step, from 0; of "plateau" before any fall."""
        if step < self.warmup_steps:
            start = min(self.start, self.peak)
            return start + (self.peak - start) * step / self.warmup_steps
        if self.kind == "plateau":
            return self.peak
        if self.kind == "steps":
            fallen = sum(step >= drop for drop in self.drops)
            return self.rates[fallen] if self.rates else self.peak * _STEP_FACTOR**fallen
        decaying = max(1, self.total_steps - self.warmup_steps)
        done = min(1.0, (step - self.warmup_steps) / decaying)
        if self.kind == "poly":
            end = min(_POLY_END, self.peak)
            return (self.peak - end) * (1 - done) ** 2 + end
        if self.kind == "cosine":
            return self.peak * (1 + math.cos(math.pi * done)) / 2
        if self.kind == "cosine-restarts":
            return self.peak * _restarting_cosine(done)
        # Bello et al. 2017, as tf.train.linear_cosine_decay had it.
        swing = (1 + math.cos(2 * math.pi * _LINEAR_COSINE_PERIODS * done)) / 2
        return self.peak * ((1 - done) * swing + _LINEAR_COSINE_FLOOR)


def _restarting_cosine(done: float) -> float:
    """Loshchilov and Hutter 2016, as tf.train.cosine_decay_restarts had it."""
    begin, length, height = 0.0, _FIRST_DECAY, 1.0
    while done >= begin + length:
        begin, length, height = begin + length, length * _RESTART_LONGER, height * _RESTART_LOWER
    return height * (1 + math.cos(math.pi * (done - begin) / length)) / 2


@dataclass
class Plateau:
    """Lowers the learning rate when the loss of evaluations no longer falls.

    Every rank sees the same losses, and so has the same state, which checkpoints store.

    Attributes:
      scale: share of the schedule's rate that is left.
      best: the lowest loss so far.
      waited: evaluations since then, or since the rate was last lowered.
    """

    scale: float = 1.0
    best: float | None = None
    waited: int = 0

    def see(self, loss: float) -> None:
        """Counts an evaluation."""
        if math.isfinite(loss) and (self.best is None or loss < self.best - _LEAST_GAIN):
            self.best, self.waited = loss, 0
            return
        self.waited += 1
        if self.waited >= _PATIENCE:
            self.scale, self.waited = self.scale * _PLATEAU_FACTOR, 0


def numbers(name: str, text: str | None) -> tuple[float, ...]:
    """Returns what a flag lists, such as epochs or rates; nothing where it is not given."""
    try:
        found = tuple(float(part) for part in (text or "").split(",") if part)
    except ValueError:
        found = (0.0,)
    if not all(0 < number < math.inf for number in found):
        raise ValueError(f"{name} {text}: expected positive numbers, separated by commas")
    return found
