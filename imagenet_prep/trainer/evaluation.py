"""Evaluates a split: top-1, top-5, loss and predictions, with each example counted once."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from imagenet_prep.core.errors import DataDamagedError
from imagenet_prep.dataset import predictions
from imagenet_prep.dataset.predictions import MOST, Prediction, are_finite, five, top
from imagenet_prep.storage.local_file import complete_file, storage_errors
from imagenet_prep.trainer.comm import Comm
from imagenet_prep.trainer.feed import Batch, BatchReader


class Score(NamedTuple):
    """The result of an evaluation; accuracies are in [0, 1], `loss` has no label smoothing."""

    examples: int
    top1: float
    top5: float
    loss: float


def count(logits: Any, class_index: Any, mask: Any) -> Any:
    """Returns the sums [examples, top1, top5, loss] of a batch as float64.

    Only images in the mask are included. Non-finite logits are treated as a wrong prediction.
    """
    counted = np.asarray(mask, bool)
    rows, labels = np.asarray(logits, np.float64)[counted], np.asarray(class_index)[counted]
    of_label = np.take_along_axis(rows, labels[:, None], 1)
    sound = predictions.are_finite(rows)
    ahead = predictions.ahead_of(labels, rows)
    most = rows.max(1, keepdims=True)
    with np.errstate(invalid="ignore"):
        losses = np.log(np.exp(rows - most).sum(1)) + (most - of_label)[:, 0]
    columns = (np.ones(len(rows)), sound & (ahead < 1), sound & (ahead < 5), losses)
    return np.array([column.sum(dtype=np.float64) for column in columns])


def evaluate(
    logits: Callable[[Any], Any],
    batches: Iterable[Batch],
    expected: int,
    comm: Comm,
    see: Callable[[Batch, Any], None] | None = None,
) -> Score:
    """Returns the score of one pass over a split of `expected` examples.

    All ranks need the same number of batches; the mask excludes padding. `see` is called with each
    batch and its logits.
    """
    sums = np.zeros(4)
    for batch in batches:
        of_batch = logits(batch["images"])
        sums += count(of_batch, batch["class_index"], batch["mask"])
        if see is not None:
            see(batch, of_batch)
    examples, top1, top5, loss = comm.totals(sums)
    if int(examples) != expected:
        raise DataDamagedError(
            f"evaluation counted {int(examples):,} examples, expected {expected:,}. "
            "Run `imagenet-prep verify` on the dataset."
        )
    return Score(int(examples), top1 / examples, top5 / examples, loss / examples)


_KEY_BYTES = 64  # keys are padded to a multiple: MXNet's servers keep an array per shape
# What a rank sends about one image, besides the key. Classes are numbers of the network's outputs,
# padded with -1.
_FIELDS: list[Any] = [
    ("mask", np.bool_),  # False for an image that only fills up the last batch
    ("label", np.int32),
    ("classes", np.int32, MOST),  # the likeliest of all classes, first the likeliest
    ("shares", np.float64, MOST),  # their probabilities
    ("within", np.int32, MOST),  # the likeliest of the classes that the split has
]


class Predicted:
    """Collects the predictions of all ranks, batch by batch."""

    def __init__(self, comm: Comm, reader: BatchReader) -> None:
        self._comm = comm
        self._class_numbers = np.asarray(reader.class_numbers)
        self._wnids = reader.class_list.wnids
        self._classes_digest = reader.classes_digest
        self._present = reader.present
        self._predictions: list[Prediction] = []
        self._within: list[list[int]] = []

    def see(self, batch: Batch, logits: Any) -> None:
        """Adds the predictions of one batch of each rank."""
        scores = np.asarray(logits, np.float64)
        with np.errstate(invalid="ignore"):
            shares = np.exp(scores - scores.max(1, keepdims=True))
            shares = np.nan_to_num(shares / shares.sum(1, keepdims=True))
        # Sort logits, not probabilities: two logits may have the same probability, such as 0.
        classes = top(scores)
        within = top(scores, self._present)
        keys = np.asarray(batch["key"]).tolist()  # str from NumPy, bytes from TensorFlow
        keys = [key.encode() if isinstance(key, str) else key for key in keys]
        rows = np.zeros(len(scores), [*_FIELDS, ("key", f"S{self._longest(keys)}")])
        rows["mask"] = batch["mask"]
        rows["label"] = batch["class_index"]
        rows["classes"] = five(classes)
        rows["shares"][:, : classes.shape[1]] = np.take_along_axis(shares, classes, 1)
        rows["within"] = five(within)
        rows["key"] = keys
        # There is no prediction if logits are not finite.
        for name in ("classes", "within"):
            rows[name][~are_finite(scores)] = -1
        everyone = self._gathered(rows)
        for row in everyone[everyone["mask"]]:
            is_class = row["classes"] >= 0
            numbers = self._class_numbers[row["classes"][is_class]].tolist()
            prediction = Prediction(
                row["key"].decode(),
                int(self._class_numbers[row["label"]]),
                tuple(numbers),
                tuple(row["shares"][is_class].tolist()),
                self._wnids[row["label"]],
            )
            self._predictions.append(prediction)
            present = row["within"][row["within"] >= 0]
            self._within.append(self._class_numbers[present].tolist())

    def top5(self) -> tuple[Any, Any, list[str]]:
        """Returns the top 5 of all classes, the top 5 of the split's classes, and the keys."""
        classes = five([prediction.classes for prediction in self._predictions])
        return classes, five(self._within), [prediction.key for prediction in self._predictions]

    def _longest(self, keys: Sequence[bytes]) -> int:
        """Returns the bytes of the longest key of all ranks, rounded up."""
        longest = self._comm.gather(np.array([max(map(len, keys))], np.float64), "longest key")
        return -(-max(1, int(longest.max())) // _KEY_BYTES) * _KEY_BYTES

    def _gathered(self, rows: Any) -> Any:
        """Returns the rows of all ranks in rank order."""
        # As bytes, because `gather` only takes numbers.
        mine = rows.view(np.uint8).astype(np.float64)
        everyone = self._comm.gather(mine, f"predictions-{rows.itemsize}")
        return everyone.astype(np.uint8).view(rows.dtype).ravel()

    def write(self, path: Path, more: Mapping[str, Mapping[str, str]]) -> None:
        """Writes the predictions file atomically, with the additional columns `more`."""
        stream = io.StringIO()
        predictions.write(stream, self._predictions, more, self._classes_digest)
        with storage_errors("write", path):
            path.parent.mkdir(parents=True, exist_ok=True)
        with complete_file(path, predictions.OWN) as file:
            file.write(stream.getvalue().encode())
