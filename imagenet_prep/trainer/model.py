"""Keras models: ResNets for ImageNet, and small networks for CIFAR-10, MNIST, demos and tests."""

from __future__ import annotations

import math
from typing import Any

import keras

from imagenet_prep.trainer.choices import residual_blocks
from imagenet_prep.trainer.interface import Interface

# Batch norm constants of ResNet-50 v1.5 (Sandler, Goyal).
_BN_MOMENTUM = 0.9
_BN_EPSILON = 1e-5


def build(name: str, image_size: int, num_classes: int) -> Any:
    """Returns a Keras model: [batch, size, size, 3] normalised images -> float32 logits.

    Kernels are initialised as in He et al. 2015 (MSRA). The last batch norm of each residual block
    starts with gamma 0, so that the block starts as its shortcut (Goyal et al. 2017).

    "resnet18" and "resnet34" have plain blocks. "resnet50", "resnet101" and "resnet152" have
    bottlenecks with the stride in the 3x3 convolution (v1.5); with the suffix "-v1", the stride is
    in the first 1x1 convolution, as in He et al. "tiny" has plain blocks and 0.08 million weights.
    "cifar" is the VGG-like network of the SageMaker guide; it needs images of 22 pixels or more.
    "mnist" has two convolutions.
    """
    images = keras.Input((image_size, image_size, 3), name="images")
    if name == "cifar":
        x = _cifar(images)
    elif name == "mnist":
        x = _mnist(images)
    else:
        x = _resnet(images, name)
        x = keras.layers.GlobalAveragePooling2D()(x)
    x = keras.layers.Dense(
        num_classes, kernel_initializer=keras.initializers.RandomNormal(stddev=0.01), name="classes"
    )(x)
    logits = keras.layers.Activation("linear", dtype="float32", name="logits")(x)
    return keras.Model(images, logits, name=name)


def with_interface(network: Any, interface: Interface) -> Any:
    """Returns a Keras model for deployment: [batch, size, size, 3] -> [batch, classes] float32.

    The input is RGB from 0 to 255, the output probabilities. The layer `network.name` is the
    trained network, from normalised images to logits.
    """
    images = keras.Input(network.input_shape[1:], name="images")
    scale = [1 / std for std in interface.std]
    offset = [-mean / std for mean, std in zip(interface.mean, interface.std, strict=True)]
    x = keras.layers.Rescaling(scale, offset, dtype="float32", name="normalised")(images)
    x = keras.layers.Softmax(dtype="float32", name="probabilities")(network(x))
    return keras.Model(images, x, name=f"{network.name}_with_interface")


def dropout_seeds(network: Any) -> list[Any]:
    """Returns each dropout layer's seed: a [2] int64 variable that determines the next mask."""
    layers = [layer for layer in network.layers if isinstance(layer, keras.layers.Dropout)]
    return [layer.seed_generator.state.value for layer in layers]


def _resnet(x: Any, name: str) -> Any:
    """Applies a ResNet whose layers have torchvision's names."""
    if name == "tiny":
        stride = 2 if x.shape[1] >= 48 else 1  # halve large images, to limit their cost
        x = _batch_norm(_convolution(x, 16, 3, stride, "conv1"), "bn1", relu=True)
    else:
        x = _batch_norm(_convolution(x, 64, 7, 2, "conv1"), "bn1", relu=True)
        x = keras.layers.ZeroPadding2D(1)(x)
        x = keras.layers.MaxPooling2D(3, 2)(x)
    for block, convolutions in residual_blocks(name):
        x = _block(x, block, *convolutions)
    return x


def _cifar(x: Any) -> Any:
    """Applies the network of `get_model` in the SageMaker guide's model_def.py."""
    for stage, (filters, dropped) in enumerate(((32, 0.2), (64, 0.3), (128, 0.4))):
        for number, padding in enumerate(("same", "valid")):
            called = f"{stage}.{number}"
            x = keras.layers.Conv2D(filters, 3, padding=padding, name=f"conv{called}")(x)
            x = _batch_norm(x, f"bn{called}", relu=True)
        x = keras.layers.MaxPooling2D()(x)
        x = keras.layers.Dropout(dropped)(x)
    x = keras.layers.Flatten()(x)
    x = keras.layers.Dense(512, activation="relu", name="hidden")(x)
    return keras.layers.Dropout(0.5)(x)


def _mnist(x: Any) -> Any:
    """Applies a network as small as LeNet-5 (LeCun et al. 1998), for fast epochs on a CPU."""
    for filters in (16, 32):
        x = keras.layers.Conv2D(filters, 5, activation="relu", name=f"conv{filters}")(x)
        x = keras.layers.MaxPooling2D()(x)
    x = keras.layers.Flatten()(x)
    x = keras.layers.Dense(128, activation="relu", name="hidden")(x)
    return keras.layers.Dropout(0.5)(x)


def _block(x: Any, name: str, *convolutions: tuple[int, int, int]) -> Any:
    """Applies a residual block of convolutions, each as (filters, size, stride)."""
    width = convolutions[-1][0]
    stride = math.prod(stride for _, _, stride in convolutions)
    shortcut = x
    if stride > 1 or x.shape[-1] != width:
        shortcut = _convolution(x, width, 1, stride, f"{name}.downsample.0")
        shortcut = _batch_norm(shortcut, f"{name}.downsample.1")
    for number, convolution in enumerate(convolutions, start=1):
        x = _convolution(x, *convolution, f"{name}.conv{number}")
        if number < len(convolutions):
            x = _batch_norm(x, f"{name}.bn{number}", relu=True)
    x = _batch_norm(x, f"{name}.bn{len(convolutions)}", gamma="zeros")
    return keras.layers.ReLU()(keras.layers.Add()([x, shortcut]))


def _convolution(x: Any, filters: int, size: int, stride: int, name: str) -> Any:
    # TensorFlow's "same" padding is asymmetric for stride 2; published weights need symmetry.
    if size > 1:
        x = keras.layers.ZeroPadding2D((size - 1) // 2)(x)
    return keras.layers.Conv2D(
        filters,
        size,
        stride,
        use_bias=False,
        kernel_initializer=keras.initializers.VarianceScaling(2.0, "fan_out", "truncated_normal"),
        name=name,
    )(x)


def _batch_norm(x: Any, name: str, *, relu: bool = False, gamma: str = "ones") -> Any:
    x = keras.layers.BatchNormalization(
        momentum=_BN_MOMENTUM, epsilon=_BN_EPSILON, gamma_initializer=gamma, name=name
    )(x)
    return keras.layers.ReLU()(x) if relu else x
