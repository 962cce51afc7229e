"""The interface of readers that the trainer uses, and a reader of noise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np

from imagenet_prep.core.canonical import Json
from imagenet_prep.core.world import World
from imagenet_prep.dataset import schema

# ImageNet's numbers, so that a synthetic run has as many steps and weights as a real one.
_NUM_EXAMPLES = schema.OFFICIAL_NUM_EXAMPLES[schema.TRAIN]
_NUM_CLASSES = schema.OFFICIAL_NUM_CLASSES

# `images` [batch, size, size, 3], `class_index` [batch] int32 and `mask` [batch] bool, by name.
Batch = dict[str, Any]


class BatchReader(Protocol):
    """The batches of one rank; imagenet_prep.read.Reader is one.

    Iterating yields the rest of the current epoch.
    """

    @property
    def num_classes(self) -> int:
        """Class indices are smaller than this."""

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits of the data set."""

    @property
    def num_examples(self) -> int:
        """Examples of the split, over all ranks."""

    def __iter__(self) -> Iterator[Batch]:
        """Yields the rest of the current epoch."""

    def state(self) -> Json:
        """Returns the position of reading, as JSON."""

    def restore(self, state: Json) -> None:
        """Continues at the position of `state`."""

    def close(self) -> None:
        """Closes the data."""


# (split, training, world) -> its reader
OpenReader = Callable[[str, bool, World], BatchReader]


class Noise:
    """Yields the same batch of noise again and again, to measure training without input."""

    num_classes = _NUM_CLASSES
    num_examples = _NUM_EXAMPLES
    splits = (schema.TRAIN,)

    def __init__(
        self, batch_size: int, image_size: int, world: World, hold: Callable[[Any], Any]
    ) -> None:
        """Draws the batch, of NumPy arrays; `hold` returns it as a framework holds it."""
        random = np.random.default_rng(world.rank)
        shape = (batch_size, image_size, image_size, 3)
        self._batch = hold(
            {
                "images": random.standard_normal(shape, np.float32),
                "class_index": random.integers(_NUM_CLASSES, size=batch_size, dtype=np.int32),
                "mask": np.ones(batch_size, bool),
            }
        )
        self._steps = _NUM_EXAMPLES // (batch_size * world.size)

    def __iter__(self) -> Iterator[Batch]:
        for _ in range(self._steps):
            yield self._batch

    def state(self) -> Json:
        """Returns nothing: every batch is the same."""
        return {}

    def restore(self, state: Json) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""
