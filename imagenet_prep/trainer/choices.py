"""What may be chosen for a run: frameworks, models, optimizers, recipes; what MXNet has of them."""

from __future__ import annotations

from typing import Any

# MXNet has these models: those of Gluon's model zoo, and two small nets.
GLUON_MODELS = (
    *("resnet18", "resnet34", "resnet50-v1", "resnet101-v1", "resnet152-v1", "tiny", "mnist"),
)
# MXNet has these values of flags that have more with TensorFlow.
MXNET_HAS = {
    "optimizer": ("sgd",),
    "precision": ("float32", "float16"),
    "backend": ("auto", "dali", "native"),
}
FRAMEWORKS = ("tensorflow", "mxnet")
OPTIMIZERS = ("sgd", "lars", "larc", "adam", "rmsprop")
# The settings of each recipe that depend on neither ranks nor data set; the rest is in
# `trainer.recipe`.
_IMAGENET = {"model": "resnet50", "image_size": 224, "num_epochs": 90.0, "eval_every": 0.0}
RECIPES: dict[str, dict[str, Any]] = {
    "tutorial": _IMAGENET,
    "v1.5": _IMAGENET,
    "article": _IMAGENET | {"model": "resnet50-v1"},
    "cifar10": {"model": "cifar", "image_size": 32, "num_epochs": 100.0, "eval_every": 1.0},
    "mnist": {"model": "mnist", "image_size": 28, "num_epochs": 2.0, "eval_every": 0.0},
}
# The convolutions of model cifar leave nothing of images with a shorter side.
LEAST_CIFAR = 22


def usual_recipe(framework: str) -> str:
    """Returns the recipe of a run that names none."""
    return "article" if framework == "mxnet" else "v1.5"
