"""Learning rates: those that AWS's tutorial printed, and the shape of each decay."""

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

# Every row of the tutorial's page "Train a ResNet-50 ImageNet Model on a Cluster".
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
def test_rates_equal_the_tutorials_printed_ones(
    gpus: int, steps: int, printed: dict[int, float]
) -> None:
    run = recipe.resolve(TrainConfig(synthetic=True, recipe="tutorial"), gpus, IMAGENET, 1000)

    assert run.total_steps == steps
    assert {step: f"{run.schedule(step):.5f}" for step in printed} == {
        step: f"{rate:.5f}" for step, rate in printed.items()
    }


def test_epochs_equal_the_tutorials_printed_ones() -> None:
    run = recipe.resolve(TrainConfig(synthetic=True, recipe="tutorial"), 32, IMAGENET, 1000)

    assert [f"{run.epoch(step):.1f}" for step in (50, 400, 13750, 14050, 14075)] == [
        "0.3",
        "2.6",
        "87.9",
        "89.8",
        "90.0",
    ]


@pytest.mark.parametrize("kind", sorted({*KINDS} - {"cosine-restarts", "plateau"}))
def test_schedules_warm_up_linearly_and_then_never_rise(kind: str) -> None:
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


def test_steps_uses_the_given_rates_and_epochs() -> None:
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


def test_the_warmup_starts_at_the_given_rate() -> None:
    config = TrainConfig(synthetic=True, warmup_lr=0.5, warmup_epochs=1.0, lr=1.0)
    schedule = recipe.resolve(config, 1, 256_000, 1000).schedule

    assert [schedule(step) for step in (0, 500, 1000)] == pytest.approx([0.5, 0.75, 1.0], abs=1e-5)


def test_plateau_lowers_the_rate_after_its_patience(
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
        # As a checkpoint stores it.
        plateau = Plateau(**json.loads(json.dumps(vars(plateau), allow_nan=False)))

    assert scales == pytest.approx([1, 1, 1, 0.1, 0.1, 0.1, 0.01, 0.01, 0.001, 0.001])


def test_plateau_starts_with_the_first_finite_loss(limits: Limits) -> None:
    limits(plateau_patience=2)
    plateau = Plateau()
    for loss in (math.nan, 5.0, 4.0, math.inf, 3.0, 2.0):
        plateau.see(loss)
    assert (plateau.best, plateau.scale) == (2.0, 1.0)


def test_without_warmup_the_first_rate_is_the_peak() -> None:
    assert Schedule("cosine", 0.5, 0, 10)(0) == 0.5


USUAL = {"momentum": 0.9, "weight_decay": 1e-4, "label_smoothing": 0.0, "nesterov": False}


@pytest.mark.parametrize(
    ("settings", "ranks", "peak", "expected"),
    [
        ({"recipe": "cifar10"}, 4, 0.004, {"optimizer": "adam", "momentum": 0.0}),
        ({"recipe": "cifar10", "optimizer": "sgd"}, 4, 0.004, {"momentum": 0.9}),
        ({"recipe": "cifar10", "optimizer": "rmsprop"}, 4, 0.004, {"momentum": 0.0}),
        ({"recipe": "cifar10"}, 1, 0.001, {"weight_decay": 0.0, "model": "cifar"}),
        ({"recipe": "mnist"}, 2, 0.002, {"optimizer": "adam", "model": "mnist"}),
        ({"recipe": "tutorial", "batch_size": 128}, 4, 0.2, USUAL | {"nesterov": True}),
        ({"recipe": "article", "batch_size": 128}, 4, 0.2, USUAL),
        (
            {"recipe": "tutorial", "optimizer": "larc"},
            2,
            3.7,
            {"optimizer": "larc", "trust_coefficient": 0.013, "momentum": 0.9},
        ),
        ({"recipe": "tutorial", "optimizer": "larc", "lr": 2.0}, 2, 2.0, {"optimizer": "larc"}),
        ({"optimizer": "lars", "lr": 1.0}, 2, 1.0, {"trust_coefficient": 0.001}),
        (
            {"optimizer": "lars", "lr": 1.0, "trust_coefficient": 0.5},
            2,
            1.0,
            {"trust_coefficient": 0.5, "nesterov": False},
        ),
        # LARS has no Nesterov momentum, which the recipe has for other optimizers.
        ({"recipe": "tutorial", "optimizer": "lars", "lr": 1.0}, 2, 1.0, {"nesterov": False}),
        ({"recipe": "tutorial", "optimizer": "larc"}, 2, 3.7, {"nesterov": True}),
        ({"recipe": "tutorial", "optimizer": "adam", "lr": 1.0}, 2, 1.0, {"momentum": 0.0}),
        ({"lr": 0.5, "momentum": 0.5, "weight_decay": 0.25}, 2, 0.5, {"momentum": 0.5}),
        ({"nesterov": True, "label_smoothing": 0.5}, 1, 0.256, {"nesterov": True}),
    ],
)
def test_each_recipe_has_rates_that_flags_replace(
    settings: dict[str, Any], ranks: int, peak: float, expected: dict[str, Any]
) -> None:
    run = recipe.resolve(TrainConfig(synthetic=True, **settings), ranks, 50_000, 10)

    assert run.schedule.peak == pytest.approx(peak)
    assert {name: getattr(run, name) for name in expected} == expected
    given = {name: settings[name] for name in settings.keys() & vars(run).keys()}
    assert {name: getattr(run, name) for name in given} == given


@pytest.mark.parametrize(
    ("epochs", "drops"),
    [
        (90.0, (300, 600, 800)),
        (45.0, (150, 300, 400)),
        (9.0, (30, 60, 80)),
        (180.0, (300, 600, 800)),
    ],
)
def test_steps_of_the_rate_shrink_with_the_run(epochs: float, drops: tuple[int, ...]) -> None:
    settings: dict[str, Any] = {"schedule": "steps", "num_epochs": epochs, "batch_size": 10}
    config = TrainConfig(data_dir="x", **settings)
    assert recipe.resolve(config, 1, 109, 10).schedule.drops == drops
    given = TrainConfig(data_dir="x", lr_decay_steps="1,2.5", **settings)
    assert recipe.resolve(given, 1, 109, 10).schedule.drops == (10, 25)


@pytest.mark.parametrize(
    ("settings", "fast_half", "precision", "scale"),
    [
        ({}, True, "float32", 1.0),
        ({"precision": "float16"}, False, "float16", 1024.0),
        ({"precision": "bfloat16"}, True, "bfloat16", 1.0),
        ({"precision": "float16", "loss_scale": 8.0}, False, "float16", 8.0),
        ({"recipe": "tutorial"}, True, "float16", 1024.0),
        ({"recipe": "tutorial"}, False, "float32", 1.0),
        ({"recipe": "tutorial", "loss_scale": 8.0}, False, "float32", 1.0),
        ({"recipe": "tutorial", "optimizer": "larc"}, True, "float16", 256.0),
        ({"recipe": "tutorial", "precision": "float32"}, True, "float32", 1.0),
    ],
)
def test_precision_and_scale_depend_on_recipe_and_device(
    settings: dict[str, Any], fast_half: bool, precision: str, scale: float
) -> None:
    config = TrainConfig(synthetic=True, **settings)
    run = recipe.resolve(config, 1, 50_000, 10, fast_half=fast_half)

    assert (run.precision, run.loss_scale) == (precision, scale)


@pytest.mark.parametrize(
    ("settings", "steps", "warmup", "plateau"),
    [
        ({"num_epochs": 2.0, "warmup_epochs": 1.0}, 20, 10, 0),
        ({"num_epochs": 2.06, "warmup_epochs": 0.04}, 21, 0, 0),
        ({"num_epochs": 0.01}, 1, 0, 0),
        ({"num_batches": 7, "warmup_epochs": 3.0}, 7, 6, 0),
        ({"num_epochs": 45.0}, 450, 40, 0),  # half of the recipe's 90 epochs, and of its warm-up
        ({"num_epochs": 180.0}, 1800, 80, 0),
        ({"num_epochs": 3.0, "schedule": "plateau", "eval_every": 0.5}, 30, 3, 5),
        ({"num_epochs": 3.0, "schedule": "plateau", "eval_every": 0.01}, 30, 3, 1),
        ({"num_epochs": 3.0, "eval_every": 0.5}, 30, 3, 0),
    ],
)
def test_epochs_become_steps(
    settings: dict[str, Any], steps: int, warmup: int, plateau: int
) -> None:
    config = TrainConfig(data_dir="x", batch_size=10, **settings)
    run = recipe.resolve(config, 1, 109, 10)

    assert (run.steps_per_epoch, run.total_steps) == (10, steps)
    assert (run.schedule.warmup_steps, run.plateau_steps) == (warmup, plateau)


def test_the_first_difference_between_two_runs_is_named() -> None:
    config = TrainConfig(synthetic=True, num_epochs=1.0)
    run = recipe.resolve(config, 1, 50_000, 10)
    facts = json.loads(json.dumps(run.facts()))
    assert recipe.difference(facts, run) is None
    assert recipe.other_network(facts, run) is None
    for name, value, word in (
        ("model", "tiny", "model tiny"),
        ("global_batch", 5, "global batch size 5"),
        ("num_classes", 7, "number of classes 7"),
        ("seed", 9, "seed 9"),
    ):
        changed = facts | {name: value}
        assert word in (recipe.difference(changed, run) or "")
        is_network = name in ("model", "num_classes")
        assert (word in (recipe.other_network(changed, run) or "")) is is_network
    slower = facts | {"schedule": facts["schedule"] | {"peak": 0.5, "total_steps": 3}}
    assert (recipe.difference(slower, run) or "").startswith("learning rate 0.5")
    assert recipe.difference({**facts, "later": 1}, run) is not None
