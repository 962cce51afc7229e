"""The framework-specific part of training; only the learner in use imports its framework."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from imagenet_prep.trainer.comm import Comm, cores, launched
from imagenet_prep.trainer.config import TrainConfig
from imagenet_prep.trainer.feed import Batch
from imagenet_prep.trainer.recipe import Run


class Learner(Protocol):
    """One rank of a run; all ranks call the same methods in the same order.

    `fast_half` says whether the device is faster with float16 than with float32. `versions` are
    those of the framework and its libraries, for the log.
    """

    comm: Comm
    fast_half: bool
    versions: dict[str, str]

    def hold(self, batch: Batch) -> Batch:
        """Converts a batch of NumPy arrays, channels last, to the framework's arrays."""

    def build(self, plan: Run, *, jit: bool) -> None:
        """Builds the network and its optimizer; call it before the methods below."""

    def values(self) -> list[Any]:
        """Returns weights, batch norm statistics and optimizer state as NumPy arrays."""

    def names(self) -> list[str]:
        """Returns the names of the arrays of `values`."""

    def shapes(self, *, only_model: bool) -> list[tuple[int, ...]]:
        """Returns the shapes of the arrays of `values`, or only of the model's."""

    def assign(self, values: Sequence[Any], *, only_model: bool) -> None:
        """Sets all variables, or only the model's, to arrays that `values` returned."""

    def share(self) -> None:
        """Copies all variables from rank 0."""

    def average_statistics(self) -> None:
        """Averages the batch norm statistics over all ranks."""

    def step(self, number: int, batch: Batch, rate: float, *, asks: bool) -> tuple[Any, Any]:
        """Runs one step; returns [loss, total loss, accuracy], and how many ranks ask to stop.

        The values are of this rank. Both results may still be computing; reading them waits.
        """

    def logits(self, images: Any) -> Any:
        """Returns the logits of images as a NumPy array [batch, classes]."""

    def export(self, path: Path) -> None:
        """Writes the model to a file or folder."""


def serves() -> bool:
    """Returns whether this process is an MXNet parameter server, which does not train."""
    return os.environ.get("DMLC_ROLE", "worker") != "worker"


def connect(config: TrainConfig) -> Learner:
    """Returns the learner of the chosen framework, connected to the other ranks."""
    if config.framework == "mxnet":
        # MXNet reads this on import. The import in a server process runs until the server ends.
        os.environ.setdefault("OMP_NUM_THREADS", str(cores(launched())))
        from imagenet_prep.trainer.mxnet_learner import MxnetLearner

        return MxnetLearner(config)
    if config.framework == "pytorch":
        from imagenet_prep.trainer.pytorch_learner import PytorchLearner

        return PytorchLearner(config)
    # Set before TensorFlow is imported, so that its start-up messages stay out of the table.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    from imagenet_prep.trainer.tensorflow_learner import TensorFlowLearner

    return TensorFlowLearner(config)
