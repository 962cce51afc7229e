"""The networks: ResNet-50 v1.5, and a small one of the same blocks."""

from __future__ import annotations

from typing import Any

# Sandler/Goyal's constants, as every ResNet-50 v1.5 has them.
_BN_MOMENTUM = 0.9
_BN_EPSILON = 1e-5


def build(name: str, image_size: int, num_classes: int) -> Any:
    """Returns a Keras model: [batch, size, size, 3] normalised images -> float32 logits.

    Kernels are drawn as He et al. 2015 (MSRA); the last batch norm of every block begins with
    gamma 0, so that each block begins as its shortcut (Goyal et al. 2017).

    Args:
      name: "resnet50": bottlenecks that stride in their 3x3 convolution (v1.5), 25.6 million
        weights; "tiny": plain blocks, 0.18 million weights, for images from 16 pixels.
      image_size: pixels of a side.
      num_classes: length of a row of logits.
    """
    import keras

    images = keras.Input((image_size, image_size, 3), name="images")
    if name == "resnet50":
        x = _convolution(images, 64, 7, 2)
        x = _batch_norm(x, relu=True)
        x = keras.layers.ZeroPadding2D(1)(x)
        x = keras.layers.MaxPooling2D(3, 2)(x)
        for stage, blocks in enumerate((3, 4, 6, 3)):
            for block in range(blocks):
                x = _bottleneck(x, 64 << stage, stride=2 if stage and not block else 1)
    else:
        # Larger images are halved first: the work stays that of 32 pixels.
        x = _convolution(images, 16, 3, 2 if image_size >= 48 else 1)
        x = _batch_norm(x, relu=True)
        for stage in range(3):
            x = _plain(x, 16 << stage, stride=2 if stage else 1)
    x = keras.layers.GlobalAveragePooling2D()(x)
    x = keras.layers.Dense(
        num_classes,
        kernel_initializer=keras.initializers.RandomNormal(stddev=0.01),
        name="classes",
    )(x)
    logits = keras.layers.Activation("linear", dtype="float32", name="logits")(x)
    return keras.Model(images, logits, name=name)


def _bottleneck(x: Any, filters: int, stride: int) -> Any:
    import keras

    shortcut = _shortcut(x, 4 * filters, stride)
    x = _batch_norm(_convolution(x, filters, 1, 1), relu=True)
    x = _batch_norm(_convolution(x, filters, 3, stride), relu=True)
    x = _batch_norm(_convolution(x, 4 * filters, 1, 1), gamma="zeros")
    return keras.layers.ReLU()(keras.layers.Add()([x, shortcut]))


def _plain(x: Any, filters: int, stride: int) -> Any:
    import keras

    shortcut = _shortcut(x, filters, stride)
    x = _batch_norm(_convolution(x, filters, 3, stride), relu=True)
    x = _batch_norm(_convolution(x, filters, 3, 1), gamma="zeros")
    return keras.layers.ReLU()(keras.layers.Add()([x, shortcut]))


def _shortcut(x: Any, filters: int, stride: int) -> Any:
    if stride == 1 and x.shape[-1] == filters:
        return x
    return _batch_norm(_convolution(x, filters, 1, stride))


def _convolution(x: Any, filters: int, size: int, stride: int) -> Any:
    import keras

    # "same" of TensorFlow pads a stride of 2 unevenly; this is what the published weights had.
    if size > 1:
        x = keras.layers.ZeroPadding2D((size - 1) // 2)(x)
    return keras.layers.Conv2D(
        filters,
        size,
        stride,
        use_bias=False,
        kernel_initializer=keras.initializers.VarianceScaling(2.0, "fan_out", "truncated_normal"),
    )(x)


def _batch_norm(x: Any, *, relu: bool = False, gamma: str = "ones") -> Any:
    import keras

    x = keras.layers.BatchNormalization(
        momentum=_BN_MOMENTUM, epsilon=_BN_EPSILON, gamma_initializer=gamma
    )(x)
    return keras.layers.ReLU()(x) if relu else x
