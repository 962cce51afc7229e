"""Top-1, top-5 and loss of a split; each example is counted once over all ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from imagenet_prep.core.errors import DataDamagedError
from imagenet_prep.dataset import predictions
from imagenet_prep.trainer.comm import Comm
from imagenet_prep.trainer.feed import Batch


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
