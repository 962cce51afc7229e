"""Allowed values of training flags: frameworks, models, optimizers and recipes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

# The models for MXNet: ResNets of Gluon's model zoo, and two small networks.
GLUON_MODELS = (
    "resnet18",
    "resnet34",
    "resnet50-v1",
    "resnet101-v1",
    "resnet152-v1",
    "tiny",
    "mnist",
)
# The flags of which a framework only supports some values, and these values. The first value of
# --comm is the framework's default.
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
# File name suffixes of exported models; "" stands for a folder.
EXPORTED = {"tensorflow": ("", ".keras"), "mxnet": ("",), "pytorch": (".safetensors",)}
# The models that safetensors files can hold: torchvision's ResNets, and examples/tiny.py.
TORCHVISION = ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "tiny")
OPTIMIZERS = ("sgd", "lars", "larc", "adam", "rmsprop")
# The recipes' model, image size and epochs; `trainer.recipe` has the hyperparameters.
_IMAGENET = {"model": "resnet50", "image_size": 224, "num_epochs": 90.0, "eval_every": 0.0}
RECIPES: dict[str, dict[str, Any]] = {
    "tutorial": _IMAGENET,
    "v1.5": _IMAGENET,
    "article": _IMAGENET | {"model": "resnet50-v1"},
    "cifar10": {"model": "cifar", "image_size": 32, "num_epochs": 100.0, "eval_every": 1.0},
    "mnist": {"model": "mnist", "image_size": 28, "num_epochs": 2.0, "eval_every": 0.0},
}
LEAST_CIFAR = 22  # model cifar would reduce smaller images to nothing
# The number of blocks in each stage of a ResNet: He et al. 2015, table 1.
_PLAIN = {"resnet18": (2, 2, 2, 2), "resnet34": (3, 4, 6, 3), "tiny": (1, 1, 1)}
_BOTTLENECKS = {"resnet50": (3, 4, 6, 3), "resnet101": (3, 4, 23, 3), "resnet152": (3, 8, 36, 3)}


def residual_blocks(model: str) -> Iterator[tuple[str, tuple[tuple[int, int, int], ...]]]:
    """Yields each block's torchvision name, and (filters, size, stride) of its convolutions."""
    for stage, blocks in enumerate(_PLAIN.get(model) or _BOTTLENECKS[model.removesuffix("-v1")]):
        for block in range(blocks):
            name = f"block{stage}" if model == "tiny" else f"layer{stage + 1}.{block}"
            filters = (16 if model == "tiny" else 64) << stage
            stride = 2 if stage and not block else 1
            if model in _PLAIN:
                yield name, ((filters, 3, stride), (filters, 3, 1))
            else:
                first, second = (stride, 1) if model.endswith("-v1") else (1, stride)
                yield name, ((filters, 1, first), (filters, 3, second), (4 * filters, 1, 1))
