"""The networks of `trainer.model` in PyTorch, with the same initialisation."""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Any

from torch import nn
from torch.nn import functional

from imagenet_prep.trainer.choices import residual_blocks

_CUT = 0.87962566103423978  # standard deviation of a normal distribution truncated at 2

_Layers = dict[str, Any]


def build(name: str, image_size: int, num_classes: int) -> Any:
    """Returns a network: [batch, 3, size, size] normalised images -> logits; see `model.build`."""
    if name in ("cifar", "mnist"):
        layers, features = (_cifar if name == "cifar" else _mnist)(image_size)
    else:
        layers, features = _resnet(name, image_size)
        layers |= {"avgpool": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten()}
    network = nn.Sequential(OrderedDict(layers | {"fc": nn.Linear(features, num_classes)}))
    for module in network.modules():
        if isinstance(module, nn.Conv2d) and module.bias is None:
            fan_out = module.out_channels * math.prod(module.kernel_size)
            spread = math.sqrt(2 / fan_out) / _CUT
            nn.init.trunc_normal_(module.weight, std=spread, a=-2 * spread, b=2 * spread)
        elif isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            nn.init.zeros_(module.bias)
        elif isinstance(module, nn.BatchNorm2d):
            module.num_batches_tracked = None  # Counting would cost a kernel per layer and step.
        elif isinstance(module, _Block):
            nn.init.zeros_(module.last.weight)
    nn.init.normal_(network.fc.weight, std=0.01)
    return network


def _resnet(name: str, image_size: int) -> tuple[_Layers, int]:
    if name == "tiny":
        layers = _stem(16, 3, 2 if image_size >= 48 else 1)
        inputs = 16
    else:
        layers = _stem(64, 7, 2) | {"maxpool": nn.MaxPool2d(3, 2, 1)}
        inputs = 64
    for path, convolutions in residual_blocks(name):
        layer, _, number = path.partition(".")
        block = _Block(inputs, *convolutions)
        if number:
            layers.setdefault(layer, nn.Sequential()).append(block)
        else:
            layers[layer] = block
        inputs = convolutions[-1][0]
    return layers, inputs


def _cifar(side: int) -> tuple[_Layers, int]:
    layers: _Layers = {}
    inputs = 3
    for stage, (filters, dropped) in enumerate(((32, 0.2), (64, 0.3), (128, 0.4))):
        for number, padding in enumerate((1, 0)):
            called = f"{stage}_{number}"
            layers[f"conv{called}"] = nn.Conv2d(inputs, filters, 3, padding=padding)
            layers[f"bn{called}"] = nn.BatchNorm2d(filters)
            layers[f"relu{called}"] = nn.ReLU()
            inputs = filters
        layers |= {f"pool{stage}": nn.MaxPool2d(2), f"dropout{stage}": nn.Dropout(dropped)}
        side = (side - 2) // 2
    return layers | _hidden(inputs * side**2, 512), 512


def _mnist(side: int) -> tuple[_Layers, int]:
    layers: _Layers = {}
    inputs = 3
    for filters in (16, 32):
        layers[f"conv{filters}"] = nn.Conv2d(inputs, filters, 5)
        layers |= {f"relu{filters}": nn.ReLU(), f"pool{filters}": nn.MaxPool2d(2)}
        inputs = filters
        side = (side - 4) // 2
    return layers | _hidden(inputs * side**2, 128), 128


def _hidden(inputs: int, width: int) -> _Layers:
    layer = {"flatten": nn.Flatten(), "hidden": nn.Linear(inputs, width)}
    return layer | {"relu": nn.ReLU(), "dropout": nn.Dropout(0.5)}


def _stem(filters: int, size: int, stride: int) -> _Layers:
    convolution = _convolution(3, filters, size, stride)
    return {"conv1": convolution, "bn1": nn.BatchNorm2d(filters), "relu": nn.ReLU(inplace=True)}


def _convolution(inputs: int, filters: int, size: int, stride: int) -> Any:
    return nn.Conv2d(inputs, filters, size, stride, (size - 1) // 2, bias=False)


class _Block(nn.Module):
    """A residual block of convolutions, each as (filters, size, stride)."""

    def __init__(self, inputs: int, *convolutions: tuple[int, int, int]) -> None:
        super().__init__()
        self._count = len(convolutions)
        width = inputs
        strides = 1
        for number, (filters, size, stride) in enumerate(convolutions, start=1):
            self.add_module(f"conv{number}", _convolution(width, filters, size, stride))
            self.add_module(f"bn{number}", nn.BatchNorm2d(filters))
            width = filters
            strides = strides * stride
        self.downsample: Any = None
        if strides > 1 or inputs != width:
            shortcut = _convolution(inputs, width, 1, strides)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(width))

    @property
    def last(self) -> Any:
        """The last batch norm, which starts at 0, so that the block starts as its shortcut."""
        return getattr(self, f"bn{self._count}")

    def forward(self, x: Any) -> Any:
        shortcut = x if self.downsample is None else self.downsample(x)
        for number in range(1, self._count + 1):
            x = getattr(self, f"bn{number}")(getattr(self, f"conv{number}")(x))
            if number == self._count:
                x = x + shortcut
            x = functional.relu(x, inplace=True)
        return x
