"""The interface of the learners, which train with TensorFlow, PyTorch or MXNet."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from imagenet_prep.trainer.comm import Comm
from imagenet_prep.trainer.feed import Batch
from imagenet_prep.trainer.interface import SLOT, Interface
from imagenet_prep.trainer.recipe import Run


class Learner(Protocol):
    """One rank of a run; all ranks call the same methods in the same order.

    `fast_half` is True if the device is faster with float16 than with float32. `versions` has the
    versions of the framework and its libraries. `_variables` are first the model's, with the names
    `_names`, then the optimizer's. `_statistics` are the batch norm statistics.
    """

    comm: Comm
    fast_half: bool
    versions: dict[str, str]
    _plan: Run
    _names: list[str]
    _variables: list[Any]
    _statistics: list[Any]

    def hold(self, batch: Batch) -> Batch:
        """Converts a batch of NumPy arrays to the framework's arrays; images have channels last."""

    def build(self, plan: Run, *, jit: bool) -> None:
        """Builds the network and its optimizer; call it before the methods below."""

    def values(self) -> list[Any]:
        """Returns weights, batch norm statistics and optimizer state as NumPy arrays."""

    def names(self) -> list[str]:
        """Returns a name for each array of `values`; the optimizer's names are slot_0000, ..."""
        slots = range(len(self._variables) - len(self._names))
        return [*self._names, *(f"{SLOT}{number:04d}" for number in slots)]

    def shapes(self, *, only_model: bool) -> list[tuple[int, ...]]:
        """Returns the shapes of the arrays of `values`, or of only the model's arrays."""
        count = len(self._names) if only_model else None
        return [tuple(variable.shape) for variable in self._variables[:count]]

    def assign(self, values: Sequence[Any]) -> None:
        """Sets all variables, or only the model's, to `values`."""

    def share(self) -> None:
        """Replaces all variables with rank 0's."""
        self.comm.broadcast(self._variables, "variable")

    def average_statistics(self) -> None:
        """Averages the batch norm statistics over all ranks."""
        self.comm.average(self._statistics)

    def step(self, number: int, batch: Batch, rate: float, *, asks: bool) -> tuple[Any, Any]:
        """Runs one step; returns [loss, total loss, accuracy], and how many ranks want to stop.

        Losses and accuracy are of this rank's batch. Reading a result may wait for the device.
        """

    def logits(self, images: Any) -> Any:
        """Returns the logits of images as a NumPy array [batch, classes]."""

    def export(self, path: Path, interface: Interface) -> None:
        """Writes the model, its normalisation and the names of its classes to a file or folder."""
