"""Learning rates: pure functions of the step, and their reduction on a plateau."""

from __future__ import annotations

import math
from dataclasses import dataclass

KINDS = ("poly", "cosine", "cosine-restarts", "linear-cosine", "steps", "plateau")

# The constants of train_imagenet_resnet_hvd.py, on which the tutorial's output depends.
WARMUP_START = 0.001
_POLY_END = 1e-5
_LINEAR_COSINE_PERIODS = 0.47
_LINEAR_COSINE_FLOOR = 1e-5
# Its cosine_decay_restarts: the first decay takes a third of the steps. Each later one is twice as
# long as the previous one and starts at a tenth of its rate.
_FIRST_DECAY = 0.33
_RESTART_LONGER = 2.0
_RESTART_LOWER = 0.1
STEP_EPOCHS = (30.0, 60.0, 80.0)  # Goyal et al. 2017: the rate drops to a tenth at each
_STEP_FACTOR = 0.1
# Keras' ReduceLROnPlateau: after this many evaluations in a row without improvement, the rate is
# multiplied by the factor. A smaller improvement of the loss than the gain is ignored.
_PATIENCE = 10
_PLATEAU_FACTOR = 0.1
_LEAST_GAIN = 1e-4


@dataclass(frozen=True)
class Schedule:
    """The learning rate of every step: a linear warm-up, then a decay to the last step.

    The warm-up rises from `start` (or `peak`, if that is smaller) to `peak`. "steps" drops the rate
    at the steps in `drops`: to a tenth, or through `rates`, the first of which applies before the
    first drop.
    """

    kind: str
    peak: float
    warmup_steps: int
    total_steps: int
    drops: tuple[int, ...] = ()
    start: float = WARMUP_START
    rates: tuple[float, ...] = ()

    def __call__(self, step: int) -> float:
        """Returns the learning rate of a step (from 0); for "plateau", before any reduction."""
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
    """Loshchilov and Hutter 2016, as in tf.train.cosine_decay_restarts."""
    begin, length, height = 0.0, _FIRST_DECAY, 1.0
    while done >= begin + length:
        begin, length, height = begin + length, length * _RESTART_LONGER, height * _RESTART_LOWER
    return height * (1 + math.cos(math.pi * (done - begin) / length)) / 2


@dataclass
class Plateau:
    """Lowers the learning rate when the loss of evaluations no longer falls.

    All ranks see the same losses and so have the same state, which checkpoints store. `scale` is
    the current factor of the schedule's rate, and `waited` the number of evaluations since the
    `best` loss or the last reduction.
    """

    scale: float = 1.0
    best: float | None = None
    waited: int = 0

    def see(self, loss: float) -> None:
        """Records the loss of an evaluation."""
        if math.isfinite(loss) and (self.best is None or loss < self.best - _LEAST_GAIN):
            self.best, self.waited = loss, 0
            return
        self.waited += 1
        if self.waited >= _PATIENCE:
            self.scale, self.waited = self.scale * _PLATEAU_FACTOR, 0


def numbers(name: str, text: str | None) -> tuple[float, ...]:
    """Returns the numbers in a comma-separated flag; none if it is not given."""
    try:
        values = tuple(float(part) for part in (text or "").split(",") if part)
    except ValueError:
        values = (0.0,)
    if not all(0 < value < math.inf for value in values):
        raise ValueError(f"{name} {text}: expected positive numbers, separated by commas")
    return values
