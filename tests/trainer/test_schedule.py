"""Learning rates: those that AWS's tutorial printed, and what each decay must be."""

from __future__ import annotations

import itertools
import json
import math
from typing import Any

import pytest

from imagenet_prep.trainer import recipe
from imagenet_prep.trainer.config import KINDS, Plateau, Schedule, TrainConfig
from tests.kit.limits import Limits

IMAGENET = 1_281_167

# The tutorial's page, "Train a ResNet-50 ImageNet Model on a Cluster": every row it prints.
PRINTED_32_GPUS = {
    0: 0.00100,
    1: 0.00305,
    50: 0.10353,
    100: 0.20606,
    150: 0.30860,
    200: 0.41113,
    250: 0.51366,
    300: 0.61619,
    350: 0.71872,
    400: 0.82126,
    13750: 0.00217,
    13800: 0.00156,
    13850: 0.00104,
    13900: 0.00064,
    13950: 0.00033,
    14000: 0.00012,
    14050: 0.00002,
}
PRINTED_256_GPUS = {
    1400: 0.14850,
    1450: 0.10283,
    1500: 0.06719,
    1550: 0.04059,
    1600: 0.02190,
    1650: 0.00987,
    1700: 0.00313,
    1750: 0.00026,
}


@pytest.mark.parametrize(
    ("gpus", "steps", "printed"), [(32, 14_075, PRINTED_32_GPUS), (256, 1_759, PRINTED_256_GPUS)]
)
def test_the_tutorials_recipe_has_the_rates_that_the_tutorial_printed(
    gpus: int, steps: int, printed: dict[int, float]
) -> None:
    run = recipe.resolve(TrainConfig(synthetic=True, recipe="tutorial"), gpus, IMAGENET, 1000)

    assert run.total_steps == steps
    assert {step: f"{run.schedule(step):.5f}" for step in printed} == {
        step: f"{rate:.5f}" for step, rate in printed.items()
    }


def test_the_tutorials_epochs_are_those_it_printed() -> None:
    run = recipe.resolve(TrainConfig(synthetic=True, recipe="tutorial"), 32, IMAGENET, 1000)

    assert [f"{run.epoch(step):.1f}" for step in (50, 400, 13750, 14050, 14075)] == [
        "0.3",
        "2.6",
        "87.9",
        "89.8",
        "90.0",
    ]


@pytest.mark.parametrize("kind", sorted({*KINDS} - {"cosine-restarts", "plateau"}))
def test_every_schedule_warms_up_in_a_line_peaks_and_never_rises_again(kind: str) -> None:
    schedule = Schedule(kind, 2.0, 10, 100, drops=(40, 60, 80))
    rates = [schedule(step) for step in range(100)]

    assert rates[0] == 0.001
    slopes = [b - a for a, b in itertools.pairwise(rates[:10])]
    assert slopes == pytest.approx([0.1999] * 9)
    assert rates[10] == pytest.approx(2.0, rel=1e-4)
    assert all(a >= b for a, b in itertools.pairwise(rates[10:]))
    assert 0 <= rates[-1] < 0.01


def test_steps_falls_to_a_tenth_at_every_drop() -> None:
    schedule = Schedule("steps", 1.0, 0, 90, drops=(30, 60, 80))

    assert [schedule(step) for step in (0, 29, 30, 60, 80)] == pytest.approx(
        [1, 1, 0.1, 0.01, 0.001]
    )


def test_steps_has_the_rates_that_are_given_at_the_epochs_that_are_given() -> None:
    config = TrainConfig(
        synthetic=True, schedule="steps", lr_decay_steps="1,2.5", lr_decay_lrs="8,4,1", lr=8.0
    )
    schedule = recipe.resolve(config, 1, 256_000, 1000).schedule

    assert schedule.drops == (1000, 2500)
    assert [schedule(step) for step in (8_000, 90_000)] == [1, 1]
    whole = Schedule("steps", 8.0, 0, 3000, schedule.drops, rates=schedule.rates)
    assert [whole(step) for step in (0, 999, 1000, 2499, 2500)] == [8, 8, 4, 4, 1]


@pytest.mark.tf
def test_a_cosine_with_restarts_is_tensorflows(tf: Any) -> None:
    import keras

    ours = Schedule("cosine-restarts", 2.0, 10, 110)
    theirs = keras.optimizers.schedules.CosineDecayRestarts(2.0, 33, t_mul=2.0, m_mul=0.1)

    for step in (10, 11, 30, 42, 44, 60, 90, 108):
        assert ours(step) == pytest.approx(float(theirs(step - 10)), rel=1e-4, abs=1e-6)


def test_a_warm_up_begins_at_the_rate_that_is_given() -> None:
    config = TrainConfig(synthetic=True, warmup_lr=0.5, warmup_epochs=1.0, lr=1.0)
    schedule = recipe.resolve(config, 1, 256_000, 1000).schedule

    assert [schedule(step) for step in (0, 500, 1000)] == pytest.approx([0.5, 0.75, 1.0], abs=1e-5)


def test_a_plateau_lowers_the_rate_after_so_many_evaluations_without_improvement(
    limits: Limits,
) -> None:
    limits(plateau_patience=2)
    schedule = Schedule("plateau", 1.0, 2, 100)
    assert [schedule(step) for step in (1, 2, 99)] == [pytest.approx(0.5005), 1, 1]

    plateau = Plateau()
    scales = []
    for loss in (3.0, 2.0, 2.0, 1.99995, 1.9, 2.5, math.nan, 2.5, 2.5, 1.0):
        plateau.see(loss)
        scales.append(plateau.scale)
        # As a checkpoint has it.
        plateau = Plateau(**json.loads(json.dumps(vars(plateau), allow_nan=False)))

    assert scales == pytest.approx([1, 1, 1, 0.1, 0.1, 0.1, 0.01, 0.01, 0.001, 0.001])


def test_a_run_without_warm_up_begins_at_its_peak() -> None:
    assert Schedule("cosine", 0.5, 0, 10)(0) == 0.5
