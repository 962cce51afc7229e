"""Gathers the predictions of all ranks for the images of a split."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from imagenet_prep.core.canonical import Json
from imagenet_prep.dataset import predictions
from imagenet_prep.dataset.predictions import Prediction, are_finite, five, top
from imagenet_prep.storage.new_file import complete_file
from imagenet_prep.storage.os_errors import storage_errors
from imagenet_prep.trainer.comm import Comm
from imagenet_prep.trainer.feed import Batch

_KEY_BYTES = 64  # keys are padded to a multiple: MXNet's servers keep an array per shape


class Sheet(Protocol):
    """Collects scores by dataset and label list; implemented by `evaluation.sheet.Sheet`."""

    lists: list[Json]

    def enter(self, name: str, classes: Any, within: Any, keys: Sequence[str]) -> None:
        """Adds predictions: `classes`: top 5 among all classes; `within`: among the dataset's."""

    def columns(self, name: str) -> Mapping[str, Mapping[str, str]]:
        """Returns a dataset's labels; a predictions file has one column per list of labels."""

    @property
    def table(self) -> Any:
        """The scores of all datasets entered so far."""


class Predicted:
    """Collects the predictions of all ranks, batch by batch."""

    def __init__(self, comm: Comm, class_numbers: Sequence[int], present: Sequence[int]) -> None:
        self._comm = comm
        self._class_numbers = np.asarray(class_numbers)
        self._present = present
        self._predictions: list[Prediction] = []
        self._within: list[list[int]] = []

    def see(self, batch: Batch, logits: Any) -> None:
        """Adds the predictions of one batch of each rank."""
        rows = np.asarray(logits, np.float64)
        with np.errstate(invalid="ignore"):
            shares = np.exp(rows - rows.max(1, keepdims=True))
            shares = np.nan_to_num(shares / shares.sum(1, keepdims=True))
        # Sort logits, not probabilities: two logits may have the same probability, such as 0.
        order = top(rows)
        within = top(rows, self._present)
        most = order.shape[1]
        label, mask = (np.asarray(batch[name])[:, None] for name in ("class_index", "mask"))
        likely = np.take_along_axis(shares, order, 1)
        order[~are_finite(rows)] = -1
        mine = np.concatenate([mask, label, order, within, likely], 1).astype(np.float64)
        keys = np.asarray(batch["key"]).tolist()  # str from NumPy, bytes from TensorFlow
        keys = [key.encode() if isinstance(key, str) else key for key in keys]
        gathered = self._comm.gather(mine, f"predictions-{mine.shape[1]}")
        names = self._gathered(keys)
        for row, key in zip(gathered.reshape(-1, mine.shape[1]), names, strict=True):
            if row[0]:
                numbers = self._class_numbers[row[1:-most].astype(np.int64)].tolist()
                count = most if row[2] >= 0 else 0  # no prediction if logits are not finite
                first = numbers[1 : 1 + count]
                shares = row[-most:][:count].tolist()
                prediction = Prediction(key.decode(), numbers[0], tuple(first), tuple(shares))
                self._predictions.append(prediction)
                self._within.append(numbers[1 + most :] if count else [])

    def top5(self) -> tuple[Any, Any, list[str]]:
        """Returns the top 5 of all classes, the top 5 of the split's classes, and the keys."""
        classes = five([prediction.classes for prediction in self._predictions])
        return classes, five(self._within), [prediction.key for prediction in self._predictions]

    def _gathered(self, keys: Sequence[bytes]) -> list[bytes]:
        """Returns the keys of all ranks in rank order."""
        lengths = self._comm.gather(np.array([len(key) for key in keys], np.float64), "lengths")
        room = -(-max(1, int(lengths.max())) // _KEY_BYTES) * _KEY_BYTES
        mine = np.frombuffer(b"".join(key.ljust(room, b"\0") for key in keys), np.uint8)
        data = self._comm.gather(mine.astype(np.float64), f"keys-{room}").astype(np.uint8).tobytes()
        sizes = lengths.astype(np.int64).ravel().tolist()
        return [data[n * room : n * room + size] for n, size in enumerate(sizes)]

    def write(self, path: Path, more: Mapping[str, Mapping[str, str]]) -> None:
        """Writes the predictions file atomically, with the additional columns `more`."""
        stream = io.StringIO()
        predictions.write(stream, self._predictions, more)
        with storage_errors("write", path):
            path.parent.mkdir(parents=True, exist_ok=True)
        with complete_file(path, predictions.OWN) as file:
            file.write(stream.getvalue().encode())
