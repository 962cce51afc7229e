"""Keras' fit and evaluate over tuples of a reader, with TensorFlow below."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from imagenet_prep.core.world import World
from imagenet_prep.read import Reader, make_dataset
from tests.kit.reading import NUM_TRAIN, NUM_VALIDATION, scenes

__all__ = ["scenes"]

pytestmark = pytest.mark.tf

CLASSES = NUM_TRAIN + NUM_VALIDATION
BATCH = 8  # validation has 3 steps with 24 examples; the last 3 are padding


def opened(root: Path, split: str, framework: str = "tensorflow", **more: Any) -> Reader:
    usual: dict[str, Any] = {"backend": "native", "framework": framework, "world": World()}
    return make_dataset(root, split, BATCH, 16, **usual | more)


def model_of(keras: Any) -> Any:
    keras.utils.set_random_seed(3)
    layers = [keras.Input((16, 16, 3)), keras.layers.Flatten(), keras.layers.Dense(CLASSES)]
    model = keras.Sequential(layers)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    # Keras divides the loss of a step by the batch size, padding included; a metric does not.
    metric = keras.metrics.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.05), loss, weighted_metrics=["accuracy", metric])
    return model


def exact(model: Any, root: Path) -> tuple[float, float]:
    """Returns loss and accuracy over the real examples, computed with NumPy."""
    losses = []
    rights = []
    for batch in opened(root, "validation", "numpy"):
        mask = batch["mask"]
        labels = batch["class_index"][mask]
        logits = model.predict_on_batch(batch["images"][mask]).astype(np.float64)
        highest = logits.max(axis=1)
        sums = np.log(np.exp(logits - highest[:, None]).sum(axis=1)) + highest
        losses += (sums - logits[np.arange(len(labels)), labels]).tolist()
        rights += (logits.argmax(axis=1) == labels).tolist()
    assert len(losses) == NUM_VALIDATION
    return float(np.mean(losses)), float(np.mean(rights))


def test_tuples_of_tensorflow_are_images_labels_and_weights(tf: Any, scenes: Path) -> None:
    pairs = zip(
        opened(scenes, "validation", as_tuple=True),
        opened(scenes, "validation", "numpy"),
        strict=True,
    )
    for (images, labels, weights), named in pairs:
        assert all(isinstance(tensor, tf.Tensor) for tensor in (images, labels, weights))
        assert (images.dtype, labels.dtype, weights.dtype) == (tf.float32, tf.int32, tf.float32)
        assert np.array_equal(images, named["images"])
        assert np.array_equal(weights, named["mask"])
        assert np.array_equal(labels, np.where(named["mask"], named["class_index"], 0))
    assert np.array_equal(weights, [1] * 5 + [0] * 3)


@pytest.mark.parametrize("framework", ["tensorflow", "numpy"])
def test_evaluation_of_keras_ignores_padding(tf: Any, scenes: Path, framework: str) -> None:
    model = model_of(tf.keras)
    reader = opened(scenes, "validation", framework, as_tuple=True)
    for _ in range(2):
        found = model.evaluate(iter(reader), steps=len(reader), verbose=0, return_dict=True)
        loss, accuracy = exact(model, scenes)
        assert found["sparse_categorical_crossentropy"] == pytest.approx(loss, rel=1e-4)
        assert found["accuracy"] == pytest.approx(accuracy, rel=1e-4)
        assert found["loss"] == pytest.approx(loss * NUM_VALIDATION / 24, rel=1e-4)


def test_keras_trains_on_tuples(tf: Any, scenes: Path) -> None:
    """Its steps are those of `train_on_batch` with the images and labels of named batches."""
    fitted = model_of(tf.keras)
    stepped = model_of(tf.keras)
    reader = opened(scenes, "train", as_tuple=True, seed=4)
    named = opened(scenes, "train", "numpy", seed=4)
    for epoch in range(2):
        fitted.fit(iter(reader), steps_per_epoch=len(reader), shuffle=False, verbose=0)
        for batch in named:
            stepped.train_on_batch(batch["images"], batch["class_index"])
        assert reader.epoch == named.epoch == epoch + 1
        for one, other in zip(fitted.get_weights(), stepped.get_weights(), strict=True):
            np.testing.assert_allclose(one, other, atol=1e-4)
