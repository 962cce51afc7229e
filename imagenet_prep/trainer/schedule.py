"""Learning rate schedules, and the reduction of the rate on a plateau."""

from __future__ import annotations

import math
from dataclasses import dataclass

KINDS = ("poly", "cosine", "cosine-restarts", "linear-cosine", "steps", "plateau")

# The constants of train_imagenet_resnet_hvd.py, on which the tutorial's output depends.
WARMUP_START = 0.001
_POLY_END = 1e-5
_LINEAR_COSINE_PERIODS = 0.47
_LINEAR_COSINE_FLOOR = 1e-5
# cosine_decay_restarts in that script: the first decay takes a third of the steps. Each later decay
# is twice as long as the previous one and starts at a tenth of its first rate.
_FIRST_DECAY = 0.33
_RESTART_LONGER = 2.0
_RESTART_LOWER = 0.1
STEP_EPOCHS = (30.0, 60.0, 80.0)  # Goyal et al. 2017: the rate drops to a tenth at each
_STEP_FACTOR = 0.1
# Keras' ReduceLROnPlateau: after `_PATIENCE` evaluations in a row without improvement, the rate is
# multiplied by the factor. The loss has improved if it is lower by more than `_LEAST_GAIN`.
_PATIENCE = 10
_PLATEAU_FACTOR = 0.1
_LEAST_GAIN = 1e-4


@dataclass(frozen=True)
class Schedule:
    """The learning rate of every step: a linear warm-up, then a decay to the last step.

    The warm-up rises from `start` (or `peak`, if `peak` is smaller) to `peak`. The kind "steps"
    changes the rate at each step in `drops`: to a tenth, or to the next of `rates`. The first of
    `rates` is the rate before the first drop.
    """

    kind: str
    peak: float
    warmup_steps: int
    total_steps: int
    drops: tuple[int, ...] = ()
    start: float = WARMUP_START
    rates: tuple[float, ...] = ()

    def __call__(self, step: int) -> float:
        """Returns the rate of a step, counted from 0, before any reduction by `Plateau`."""
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
        # Bello et al. 2017, as in tf.train.linear_cosine_decay.
        swing = (1 + math.cos(2 * math.pi * _LINEAR_COSINE_PERIODS * done)) / 2
        return self.peak * ((1 - done) * swing + _LINEAR_COSINE_FLOOR)


def _restarting_cosine(done: float) -> float:
    """Returns the factor of tf.train.cosine_decay_restarts (Loshchilov and Hutter 2016)."""
    begin = 0.0
    length = _FIRST_DECAY
    height = 1.0
    while done >= begin + length:
        begin = begin + length
        length = length * _RESTART_LONGER
        height = height * _RESTART_LOWER
    return height * (1 + math.cos(math.pi * (done - begin) / length)) / 2


@dataclass
class Plateau:
    """Lowers the learning rate if the evaluation loss no longer falls.

    Checkpoints store this state, which is the same on all ranks. The schedule's rate is multiplied
    by `scale`. `waited` is the number of evaluations since the `best` loss or the last reduction.
    """

    scale: float = 1.0
    best: float | None = None
    waited: int = 0

    def see(self, loss: float) -> None:
        """Updates the state after an evaluation with this loss."""
        if math.isfinite(loss) and (self.best is None or loss < self.best - _LEAST_GAIN):
            self.best = loss
            self.waited = 0
            return
        self.waited += 1
        if self.waited >= _PATIENCE:
            self.scale = self.scale * _PLATEAU_FACTOR
            self.waited = 0


def numbers(name: str, text: str | None) -> tuple[float, ...]:
    """Returns the numbers in the value of a comma-separated flag; () for None."""
    try:
        values = tuple(float(part) for part in (text or "").split(",") if part)
    except ValueError:
        values = (0.0,)
    if not all(0 < value < math.inf for value in values):
        raise ValueError(f"{name} {text}: expected positive numbers, separated by commas")
    return values
