"""Learning rates of Horovod's callbacks with Keras 3, step by step and without ranks."""

from __future__ import annotations

import importlib
import itertools
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.kit.training import horovod

__all__ = ["horovod"]

pytestmark = [pytest.mark.tf, pytest.mark.horovod, pytest.mark.usefixtures("horovod")]

EPOCHS = 5
STEPS = 4
BEFORE = 0.7  # the optimizer's rate in epochs without a schedule


@pytest.fixture
def callbacks() -> ModuleType:
    return importlib.import_module("imagenet_prep.launching.horovod_keras")


def fitted(callback: Any) -> tuple[list[list[float]], list[float]]:
    """Calls a callback as `fit` does; returns the rate of each step, and the logged rates."""
    optimizer = SimpleNamespace(learning_rate=BEFORE)
    callback.model = SimpleNamespace(optimizer=optimizer)
    callback.params = {"steps": STEPS}
    callback.on_train_begin()
    rates: list[list[float]] = []
    logged = []
    for epoch in range(EPOCHS):
        callback.on_epoch_begin(epoch)
        rates.append([])
        for batch in range(STEPS):
            callback.on_batch_begin(batch)
            rates[-1].append(optimizer.learning_rate)
        logs: dict[str, Any] = {}
        callback.on_epoch_end(epoch, logs)
        logged.append(logs["lr"])
    return rates, logged


@pytest.mark.parametrize("is_function", [False, True])
@pytest.mark.parametrize("staircase", [False, True])
@pytest.mark.parametrize(
    ("start", "end"), [(0, None), (0, 2), (1, None), (1, 3), (2, 3), (3, 3), (4, 9)]
)
def test_rates_follow_the_definition_of_horovod(
    callbacks: ModuleType, start: int, end: int | None, staircase: bool, is_function: bool
) -> None:
    """A number is raised to the power of the epochs since the start; a function gets the epoch."""
    multiplier = (lambda epoch: 1 / (1 + epoch)) if is_function else 0.5
    schedule = callbacks.LearningRateScheduleCallbackImpl(
        None, 0.4, multiplier, start_epoch=start, end_epoch=end, staircase=staircase
    )
    rates, logged = fitted(schedule)

    rate = BEFORE
    for epoch, batch in itertools.product(range(EPOCHS), range(STEPS)):
        if start <= epoch < (EPOCHS if end is None else end):
            at = epoch if staircase else epoch + batch / STEPS
            rate = 0.4 * (1 / (1 + at) if is_function else 0.5 ** (at - start))
        assert rates[epoch][batch] == pytest.approx(rate), (epoch, batch)
    assert logged == [steps[-1] for steps in rates]


@pytest.mark.parametrize("initial", [0.4, None])
@pytest.mark.parametrize("epochs", [1, 2, 5])
def test_warmup_ends_at_the_rate_of_all_ranks(
    callbacks: ModuleType, monkeypatch: pytest.MonkeyPatch, epochs: int, initial: float | None
) -> None:
    monkeypatch.setattr(callbacks, "hvd", SimpleNamespace(size=lambda: 8, rank=lambda: 1))
    warmup = callbacks.LearningRateWarmupCallbackImpl(None, initial, warmup_epochs=epochs)
    rates, _ = fitted(warmup)
    full = BEFORE if initial is None else initial

    steps = [*itertools.chain.from_iterable(rates)]
    rising = epochs * STEPS
    assert steps[:rising] == pytest.approx(
        [full * (1 + 7 * step / rising) / 8 for step in range(1, rising + 1)]
    )
    assert steps[rising:] == pytest.approx([full] * (len(steps) - rising))
