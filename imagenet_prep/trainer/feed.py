"""What the trainer reads: the readers' interface, and noise in their place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from imagenet_prep.core.world import World

# ImageNet's, so that the arithmetic of a synthetic run is that of the real one.
_NUM_EXAMPLES = 1_281_167
_NUM_CLASSES = 1000


class Reader(Protocol):
    """The batches of one rank; imagenet_prep.read.Reader is one.

    A batch is a dict of `images` [batch, size, size, 3], `class_index` [batch] int32 and `mask`
    [batch] bool. Iterating yields the rest of the current epoch.
    """

    num_classes: int

    @property
    def num_examples(self) -> int:
        """Examples of the split, over all ranks."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yields the rest of the current epoch."""

    def state(self) -> dict[str, Any]:
        """Returns where reading stands, as JSON."""

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on where `state` was taken."""

    def close(self) -> None:
        """Lets go of the data."""


# (split, training, world) -> its reader
OpenReader = Callable[[str, bool, World], Reader]


class Noise:
    """One batch of noise, made once, again and again: how fast training is without input."""

    num_classes = _NUM_CLASSES
    num_examples = _NUM_EXAMPLES

    def __init__(self, batch_size: int, image_size: int, dtype: str, world: World) -> None:
        import tensorflow as tf

        random = tf.random.Generator.from_seed(world.rank)
        shape = [batch_size, image_size, image_size, 3]
        self._batch = {
            "images": tf.cast(random.normal(shape), dtype),
            "class_index": random.uniform([batch_size], maxval=_NUM_CLASSES, dtype=tf.int32),
            "mask": tf.ones([batch_size], tf.bool),
        }
        self._steps = _NUM_EXAMPLES // (batch_size * world.size)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for _ in range(self._steps):
            yield self._batch

    def state(self) -> dict[str, Any]:
        """Returns nothing: every batch is the same."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""
