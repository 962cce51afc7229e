"""The numbers of a run, from its settings, the number of ranks and the size of the data set."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from imagenet_prep.core.errors import UsageError
from imagenet_prep.trainer.config import Config
from imagenet_prep.trainer.schedule import STEP_EPOCHS, Schedule

# With this many GPUs or more, the tutorial's runs used LARC: train_more_aug.sh, for 128 and 256.
_TUTORIAL_LARGE = 128
_LOSS_SCALE = 1024.0
_RECIPE_EPOCHS = 90
_TRUST = {"sgd": 0.0, "larc": 0.013, "lars": 0.001}


@dataclass(frozen=True)
class Run:
    """All numbers of a run. Runs that are equal here may go on from each other's checkpoints.

    Attributes:
      global_batch: images a step, over all ranks.
      num_examples: images of the train split.
      total_steps: steps of the whole run; the last epoch may be a part of one.
      steps_per_epoch: full steps of one pass, by which warm-up and evaluation are counted.
    """

    model: str
    num_classes: int
    image_size: int
    global_batch: int
    num_examples: int
    total_steps: int
    steps_per_epoch: int
    optimizer: str
    nesterov: bool
    momentum: float
    weight_decay: float
    trust_coefficient: float
    label_smoothing: float
    precision: str
    loss_scale: float
    fp16_compression: bool
    seed: int
    schedule: Schedule

    def epoch(self, step: int) -> float:
        """Returns how often every image was seen before a step, as the tutorial counts."""
        return step * self.global_batch / self.num_examples

    def facts(self) -> dict[str, Any]:
        """Returns the numbers for JSON."""
        facts = dataclasses.asdict(self)
        facts["schedule"]["drops"] = list(self.schedule.drops)
        return facts


def resolve(config: Config, world_size: int, num_examples: int, num_classes: int) -> Run:
    """Returns the numbers of the run that `config` asks for.

    Raises:
      UsageError: there are fewer images than one step needs.
    """
    batch = config.batch_size * world_size
    steps_per_epoch = num_examples // batch
    if not steps_per_epoch:
        raise UsageError(
            f"{num_examples:,} images, fewer than one step of {world_size} ranks with "
            f"{config.batch_size} each. Choose a smaller --batch-size or fewer ranks."
        )
    recipe = _tutorial(batch, world_size) if config.recipe == "tutorial" else _v15(batch)
    if config.lr is None and config.optimizer not in (None, recipe["optimizer"]):
        raise UsageError(
            f"--optimizer {config.optimizer}: recipe {config.recipe} has no learning rate for it "
            f"on {world_size} ranks. Give --lr."
        )
    # A flag that was not given is None, and a switch is False.
    given = {name: getattr(config, name) for name in recipe if name != "warmup_epochs"}
    chosen = recipe | {n: v for n, v in given.items() if v is not None and v is not False}
    optimizer = chosen["optimizer"]
    total_steps = max(1, int(config.num_epochs * num_examples) // batch)
    return Run(
        model=config.model,
        num_classes=num_classes,
        image_size=config.image_size,
        global_batch=batch,
        num_examples=num_examples,
        total_steps=total_steps,
        steps_per_epoch=steps_per_epoch,
        optimizer=optimizer,
        nesterov=chosen["nesterov"] and optimizer != "lars",
        momentum=chosen["momentum"],
        weight_decay=chosen["weight_decay"],
        trust_coefficient=config.trust_coefficient or _TRUST[optimizer],
        label_smoothing=chosen["label_smoothing"],
        precision=config.precision,
        loss_scale=config.loss_scale or (_LOSS_SCALE if config.precision == "float16" else 1.0),
        fp16_compression=config.fp16_compression,
        seed=config.seed,
        schedule=_schedule(config, chosen, steps_per_epoch, total_steps),
    )


def _schedule(
    config: Config, chosen: dict[str, Any], steps_per_epoch: int, total_steps: int
) -> Schedule:
    # What recipes count in epochs is for 90 epochs; a shorter run keeps the shape.
    shrink = min(1.0, config.num_epochs / _RECIPE_EPOCHS)
    warmup_epochs = config.warmup_epochs
    if warmup_epochs is None:
        warmup_epochs = shrink * chosen["warmup_epochs"]
    kind = chosen["schedule"]
    drops = STEP_EPOCHS if kind == "steps" else ()
    return Schedule(
        kind=kind,
        peak=chosen["lr"],
        warmup_steps=min(round(warmup_epochs * steps_per_epoch), total_steps - 1),
        total_steps=total_steps,
        drops=tuple(round(epoch * shrink * steps_per_epoch) for epoch in drops),
    )


def _tutorial(batch: int, world_size: int) -> dict[str, Any]:
    """train.sh, and train_more_aug.sh where there are many GPUs.

    The script's warm-up of 5 epochs is not what the tutorial's 256 GPUs ran with: their printed
    rates fall together with 10 (tests/trainer/test_schedule.py).
    """
    shared = {"label_smoothing": 0.0, "nesterov": True, "warmup_epochs": 10.0}
    if world_size < _TUTORIAL_LARGE:
        return shared | {
            "optimizer": "sgd",
            "lr": 0.1 * batch / 256,
            "momentum": 0.9,
            "weight_decay": 1e-4,
            "schedule": "poly",
        }
    return shared | {
        "optimizer": "larc",
        "lr": 3.7,
        "momentum": 0.977,
        "weight_decay": 5e-4,
        "schedule": "linear-cosine",
    }


def _v15(batch: int) -> dict[str, Any]:
    """NVIDIA's ResNet-50 v1.5 (DGX1_RN50_AMP_90E.sh): 76.9 to 77.0 % after 90 epochs."""
    return {
        "optimizer": "sgd",
        "lr": 0.256 * batch / 256,
        "momentum": 0.875,
        "weight_decay": math.ldexp(1, -15),
        "label_smoothing": 0.1,
        "nesterov": False,
        "schedule": "cosine",
        "warmup_epochs": 8.0,
    }
