"""The networks: sizes that are published, and how they begin."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from imagenet_prep.trainer import model

pytestmark = pytest.mark.tf


def test_resnet50_is_version_1_5_with_its_published_number_of_weights(tf: Any) -> None:
    network = model.build("resnet50", 224, 1000)

    assert sum(int(np.prod(v.shape)) for v in network.trainable_variables) == 25_557_032
    strided = [
        layer.kernel_size
        for layer in network.layers
        if type(layer).__name__ == "Conv2D" and layer.strides == (2, 2)
    ]
    # The stem; then in every later stage the shortcut's 1x1 and, as v1.5 has it, the 3x3.
    assert sorted(strided) == [(1, 1)] * 3 + [(3, 3)] * 3 + [(7, 7)]
    assert network.output_shape == (None, 1000)


@pytest.mark.parametrize(("name", "blocks"), [("resnet50", 16), ("tiny", 3)])
def test_every_block_begins_as_its_shortcut(tf: Any, name: str, blocks: int) -> None:
    network = model.build(name, 32, 10)

    norms = [layer for layer in network.layers if "BatchNormalization" in type(layer).__name__]
    silent = [norm for norm in norms if not np.any(norm.gamma.numpy())]
    assert len(silent) == blocks
    assert all(np.all(norm.gamma.numpy() == 1) for norm in norms if norm not in silent)


@pytest.mark.parametrize("size", [16, 32, 64])
def test_tiny_takes_images_of_any_size(tf: Any, size: int) -> None:
    network = model.build("tiny", size, 7)

    logits = network(np.zeros((2, size, size, 3), np.float32), training=False)

    assert logits.shape == (2, 7)
    assert logits.dtype == tf.float32
