"""Settings: what is refused, and what a recipe makes of the rest."""

from __future__ import annotations

from typing import Any

import pytest

from imagenet_prep.core.errors import UsageError
from imagenet_prep.trainer import recipe
from imagenet_prep.trainer.config import Config


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({}, "--data-dir or --synthetic"),
        ({"data_dir": "x", "synthetic": True}, "--data-dir or --synthetic"),
        ({"synthetic": True, "evaluate": True}, "nothing to evaluate"),
        ({"data_dir": "x", "no_evaluation": True, "eval_every": 1.0}, "--no-evaluation"),
        ({"synthetic": True, "backend": "dali"}, "--backend"),
        ({"synthetic": True, "batch_size": 0}, "--batch-size 0"),
        ({"synthetic": True, "image_size": 8}, "--image-size 8"),
        ({"synthetic": True, "num_epochs": 0.0}, "--num-epochs"),
        ({"synthetic": True, "lr": -1.0}, "--lr"),
        ({"synthetic": True, "lr": float("nan")}, "--lr"),
        ({"synthetic": True, "momentum": 1.0}, "--momentum"),
        ({"synthetic": True, "label_smoothing": 1.0}, "--label-smoothing"),
        ({"synthetic": True, "warmup_epochs": 90.0}, "--warmup-epochs"),
        ({"synthetic": True, "loss_scale": 128.0}, "--precision float16"),
        ({"synthetic": True, "trust_coefficient": 0.01}, "lars or larc"),
        ({"synthetic": True, "optimizer": "lars", "nesterov": True}, "--nesterov"),
        ({"synthetic": True, "keep": 0}, "--keep 0"),
        ({"synthetic": True, "export": "model.h5"}, "model.h5"),
    ],
)
def test_what_cannot_be_or_has_no_effect_is_refused(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        Config(**settings)


def test_an_optimizer_that_the_recipe_has_no_rate_for_needs_one() -> None:
    with pytest.raises(UsageError, match=r"--lr"):
        recipe.resolve(Config(synthetic=True, optimizer="lars"), 8, 1_281_167, 1000)
    run = recipe.resolve(Config(synthetic=True, optimizer="lars", lr=9.0), 8, 1_281_167, 1000)
    assert (run.optimizer, run.schedule.peak, run.trust_coefficient) == ("lars", 9.0, 0.001)


def test_fewer_images_than_a_step_are_refused() -> None:
    with pytest.raises(UsageError, match=r"100 images, fewer than one step of 2 ranks"):
        recipe.resolve(Config(synthetic=True, batch_size=51), 2, 100, 10)


def test_the_tutorials_recipe_turns_to_larc_for_128_gpus() -> None:
    config = Config(synthetic=True, recipe="tutorial")
    few, many = (recipe.resolve(config, gpus, 1_281_167, 1000) for gpus in (127, 128))

    assert (few.optimizer, few.schedule.kind, few.momentum, few.weight_decay) == (
        *("sgd", "poly", 0.9, 1e-4),
    )
    assert few.schedule.peak == pytest.approx(12.7)
    assert (many.optimizer, many.schedule.kind, many.momentum, many.weight_decay) == (
        *("larc", "linear-cosine", 0.977, 5e-4),
    )
    assert (many.schedule.peak, many.trust_coefficient, many.nesterov) == (3.7, 0.013, True)


def test_recipe_v15_is_nvidias() -> None:
    run = recipe.resolve(Config(synthetic=True), 8, 1_281_167, 1000)

    assert run.schedule.peak == pytest.approx(2.048)
    assert run.schedule.warmup_steps == 8 * run.steps_per_epoch
    assert (run.schedule.kind, run.momentum, run.weight_decay, run.label_smoothing) == (
        *("cosine", 0.875, 3.0517578125e-5, 0.1),
    )


def test_what_is_given_goes_before_the_recipe() -> None:
    given = Config(synthetic=True, lr=0.7, momentum=0.0, weight_decay=0.0, label_smoothing=0.0)
    run = recipe.resolve(given, 1, 1_281_167, 1000)

    assert (run.schedule.peak, run.momentum, run.weight_decay, run.label_smoothing) == (
        0.7,
        0,
        0,
        0,
    )


def test_the_warm_up_of_a_short_run_is_as_much_shorter() -> None:
    run = recipe.resolve(Config(synthetic=True, num_epochs=9.0), 8, 1_281_167, 1000)

    assert run.schedule.warmup_steps == round(0.8 * run.steps_per_epoch)
