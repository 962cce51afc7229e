"""Steps and batch sizes, computed from the settings, the ranks and the dataset's size."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from typing import Any

from imagenet_prep.core.errors import UsageError
from imagenet_prep.core.strict_json import Json
from imagenet_prep.core.terminal import counted
from imagenet_prep.dataset import schema
from imagenet_prep.trainer.config import RECIPES, STEP_EPOCHS, WARMUP_START, Schedule, TrainConfig

_TUTORIAL_LARGE = 128  # from this number of GPUs on, the tutorial used LARC
_LOSS_SCALE = 1024.0
_LARC_LOSS_SCALE = 256.0
_TRUST = {"larc": 0.013, "lars": 0.001}
_USUAL: Json = {  # defaults of all recipes
    "optimizer": "sgd",
    "momentum": 0.9,
    "weight_decay": 1e-4,
    "label_smoothing": 0.0,
    "nesterov": False,
    "schedule": "poly",
    "warmup_epochs": 10.0,
    "warmup_lr": WARMUP_START,
}
# The SageMaker guide's cifar10-tf-horovod-sagemaker.py, with one rate for all optimizers. Keras'
# `decay` was not L2: it divided the rate by 1 + 2e-4 * step. Here, only the plateau lowers it.
_CIFAR10: Json = {
    "optimizer": "adam",
    "has_rate": ("adam", "rmsprop", "sgd"),
    "lr_of_rank": 0.001,
    "weight_decay": 0.0,
    "schedule": "plateau",
    "warmup_epochs": 5.0,
}
# `lr_of_256` is the learning rate for 256 images per step, `lr_of_rank` the one for each rank.
_RECIPES: dict[str, Json] = {
    # The tutorial's train.sh, but with 10 epochs of warm-up instead of 5: only 10 epochs match the
    # rates that the tutorial prints for 256 GPUs (tests/trainer/test_schedule.py).
    "tutorial": {"lr_of_256": 0.1, "nesterov": True},
    # NVIDIA's ResNet-50 v1.5 (DGX1_RN50_AMP_90E.sh): 76.9 to 77.0 % top-1 after 90 epochs.
    "v1.5": {
        "lr_of_256": 0.256,
        "momentum": 0.875,
        "weight_decay": math.ldexp(1, -15),
        "label_smoothing": 0.1,
        "schedule": "cosine",
        "warmup_epochs": 8.0,
    },
    # AWS's article of 2019 on MXNet with Horovod: the rate is 0.1 per GPU, so 6.4 on 64 GPUs. The
    # warm-up of 10 epochs and PolyScheduler(pwr=2) are from Horovod's mxnet_imagenet_resnet50.py of
    # that year.
    "article": {"lr_of_256": 0.1, "warmup_lr": 0.1},
    "cifar10": _CIFAR10,
    # Adam as in Horovod's MNIST example, for two epochs.
    "mnist": _CIFAR10 | {"schedule": "cosine", "warmup_epochs": 0.0},
}
# Horovod's example for MXNet, mxnet_mnist.py.
_MNIST_OF_MXNET: Json = {"optimizer": "sgd", "has_rate": ("sgd",), "lr_of_rank": 0.01}
_MANY_RANKS = {  # train_more_aug.sh, for 128 and 256 GPUs
    "optimizer": "larc",
    "lr": 3.7,
    "momentum": 0.977,
    "weight_decay": 5e-4,
    "schedule": "linear-cosine",
}


@dataclass(frozen=True)
class Run:
    """The hyperparameters of a run; a resumed run has those of its checkpoint (`as_begun`).

    `global_batch` is the number of images per step, over all ranks. An epoch is one of the reader:
    `steps_per_epoch` full steps. `plateau_steps` is the number of steps between evaluations for
    the schedule "plateau", else 0. `recipe` determines crops and normalisation. `--comm` may
    change.
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
    crops: str | None = None  # the flags that change the recipe's crops

    def epoch(self, step: int) -> float:
        """Returns the length of `step` steps in epochs, as a float."""
        if _counts_images(self.recipe, self.num_examples):
            return step * self.global_batch / self.num_examples
        return step / self.steps_per_epoch

    def facts(self) -> Json:
        """Returns all fields as JSON."""
        return dataclasses.asdict(self)


# Fields that must be equal to evaluate a checkpoint: the network and its input.
_NETWORK = ("framework", "recipe", "model", "num_classes", "image_size")


def difference(saved: Json, run: Run) -> str | None:
    """Describes the first difference between a checkpoint's run and `run`, or returns None."""
    current: Json = json.loads(json.dumps(run.facts()))
    for key in (*_NETWORK, *current, *saved):
        old = saved.get(key)
        new = current.get(key)
        if old != new and isinstance(old, dict) and isinstance(new, dict):
            # Report the rate first: it changes other fields of the schedule, too.
            for part in ("peak", *new, *old):
                if old.get(part) != new.get(part):
                    return _in_words(part, old.get(part), new.get(part))
        elif old != new:
            return _in_words(key, old, new)
    return None


def other_network(saved: Json, run: Run) -> str | None:
    """Describes the differences that prevent the evaluation of a checkpoint, or returns None."""
    facts = [(key, saved.get(key), vars(run)[key]) for key in _NETWORK]
    return "; ".join(_in_words(*fact) for fact in facts if fact[1] != fact[2]) or None


_WORDS = {  # names in messages for fields of `Run` and `Schedule`
    "peak": "learning rate",
    "kind": "schedule",
    "global_batch": "global batch size",
    "num_examples": "number of train images",
    "num_classes": "number of classes",
    "total_steps": "number of steps",
    "increased_aug": "changed colours",
}


def _in_words(name: str, saved: object, current: object) -> str:
    """Returns a phrase such as "learning rate 0.1, this one has 0.05"."""
    return f"{_WORDS.get(name, name.replace('_', ' '))} {saved}, this one has {current}"


def settled(config: TrainConfig) -> TrainConfig:
    """Replaces None by the recipe's model, image size, number of epochs and `eval_every`."""
    first = dict(RECIPES[config.recipe])
    if config.num_batches is not None:
        del first["num_epochs"]
    if config.synthetic or config.no_evaluation:
        first["eval_every"] = 0.0
    missing = {name: value for name, value in first.items() if getattr(config, name) is None}
    return dataclasses.replace(config, **missing)


def precision(config: TrainConfig, *, fast_half: bool) -> str:
    """Returns the type of activations on a device with or without fast float16."""
    return config.precision or ("float16" if config.half_if_fast and fast_half else "float32")


def precision_in_words(config: TrainConfig, plan: Run) -> str:
    """Describes the precision and loss scale of a run; names the recipe if it chose them."""
    if not config.half_if_fast:
        scale = f", loss scale {plan.loss_scale:g}" if plan.precision == "float16" else ""
        return plan.precision + scale
    if plan.precision == "float16":
        return f"precision float16, loss scale {plan.loss_scale:g}: recipe {config.recipe}"
    return "float32: this device has no fast half precision"


def increased_aug(config: TrainConfig, world_size: int) -> bool:
    """Returns whether training changes the colours of images at random."""
    return config.increased_aug or (config.recipe == "tutorial" and world_size >= _TUTORIAL_LARGE)


def resolve(
    config: TrainConfig,
    world_size: int,
    num_examples: int,
    num_classes: int,
    *,
    fast_half: bool = False,
    in_images: bool = False,
) -> Run:
    """Returns the hyperparameters of a run with these settings, ranks and training images.

    If `in_images`, --num-epochs counts images instead of full steps, as in version 0.1.0.
    """
    config = settled(config)
    assert config.model is not None
    assert config.image_size is not None
    batch = config.batch_size * world_size
    steps_per_epoch = num_examples // batch
    if not steps_per_epoch:
        raise UsageError(
            f"{counted(num_examples, 'image')} to train on, but one step of "
            f"{counted(world_size, 'rank')} needs {batch:,}. Use a smaller --batch-size or fewer "
            "ranks."
        )
    chosen = _chosen(config, batch, world_size)
    optimizer = chosen["optimizer"]
    epochs = config.num_epochs or 0
    if in_images or _counts_images(config.recipe, num_examples):
        total_steps = int(epochs * num_examples) // batch
    else:
        total_steps = round(epochs * steps_per_epoch)
    total_steps = config.num_batches or max(1, total_steps)
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
        crops=_crops(config),
    )


def _crops(config: TrainConfig) -> str | None:
    """Returns the flags that change the crops of the recipe; None without such flags."""
    words = []
    # Runs of version 0.1.0 had the crops "resnet-1" without a flag. A reader's state has the name.
    if config.crops not in (None, "resnet-1"):
        words.append(config.crops)
    for name, value in (
        ("area", config.crop_area and ",".join(config.crop_area)),
        ("aspect", config.crop_aspect and ",".join(config.crop_aspect)),
        ("filter", config.crop_filter),
        ("share", config.crop_share),
    ):
        if value is not None:
            words.append(f"{name} {value}")
    return "; ".join(words) or None


def _counts_images(recipe: str, num_examples: int) -> bool:
    """Returns whether the epochs of a run are counted in images instead of full steps.

    The tutorial's script does so. It printed the rates of 14,075 steps for 90 epochs on 32 GPUs,
    and of 1,759 on 256: 35 and 49 more than 90 times the full steps of ImageNet's train split.
    """
    return recipe == "tutorial" and num_examples == schema.OFFICIAL_NUM_EXAMPLES[schema.TRAIN]


def as_begun(config: TrainConfig, run: Run, ranks: int | None) -> Run:
    """Returns `run` with the rates and steps of its first start, which a resumed run keeps.

    `ranks` is the number of ranks of this start, with the same global batch. It is None if version
    0.1.0 started the run: then the epochs count images.
    """
    settings = config
    in_images = ranks is None
    if ranks is None:
        ranks = run.global_batch // config.batch_size
    else:
        settings = dataclasses.replace(config, batch_size=run.global_batch // ranks)
    begun = resolve(settings, ranks, run.num_examples, run.num_classes, in_images=in_images)
    # All other fields determine the network and the optimizer, which exist already.
    return dataclasses.replace(run, schedule=begun.schedule, total_steps=begun.total_steps)


def decays(variable: Any) -> bool:
    """Returns whether a variable has weight decay: only kernels do, not batch norms or biases."""
    return len(variable.shape) > 1


def eval_steps(config: TrainConfig, steps_per_epoch: int) -> int:
    """Returns the number of steps between evaluations, or 0 to evaluate only at the end."""
    return max(1, round(config.eval_every * steps_per_epoch)) if config.eval_every else 0


def _chosen(config: TrainConfig, batch: int, world_size: int) -> Json:
    """Returns the recipe's hyperparameters, overridden by flags."""
    recipe = _USUAL | _RECIPES[config.recipe]
    if config.recipe == "mnist" and config.framework == "mxnet":
        recipe |= _MNIST_OF_MXNET
    recipe["lr"] = recipe.pop("lr_of_256", 0.0) * batch / 256
    recipe["lr"] += recipe.pop("lr_of_rank", 0.0) * world_size
    if config.recipe == "tutorial" and world_size >= _TUTORIAL_LARGE:
        recipe |= _MANY_RANKS
    elif config.recipe == "tutorial" and config.optimizer == "larc":
        # The tutorial's script used this rate for LARC with any number of ranks.
        recipe |= {"optimizer": "larc", "lr": _MANY_RANKS["lr"]}
    has_rate = recipe.pop("has_rate", (recipe["optimizer"],))
    if config.lr is None and config.optimizer not in (None, *has_rate):
        raise UsageError(
            f"--optimizer {config.optimizer}: recipe {config.recipe} has no learning rate for "
            f"this optimizer on {counted(world_size, 'rank')}. Also set --lr."
        )
    if config.framework == "mxnet" and recipe["optimizer"] != "sgd" and config.optimizer is None:
        raise UsageError(
            f"--framework mxnet has no {recipe['optimizer']}, the optimizer of recipe "
            f"{config.recipe} on {counted(world_size, 'rank')}. Give --optimizer sgd and --lr."
        )
    # Flags that were not given are None, or False for switches.
    flags = {name: getattr(config, name) for name in recipe if name != "warmup_epochs"}
    return recipe | {n: v for n, v in flags.items() if v is not None and v is not False}


def _schedule(
    config: TrainConfig, chosen: Json, steps_per_epoch: int, total_steps: int
) -> Schedule:
    # In a run shorter than the recipe's, scale its epochs down to keep the shape of the schedule.
    epochs = config.num_epochs or total_steps / steps_per_epoch
    shrink = min(1.0, epochs / RECIPES[config.recipe]["num_epochs"])
    warmup_epochs = config.warmup_epochs
    if warmup_epochs is None:
        warmup_epochs = shrink * chosen["warmup_epochs"]
    drops: tuple[float, ...] = ()
    if chosen["schedule"] == "steps":
        drops = config.decay_epochs or tuple(epoch * shrink for epoch in STEP_EPOCHS)
    return Schedule(
        kind=chosen["schedule"],
        peak=chosen["lr"],
        warmup_steps=min(round(warmup_epochs * steps_per_epoch), total_steps - 1),
        total_steps=total_steps,
        drops=tuple(round(epoch * steps_per_epoch) for epoch in drops),
        start=chosen["warmup_lr"],
        rates=config.decay_rates,
    )
