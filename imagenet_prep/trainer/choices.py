"""What may be chosen for a run: frameworks, models, optimizers, recipes; what each lacks."""

from __future__ import annotations

from typing import Any

# MXNet has these models: those of Gluon's model zoo, and two small nets.
GLUON_MODELS = (
    *("resnet18", "resnet34", "resnet50-v1", "resnet101-v1", "resnet152-v1", "tiny", "mnist"),
)
# The values that a framework has of a flag, if it does not have all of them. The first --comm is
# its default.
HAS: dict[str, dict[str, tuple[str, ...]]] = {
    "tensorflow": {"comm": ("horovod",)},
    "mxnet": {
        "comm": ("horovod", "dist_sync", "dist_device_sync"),
        "optimizer": ("sgd",),
        "precision": ("float32", "float16"),
        "backend": ("auto", "dali", "native"),
    },
    "pytorch": {"comm": ("ddp", "horovod"), "backend": ("auto", "dali", "native")},
}
FRAMEWORKS = tuple(HAS)
# How the names of what a framework exports end; a folder has no ending.
EXPORTED = {"tensorflow": ("", ".keras"), "mxnet": ("",), "pytorch": (".safetensors",)}
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
