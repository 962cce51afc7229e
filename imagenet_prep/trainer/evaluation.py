"""Which splits a run is evaluated on; top-1, top-5 and loss of a split, over all ranks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple

import numpy as np

from imagenet_prep.core.errors import DataDamagedError, UsageError
from imagenet_prep.dataset import schema
from imagenet_prep.trainer.comm import Comm
from imagenet_prep.trainer.feed import Batch


class Score(NamedTuple):
    """The sums of an evaluation, as shares.

    Attributes:
      examples: that were counted.
      top1, top5: share of them in [0, 1] whose class is the first, among the first five.
      loss: mean cross entropy, without label smoothing.
    """

    examples: int
    top1: float
    top5: float
    loss: float


class Splits(NamedTuple):
    """The splits on which a run is evaluated; both may be the same.

    Attributes:
      watched: decides while training.
      last: is for the end, and for `--evaluate`.
    """

    watched: str
    last: str


def splits(there: Collection[str], data_dir: str | None) -> Splits:
    """Returns on which splits of a data set a run is evaluated.

    Raises:
      UsageError: there is none for it.
    """
    found = [split for split in (schema.HOLDOUT, schema.VALIDATION) if split in there]
    if not found:
        raise UsageError(
            f"{data_dir}: it has only the split{'s' * (len(there) > 1)} {', '.join(there)}, and "
            "nothing to evaluate on. Prepare it with --holdout 10%, which holds that share of "
            "train out of it; or train with --no-evaluation."
        )
    return Splits(found[0], found[-1])


def count(logits: Any, class_index: Any, mask: Any) -> Any:
    """Returns [examples, top1, top5, loss] of a batch, as float64 sums.

    Logits that are not finite count as wrong.

    Args:
      logits: [batch, classes].
      class_index: [batch] integers.
      mask: [batch], False for what is not to be counted.
    """
    wanted = np.asarray(mask, bool)
    rows = np.asarray(logits, np.float64)[wanted]
    there = np.take_along_axis(rows, np.asarray(class_index)[wanted, None], 1)
    sound = np.isfinite(rows).all(1)
    ahead = (rows > there).sum(1)
    most = rows.max(1, keepdims=True)
    with np.errstate(invalid="ignore"):
        losses = np.log(np.exp(rows - most).sum(1)) + (most - there)[:, 0]
    columns = (np.ones(len(rows)), sound & (ahead < 1), sound & (ahead < 5), losses)
    return np.array([column.sum(dtype=np.float64) for column in columns])


def evaluate(
    logits: Callable[[Any], Any], batches: Iterable[Batch], expected: int, comm: Comm
) -> Score:
    """Returns the score of one pass over a split.

    Args:
      logits: of a batch's images, as a NumPy array.
      batches: of this rank, with padding masked; the same number on every rank.
      expected: examples of the split.
      comm: the ranks that share the split.

    Raises:
      DataDamagedError: another number of examples was counted.
    """
    sums = np.zeros(4)
    for batch in batches:
        sums += count(logits(batch["images"]), batch["class_index"], batch["mask"])
    examples, top1, top5, loss = comm.totals(sums)
    if int(examples) != expected:
        raise DataDamagedError(
            f"evaluation counted {int(examples):,} examples, expected {expected:,}. "
            "Run `imagenet-prep verify` on the data set."
        )
    return Score(int(examples), top1 / examples, top5 / examples, loss / examples)
