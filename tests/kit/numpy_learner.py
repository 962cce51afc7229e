"""A learner that only uses NumPy, so tests of the loop need no slow framework."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from imagenet_prep.trainer.comm import Comm
from imagenet_prep.trainer.config import TrainConfig
from imagenet_prep.trainer.interface import Interface
from imagenet_prep.trainer.recipe import Run


class NumpyLearner:
    """One linear layer and its momentum; see `trainer.learner.Learner`."""

    fast_half = False
    versions = {"NumPy": np.__version__}  # noqa: RUF012 - never changed

    def __init__(self, config: TrainConfig) -> None:
        self.comm = Comm()
        self._seed = config.seed

    def hold(self, batch: dict[str, Any]) -> dict[str, Any]:
        return batch

    def build(self, plan: Run, *, jit: bool) -> None:  # noqa: ARG002 - the protocol's
        shape = (plan.image_size**2 * 3, plan.num_classes)
        first = np.random.default_rng(self._seed).normal(0, 0.01, shape)
        self._weights = first.astype(np.float32)
        self._momentum = np.zeros(shape, np.float32)

    def values(self) -> list[Any]:
        return [self._weights.copy(), self._momentum.copy()]

    def names(self) -> list[str]:
        return ["weights", "momentum"]

    def shapes(self, *, only_model: bool) -> list[tuple[int, ...]]:
        return [each.shape for each in self.values()[: 1 if only_model else 2]]

    def assign(self, values: Sequence[Any]) -> None:
        self._weights = values[0].copy()
        if len(values) > 1:
            self._momentum = values[1].copy()

    def share(self) -> None:
        pass

    def average_statistics(self) -> None:
        pass

    def step(
        self,
        number: int,  # noqa: ARG002 - the protocol's
        batch: dict[str, Any],
        rate: float,
        *,
        asks: bool,
    ) -> tuple[Any, Any]:
        rows = _rows(batch["images"])
        labels = np.asarray(batch["class_index"])
        with np.errstate(all="ignore"):  # so that the loop gets a nonfinite loss
            logits = rows @ self._weights
            shares = np.exp(logits - logits.max(1, keepdims=True))
            shares /= shares.sum(1, keepdims=True)
            loss = -np.log(shares[np.arange(len(labels)), labels]).mean()
            accuracy = (logits.argmax(1) == labels).mean()
            shares[np.arange(len(labels)), labels] -= 1
            self._momentum = np.float32(0.9) * self._momentum + rows.T @ shares / len(labels)
            self._weights = self._weights - np.float32(0.01 * rate) * self._momentum
        return np.array([loss, loss, accuracy]), int(asks)

    def logits(self, images: Any) -> Any:
        return _rows(images) @ self._weights

    def export(self, path: Path, interface: Interface) -> None:
        np.savez(path, interface.classes, *self.values())


def _rows(images: Any) -> Any:
    return np.asarray(images, np.float32).reshape(len(images), -1)
