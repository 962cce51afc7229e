"""The part of training that depends on the framework: network, optimizer, and other ranks.

The loop, the recipes, the log and the checkpoints know no framework. Only the learner of the
framework that trains is imported.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from imagenet_prep.trainer.comm import Comm, cores, launched
from imagenet_prep.trainer.config import Config
from imagenet_prep.trainer.feed import Batch
from imagenet_prep.trainer.recipe import Run


class Learner(Protocol):
    """One rank of a run; all ranks call the same methods in the same order.

    Attributes:
      comm: the other ranks.
      fast_half: whether the device computes faster in float16 than in float32.
      versions: of the framework, and of what it needs; for the log.
    """

    comm: Comm
    fast_half: bool
    versions: dict[str, str]

    def hold(self, batch: Batch) -> Batch:
        """Returns a batch of NumPy arrays, channels last, as the framework holds it."""

    def build(self, plan: Run, *, jit: bool) -> None:
        """Makes the network and its optimizer; to be called before all that follows."""

    def values(self) -> list[Any]:
        """Returns weights, statistics of batch norms, and the optimizer's own, as NumPy arrays."""

    def names(self) -> list[str]:
        """Returns the names of what `values` returns."""

    def shapes(self, *, only_model: bool) -> list[tuple[int, ...]]:
        """Returns the shapes of what `values` returns, or of the part of it that is the model's."""

    def assign(self, values: Sequence[Any], *, only_model: bool) -> None:
        """Sets them, or those of the model alone, to what `values` returned: as many arrays."""

    def share(self) -> None:
        """Sets all variables to what they are on rank 0."""

    def average_statistics(self) -> None:
        """Sets the statistics of batch norms to their mean over the ranks."""

    def step(self, number: int, batch: Batch, rate: float, *, asks: bool) -> tuple[Any, Any]:
        """Makes a step; returns its values, and how many ranks ask to end.

        The values are [loss, total loss, share of images whose class was the likeliest] of this
        rank. Both may still be on their way: to read them waits.
        """

    def logits(self, images: Any) -> Any:
        """Returns what the network says of images, as a NumPy array [batch, classes]."""

    def export(self, path: Path) -> None:
        """Writes the model."""


def serves() -> bool:
    """Returns whether this process is a server of MXNet's, which has no ranks' work to do."""
    return os.environ.get("DMLC_ROLE", "worker") != "worker"


def connect(config: Config) -> Learner:
    """Returns the learner of the framework that is asked for; it has met the other ranks."""
    if config.framework == "mxnet":
        # Read when MXNet is imported, which a server's process does for as long as it lives.
        os.environ.setdefault("OMP_NUM_THREADS", str(cores(launched())))
        from imagenet_prep.trainer.mxnet_learner import MxnetLearner

        return MxnetLearner(config)
    if config.framework == "pytorch":
        from imagenet_prep.trainer.pytorch_learner import PytorchLearner

        return PytorchLearner(config)
    # Before it is imported: its start-up lines would stand in the table.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    from imagenet_prep.trainer.tensorflow_learner import TensorFlowLearner

    return TensorFlowLearner(config)
