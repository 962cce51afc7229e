"""Top-1, top-5 and loss of a split: every example counted once, over all ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from imagenet_prep.core.errors import DataDamagedError
from imagenet_prep.trainer.comm import Comm


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


def counter(model: Any) -> Callable[..., Any]:
    """Returns a function (images, class_index, mask) -> [examples, top1, top5, loss] as sums.

    Logits that are not finite count as wrong.
    """
    import tensorflow as tf

    @tf.function  # type: ignore[untyped-decorator]
    def count(images: Any, class_index: Any, mask: Any) -> Any:
        logits = model(images, training=False)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(class_index, logits)
        weights = tf.cast(mask, tf.float64)
        top5 = tf.math.in_top_k(class_index, logits, min(5, logits.shape[-1]))
        top1 = tf.math.in_top_k(class_index, logits, 1)
        columns = [tf.ones_like(weights), top1, top5, losses]
        return tf.stack([tf.reduce_sum(weights * tf.cast(c, tf.float64)) for c in columns])

    return count  # type: ignore[no-any-return]


def evaluate(
    count: Callable[..., Any], batches: Iterable[dict[str, Any]], expected: int, comm: Comm
) -> Score:
    """Returns the score of one pass over a split.

    Args:
      count: of `counter`.
      batches: of this rank, with padding masked; the same number on every rank.
      expected: examples of the split.
      comm: the ranks that share the split.

    Raises:
      DataDamagedError: another number of examples was counted.
    """
    import tensorflow as tf

    sums = tf.zeros([4], tf.float64)
    for batch in batches:
        sums += count(batch["images"], batch["class_index"], batch["mask"])
    examples, top1, top5, loss = comm.sum(sums).numpy().tolist()
    if int(examples) != expected:
        raise DataDamagedError(
            f"evaluation counted {int(examples):,} examples, expected {expected:,}. "
            "Run `imagenet-prep verify` on the data set."
        )
    return Score(int(examples), top1 / examples, top5 / examples, loss / examples)
