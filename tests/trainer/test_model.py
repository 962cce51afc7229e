"""The networks: published sizes, logits of other implementations, and initial weights."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from tests.kit.lengths import long_except
from tests.kit.training import built

pytestmark = pytest.mark.tf

# The sizes are those of torchvision.
WEIGHTS = {
    "resnet18": 11_689_512,
    "resnet34": 21_797_672,
    "resnet50": 25_557_032,
    "resnet101": 44_549_160,
    "resnet152": 60_192_808,
    "resnet50-v1": 25_557_032,
    "resnet101-v1": 44_549_160,
    "resnet152-v1": 60_192_808,
}
SHORT = ("resnet18", "resnet50", "resnet50-v1")


def build(name: str, size: int, classes: int) -> Any:
    from imagenet_prep.trainer import tensorflow_learner

    return tensorflow_learner.build(name, size, classes)


def layers(network: Any, kind: str) -> list[Any]:
    """Returns the layers of a class in the order of their construction, which Keras does not keep.

    The shortcut of a block is built first: layer1.0.downsample.0, and then layer1.0.conv1.
    """

    def made(layer: Any) -> list[int]:
        numbers = re.sub(r"downsample\.\d", "0", layer.name)
        return [int(number) for number in re.findall(r"\d+", numbers)]

    return sorted((each for each in network.layers if type(each).__name__ == kind), key=made)


def scattered(network: Any) -> Any:
    """Gives a network weights that make each layer and its order matter."""
    rng = np.random.default_rng(5)
    for layer in layers(network, "Conv2D"):
        fan = np.prod(layer.kernel.shape[:3])
        drawn = rng.standard_normal(layer.kernel.shape, np.float32)
        layer.kernel.assign(drawn * np.float32((2 / fan) ** 0.5))
    for layer in layers(network, "BatchNormalization"):
        shape = layer.gamma.shape
        layer.gamma.assign(rng.uniform(0.3, 0.7, shape))
        layer.beta.assign(rng.normal(0, 0.1, shape))
        layer.moving_mean.assign(rng.normal(0, 0.1, shape))
        layer.moving_variance.assign(rng.uniform(0.5, 1.5, shape))
    classes = network.get_layer("classes")
    classes.kernel.assign(rng.normal(0, 0.05, classes.kernel.shape))
    classes.bias.assign(rng.normal(0, 0.1, classes.bias.shape))
    return network


def pictures() -> Any:
    return np.random.default_rng(1).normal(size=(2, 64, 64, 3)).astype(np.float32)


@pytest.mark.parametrize("name", long_except(SHORT, WEIGHTS))
def test_resnets_have_the_published_number_of_weights(tf: Any, name: str) -> None:
    network = built(name)

    assert sum(int(np.prod(v.shape)) for v in network.trainable_variables) == WEIGHTS[name]
    assert network.output_shape == (None, 1000)


@pytest.mark.parametrize(("name", "kernel"), [("resnet50", 3), ("resnet50-v1", 1), ("resnet18", 3)])
def test_v1_strides_in_1x1_and_v15_in_3x3(tf: Any, name: str, kernel: int) -> None:
    strided = [
        layer.kernel_size[0] for layer in layers(built(name), "Conv2D") if layer.strides == (2, 2)
    ]
    # The stem; then, in every later stage, the 1x1 of the shortcut and that of the block.
    assert strided == [7] + [1, kernel] * 3


# The short tests cover the strides of v1 above, and the rest of v1 by v1.5 below.
@pytest.mark.long
@pytest.mark.parametrize("name", ["resnet50", "resnet101", "resnet152"])
def test_v1_logits_equal_keras_applications(tf: Any, name: str) -> None:
    import keras

    ours = scattered(built(f"{name}-v1"))
    theirs = getattr(keras.applications, name.replace("resnet", "ResNet"))(
        weights=None, input_shape=(64, 64, 3), classifier_activation=None
    )
    named = {layer.name: layer for layer in theirs.layers}
    blocks = sorted(
        (n for n in named if re.fullmatch(r"(conv1|conv\d_block\d+_\d)_(conv|bn)", n)),
        key=lambda n: [int(part) for part in re.findall(r"\d+", n)],
    )
    for kind, suffix in (("Conv2D", "conv"), ("BatchNormalization", "bn")):
        of_theirs = [named[n] for n in blocks if n.endswith(suffix)]
        for mine, other in zip(layers(ours, kind), of_theirs, strict=True):
            biases = [np.zeros(mine.filters, np.float32)] if kind == "Conv2D" else []
            other.set_weights([*mine.get_weights(), *biases])
            if kind == "BatchNormalization":
                other.epsilon = mine.epsilon  # Keras uses 1.001e-5
    named["predictions"].set_weights(ours.get_layer("classes").get_weights())

    expected = theirs(pictures(), training=False).numpy()
    assert np.ptp(expected) > 1
    np.testing.assert_allclose(
        ours(pictures(), training=False).numpy(), expected, rtol=1e-3, atol=1e-3
    )


def by_hand(tf: Any, network: Any, blocks: tuple[int, ...], sizes: tuple[int, ...]) -> Any:
    """Returns the logits of a ResNet v1.5, written like torchvision's in a few lines of tf.nn."""
    made = zip(layers(network, "Conv2D"), layers(network, "BatchNormalization"), strict=True)

    def convolved(x: Any, size: int, stride: int) -> Any:
        convolution, norm = next(made)
        assert convolution.kernel.shape[0] == size
        x = tf.pad(x, [[0, 0], [size // 2] * 2, [size // 2] * 2, [0, 0]])
        x = tf.nn.conv2d(x, convolution.kernel.value, stride, "VALID")
        scale = norm.gamma.value * (norm.moving_variance.value + 1e-5) ** -0.5
        return (x - norm.moving_mean.value) * scale + norm.beta.value

    x = tf.nn.relu(convolved(tf.constant(pictures()), 7, 2))
    x = tf.nn.max_pool2d(tf.pad(x, [[0, 0], [1, 1], [1, 1], [0, 0]]), 3, 2, "VALID")
    for stage, count in enumerate(blocks):
        for block in range(count):
            stride = 2 if stage and not block else 1
            widened = not block and (stage or len(sizes) == 3)
            shortcut = convolved(x, 1, stride) if widened else x
            strided = sizes.index(3)
            for place, size in enumerate(sizes):
                x = convolved(x, size, stride if place == strided else 1)
                x = tf.nn.relu(x if place < len(sizes) - 1 else x + shortcut)
    classes = network.get_layer("classes")
    return (tf.reduce_mean(x, [1, 2]) @ classes.kernel.value + classes.bias.value).numpy()


@pytest.mark.parametrize(
    ("name", "blocks", "sizes"),
    long_except(
        [("resnet18", (2, 2, 2, 2), (3, 3)), ("resnet50", (3, 4, 6, 3), (1, 3, 1))],
        [
            ("resnet18", (2, 2, 2, 2), (3, 3)),
            ("resnet34", (3, 4, 6, 3), (3, 3)),
            ("resnet50", (3, 4, 6, 3), (1, 3, 1)),
            ("resnet101", (3, 4, 23, 3), (1, 3, 1)),
            ("resnet152", (3, 8, 36, 3), (1, 3, 1)),
        ],
    ),
)
def test_v15_logits_equal_a_plain_graph(
    tf: Any, name: str, blocks: tuple[int, ...], sizes: tuple[int, ...]
) -> None:
    network = scattered(built(name))
    expected = by_hand(tf, network, blocks, sizes)

    assert np.ptp(expected) > 1
    np.testing.assert_allclose(
        network(pictures(), training=False).numpy(), expected, rtol=1e-3, atol=1e-3
    )


@pytest.mark.parametrize(("name", "blocks"), [("resnet50", 16), ("tiny", 3)])
def test_blocks_start_with_a_last_scale_of_zero(tf: Any, name: str, blocks: int) -> None:
    begin = [
        type(norm.gamma_initializer).__name__ for norm in layers(built(name), "BatchNormalization")
    ]

    assert begin.count("Zeros") == blocks
    assert {*begin} == {"Zeros", "Ones"}


@pytest.mark.parametrize(
    ("name", "size"),
    [*(("tiny", size) for size in (16, 32, 64)), ("mnist", 16), ("mnist", 28), ("cifar", 22)],
)
def test_small_networks_take_images_of_any_size(tf: Any, name: str, size: int) -> None:
    network = build(name, size, 7)

    logits = network(np.zeros((2, size, size, 3), np.float32), training=False)

    assert logits.shape == (2, 7)
    assert logits.dtype == tf.float32


def test_the_network_of_cifar_equals_the_guides(tf: Any) -> None:
    from imagenet_prep.trainer.tensorflow_learner import dropout_seeds

    network = build("cifar", 32, 10)

    assert [layer.filters for layer in layers(network, "Conv2D")] == [32, 32, 64, 64, 128, 128]
    assert [layer.rate for layer in layers(network, "Dropout")] == [0.2, 0.3, 0.4, 0.5]
    # Convolutions, dense layers and batch norms.
    assert network.count_params() == 287_008 + 267_786 + 1_792
    assert len(dropout_seeds(network)) == 4
