"""The optimizers make the same steps as a few lines of NumPy."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.tf
RATE = 0.1
MOMENTUM = 0.9
DECAY = 0.01
ETA = 0.02


def made(kind: str, variables: list[Any], *, nesterov: bool = False) -> Any:
    from imagenet_prep.trainer.tensorflow_learner import Optimizer

    plan = SimpleNamespace(
        optimizer=kind,
        momentum=MOMENTUM,
        nesterov=nesterov,
        weight_decay=DECAY,
        trust_coefficient=ETA,
    )
    return Optimizer(plan, variables)


def moved(tf: Any, kind: str, *, nesterov: bool = False, steps: int = 3) -> list[Any]:
    """Returns a kernel, a bias and a kernel of zeros after a few steps of one gradient each."""
    start, gradients = problem()
    variables = [tf.Variable(value) for value in start]
    optimizer = made(kind, variables, nesterov=nesterov)
    for _ in range(steps):
        optimizer.apply([tf.constant(gradient) for gradient in gradients], tf.constant(RATE))
    return [variable.numpy() for variable in variables]


def problem() -> tuple[list[Any], list[Any]]:
    rng = np.random.default_rng(7)
    shapes = [(4, 3), (3,), (2, 2)]
    start = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
    start[2][:] = 0
    return start, [rng.normal(size=shape).astype(np.float32) for shape in shapes]


def expected(kind: str, *, nesterov: bool = False, steps: int = 3) -> list[Any]:
    start, gradients = problem()
    results = []
    for weights, raw in zip(start, gradients, strict=True):
        slot = np.zeros_like(weights)
        for _ in range(steps):
            gradient = raw + DECAY * weights if weights.ndim > 1 else raw
            norms = np.linalg.norm(weights), np.linalg.norm(gradient)
            local = ETA * norms[0] / norms[1] if norms[0] else 1.0
            if kind == "larc":
                gradient = gradient * min(local / RATE, 1.0)
            elif kind == "lars" and weights.ndim > 1:
                gradient = gradient * local
            slot = MOMENTUM * slot + gradient
            step = gradient + MOMENTUM * slot if nesterov else slot
            weights = weights - RATE * step
        results.append(weights)
    return results


@pytest.mark.parametrize(
    ("kind", "nesterov"), [("sgd", False), ("sgd", True), ("larc", True), ("lars", False)]
)
def test_sgd_larc_and_lars_equal_numpys_steps(tf: Any, kind: str, nesterov: bool) -> None:
    for ours, numpys in zip(
        moved(tf, kind, nesterov=nesterov), expected(kind, nesterov=nesterov), strict=True
    ):
        np.testing.assert_allclose(ours, numpys, rtol=1e-5, atol=1e-7)


def test_momentum_equals_keras_sgd(tf: Any) -> None:
    import keras

    start, gradients = problem()
    variable = keras.Variable(start[1])
    theirs = keras.optimizers.SGD(RATE, momentum=MOMENTUM)
    theirs.build([variable])
    for _ in range(3):
        theirs.apply([tf.constant(gradients[1])], [variable])

    np.testing.assert_allclose(moved(tf, "sgd")[1], variable.numpy(), rtol=1e-6)


@pytest.mark.parametrize("kind", ["adam", "rmsprop"])
def test_adam_and_rmsprop_equal_keras(tf: Any, kind: str) -> None:
    import keras

    start, gradients = problem()
    variables = [keras.Variable(value) for value in start]
    theirs = {"adam": keras.optimizers.Adam, "rmsprop": keras.optimizers.RMSprop}[kind](RATE)
    theirs.build(variables)
    for _ in range(3):
        decayed = [
            gradient + DECAY * variable.numpy() if gradient.ndim > 1 else gradient
            for gradient, variable in zip(gradients, variables, strict=True)
        ]
        theirs.apply([tf.constant(gradient) for gradient in decayed], variables)

    for ours, variable in zip(moved(tf, kind), variables, strict=True):
        np.testing.assert_allclose(ours, variable.numpy(), rtol=1e-5, atol=1e-6)


def test_the_gradient_of_the_regularizer_is_the_decay(tf: Any) -> None:
    start, _ = problem()
    variables = [tf.Variable(value) for value in start]
    optimizer = made("sgd", variables)
    with tf.GradientTape() as tape:
        loss = optimizer.regularizer()
    kernel, bias, _ = tape.gradient(loss, variables)

    np.testing.assert_allclose(kernel.numpy(), DECAY * start[0], rtol=1e-6)
    assert bias is None
