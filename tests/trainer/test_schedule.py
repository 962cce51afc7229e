"""Learning rates: those that AWS's tutorial printed, and what each decay must be."""

from __future__ import annotations

import itertools

import pytest

from imagenet_prep.trainer import recipe
from imagenet_prep.trainer.config import Config
from imagenet_prep.trainer.schedule import KINDS, Schedule

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
    run = recipe.resolve(Config(synthetic=True, recipe="tutorial"), gpus, IMAGENET, 1000)

    assert run.total_steps == steps
    assert {step: f"{run.schedule(step):.5f}" for step in printed} == {
        step: f"{rate:.5f}" for step, rate in printed.items()
    }


def test_the_tutorials_epochs_are_those_it_printed() -> None:
    run = recipe.resolve(Config(synthetic=True, recipe="tutorial"), 32, IMAGENET, 1000)

    assert [f"{run.epoch(step):.1f}" for step in (50, 400, 13750, 14050, 14075)] == [
        *("0.3", "2.6", "87.9", "89.8", "90.0")
    ]


@pytest.mark.parametrize("kind", KINDS)
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


def test_a_run_without_warm_up_begins_at_its_peak() -> None:
    assert Schedule("cosine", 0.5, 0, 10)(0) == 0.5
