"""The numbers of a run, from its settings, the number of ranks and the size of the data set."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from typing import Any

from imagenet_prep.core.canonical import Json
from imagenet_prep.core.errors import UsageError
from imagenet_prep.core.terminal import counted
from imagenet_prep.trainer.choices import RECIPES
from imagenet_prep.trainer.config import Config
from imagenet_prep.trainer.schedule import STEP_EPOCHS, WARMUP_START, Schedule

# With this many GPUs or more, the tutorial's runs used LARC: train_more_aug.sh, for 128 and 256.
_TUTORIAL_LARGE = 128
_LOSS_SCALE, _LARC_LOSS_SCALE = 1024.0, 256.0
_TRUST = {"larc": 0.013, "lars": 0.001}
# A recipe has these settings unless it says otherwise.
_USUAL: Json = {
    "optimizer": "sgd",
    "momentum": 0.9,
    "weight_decay": 1e-4,
    "label_smoothing": 0.0,
    "nesterov": False,
    "schedule": "poly",
    "warmup_epochs": 10.0,
    "warmup_lr": WARMUP_START,
}
# The SageMaker guide's cifar10-tf-horovod-sagemaker.py, with the same rate for each of its
# optimizers. Its weight decay is no L2: Keras' `decay` divided the rate by 1 + 2e-4 a step. Here
# the plateau alone lowers it.
_CIFAR10: Json = {
    "optimizer": "adam",
    "has_rate": ("adam", "rmsprop", "sgd"),
    "lr_of_rank": 0.001,
    "weight_decay": 0.0,
    "schedule": "plateau",
    "warmup_epochs": 5.0,
}
# The settings of each recipe; the rate is that of 256 images a step, or of one rank.
_RECIPES: dict[str, Json] = {
    # train.sh. Its warm-up of 5 epochs is not what the tutorial's 256 GPUs ran with: their printed
    # rates fall together with 10 (tests/trainer/test_schedule.py).
    "tutorial": {"lr_of_256": 0.1, "nesterov": True},
    # NVIDIA's ResNet-50 v1.5 (DGX1_RN50_AMP_90E.sh): 76.9 to 77.0 % after 90 epochs.
    "v1.5": {
        "lr_of_256": 0.256,
        "momentum": 0.875,
        "weight_decay": math.ldexp(1, -15),
        "label_smoothing": 0.1,
        "schedule": "cosine",
        "warmup_epochs": 8.0,
    },
    # AWS's article of 2019 on MXNet with Horovod: 0.1 a GPU, 6.4 on its 64. Length of the warm-up
    # and decay are those of Horovod's example for MXNet, of the same year:
    # mxnet_imagenet_resnet50.py has 10 epochs and PolyScheduler(pwr=2).
    "article": {"lr_of_256": 0.1, "warmup_lr": 0.1},
    "cifar10": _CIFAR10,
    # Adam as in Horovod's MNIST example, for two epochs.
    "mnist": _CIFAR10 | {"schedule": "cosine", "warmup_epochs": 0.0},
}
# Horovod's example for MXNet, mxnet_mnist.py.
_MNIST_OF_MXNET: Json = {"optimizer": "sgd", "has_rate": ("sgd",), "lr_of_rank": 0.01}
# train_more_aug.sh.
_MANY_RANKS = {
    "optimizer": "larc",
    "lr": 3.7,
    "momentum": 0.977,
    "weight_decay": 5e-4,
    "schedule": "linear-cosine",
}


@dataclass(frozen=True)
class Run:
    """All numbers of a run. Runs that are equal here may go on from each other's checkpoints.

    Attributes:
      global_batch: images a step, over all ranks.
      num_examples: images of the train split.
      total_steps: steps of the whole run; the last epoch may be a part of one.
      steps_per_epoch: full steps of one pass, by which warm-up and evaluation are counted.
      increased_aug: whether colours are changed at random.
      plateau_steps: steps between the evaluations by which schedule "plateau" goes; else 0.
      framework: what trains. By which way ranks communicate may change from launch to launch.
      recipe: whose crops, means and deviations the network has learned from.
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
    increased_aug: bool = False
    plateau_steps: int = 0
    framework: str = "tensorflow"
    recipe: str = "v1.5"

    def epoch(self, step: int) -> float:
        """Returns how often every image was seen before a step, as the tutorial counts."""
        return step * self.global_batch / self.num_examples

    def facts(self) -> Json:
        """Returns the numbers for JSON."""
        return dataclasses.asdict(self)


# What an evaluation needs of a run: the network, and the images that it was made for.
_NETWORK = ("framework", "recipe", "model", "num_classes", "image_size")


def difference(there: Json, run: Run) -> str | None:
    """Returns the first thing in which a checkpoint's run, by its facts, differs from this one."""
    here: Json = json.loads(json.dumps(run.facts()))
    for key in (*_NETWORK, *here, *there):
        one, other = there.get(key), here.get(key)
        if one != other and isinstance(one, dict) and isinstance(other, dict):
            # The rate first: all else of a schedule follows from it, or from the number of steps.
            for part in ("peak", *other, *one):
                if one.get(part) != other.get(part):
                    return _in_words(part, one.get(part), other.get(part))
        elif one != other:
            return _in_words(key, one, other)
    return None


def other_network(there: Json, run: Run) -> str | None:
    """Returns all that keeps this run from evaluating the network of another, as `difference`."""
    here = run.facts()
    pairs = [(key, there.get(key), here[key]) for key in _NETWORK]
    return "; ".join(_in_words(*pair) for pair in pairs if pair[1] != pair[2]) or None


# The words for numbers of a run that have other names in `Run` and `Schedule`.
_WORDS = {
    "peak": "learning rate",
    "kind": "schedule",
    "global_batch": "batch of all ranks",
    "num_examples": "images of the train split",
    "num_classes": "number of classes",
    "total_steps": "number of steps",
    "increased_aug": "changed colours",
}


def _in_words(name: str, there: object, here: object) -> str:
    """Returns for example "learning rate 0.1, this one has 0.05"."""
    return f"{_WORDS.get(name, name.replace('_', ' '))} {there}, this one has {here}"


def settled(config: Config) -> Config:
    """Returns a config whose model, image size, length and evaluations are no longer None."""
    first = dict(RECIPES[config.recipe])
    if config.num_batches is not None:
        del first["num_epochs"]
    if config.synthetic or config.no_evaluation:
        first["eval_every"] = 0.0
    missing = {name: value for name, value in first.items() if getattr(config, name) is None}
    return dataclasses.replace(config, **missing)


def precision(config: Config, *, fast_half: bool) -> str:
    """Returns the type of activations on a device that is fast at half precision, or not."""
    return config.precision or ("float16" if config.half_if_fast and fast_half else "float32")


def precision_in_words(config: Config, plan: Run) -> str:
    """Returns type and loss scale of a run, and why where the recipe chose them."""
    if not config.half_if_fast:
        scale = f", loss scale {plan.loss_scale:g}" if plan.precision == "float16" else ""
        return plan.precision + scale
    if plan.precision == "float16":
        return f"precision float16, loss scale {plan.loss_scale:g}: recipe {config.recipe}"
    return "float32: this device has no fast half precision"


def increased_aug(config: Config, world_size: int) -> bool:
    """Returns whether colours are changed at random."""
    return config.increased_aug or (config.recipe == "tutorial" and world_size >= _TUTORIAL_LARGE)


def resolve(
    config: Config,
    world_size: int,
    num_examples: int,
    num_classes: int,
    *,
    fast_half: bool = False,
) -> Run:
    """Returns the numbers of a run with these settings, from the number of training images."""
    config = settled(config)
    assert config.model is not None
    assert config.image_size is not None
    batch = config.batch_size * world_size
    steps_per_epoch = num_examples // batch
    if not steps_per_epoch:
        raise UsageError(
            f"{counted(num_examples, 'image')}, fewer than one step of "
            f"{counted(world_size, 'rank')} with {config.batch_size} each. Choose a smaller "
            "--batch-size or fewer ranks."
        )
    chosen = _chosen(config, batch, world_size)
    optimizer = chosen["optimizer"]
    whole = int((config.num_epochs or 0) * num_examples)
    total_steps = config.num_batches or max(1, whole // batch)
    decay = _schedule(config, chosen, steps_per_epoch, total_steps)
    half = precision(config, fast_half=fast_half)
    scale = _LARC_LOSS_SCALE if optimizer == "larc" else _LOSS_SCALE
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
        momentum=chosen["momentum"] if optimizer not in ("adam", "rmsprop") else 0.0,
        weight_decay=chosen["weight_decay"],
        trust_coefficient=config.trust_coefficient or _TRUST.get(optimizer, 0.0),
        label_smoothing=chosen["label_smoothing"],
        precision=half,
        loss_scale=(config.loss_scale or scale) if half == "float16" else 1.0,
        fp16_compression=config.fp16_compression,
        seed=config.seed,
        schedule=decay,
        increased_aug=increased_aug(config, world_size),
        plateau_steps=eval_steps(config, steps_per_epoch) if decay.kind == "plateau" else 0,
        framework=config.framework,
        recipe=config.recipe,
    )


def decays(variable: Any) -> bool:
    """Returns whether a variable has weight decay: kernels, but no batch norms and biases."""
    return len(variable.shape) > 1


def eval_steps(config: Config, steps_per_epoch: int) -> int:
    """Returns the steps between evaluations; 0: there is one at the end only."""
    return max(1, round(config.eval_every * steps_per_epoch)) if config.eval_every else 0


def _chosen(config: Config, batch: int, world_size: int) -> Json:
    """Returns the recipe's numbers, with those that were given instead."""
    recipe = _USUAL | _RECIPES[config.recipe]
    if config.recipe == "mnist" and config.framework == "mxnet":
        recipe |= _MNIST_OF_MXNET
    of_256, of_rank = (recipe.pop(name, 0.0) for name in ("lr_of_256", "lr_of_rank"))
    recipe["lr"] = of_256 * batch / 256 + of_rank * world_size
    if config.recipe == "tutorial" and world_size >= _TUTORIAL_LARGE:
        recipe |= _MANY_RANKS
    elif config.recipe == "tutorial" and config.optimizer == "larc":
        # The tutorial's script had one rate for LARC.
        recipe |= {"optimizer": "larc", "lr": _MANY_RANKS["lr"]}
    has_rate = recipe.pop("has_rate", (recipe["optimizer"],))
    if config.lr is None and config.optimizer not in (None, *has_rate):
        raise UsageError(
            f"--optimizer {config.optimizer}: recipe {config.recipe} has no learning rate for it "
            f"on {counted(world_size, 'rank')}. Give --lr."
        )
    if config.framework == "mxnet" and recipe["optimizer"] != "sgd" and config.optimizer is None:
        raise UsageError(
            f"--framework mxnet has no {recipe['optimizer']}, the optimizer of recipe "
            f"{config.recipe} on {counted(world_size, 'rank')}: give --optimizer sgd and its --lr"
        )
    # A flag that was not given is None, and a switch is False.
    given = {name: getattr(config, name) for name in recipe if name != "warmup_epochs"}
    return recipe | {n: v for n, v in given.items() if v is not None and v is not False}


def _schedule(config: Config, chosen: Json, steps_per_epoch: int, total_steps: int) -> Schedule:
    # Recipes count in epochs of their full length; a shorter run keeps the shape of the rate.
    epochs = config.num_epochs or total_steps / steps_per_epoch
    shrink = min(1.0, epochs / RECIPES[config.recipe]["num_epochs"])
    warmup_epochs = config.warmup_epochs
    if warmup_epochs is None:
        warmup_epochs = shrink * chosen["warmup_epochs"]
    kind = chosen["schedule"]
    drops: tuple[float, ...] = ()
    if kind == "steps":
        drops = config.decay_epochs or tuple(epoch * shrink for epoch in STEP_EPOCHS)
    return Schedule(
        kind=kind,
        peak=chosen["lr"],
        warmup_steps=min(round(warmup_epochs * steps_per_epoch), total_steps - 1),
        total_steps=total_steps,
        drops=tuple(round(epoch * steps_per_epoch) for epoch in drops),
        start=chosen["warmup_lr"],
        rates=config.decay_rates,
    )
