"""The readers of a run: their interface, which splits they read, and a reader of noise."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np

from imagenet_prep.core.canonical import Json
from imagenet_prep.core.errors import UsageError
from imagenet_prep.core.world import World
from imagenet_prep.dataset import schema
from imagenet_prep.trainer.config import Config

# ImageNet's numbers, so that a synthetic run has as many steps and weights as a real one.
_NUM_EXAMPLES = schema.OFFICIAL_NUM_EXAMPLES[schema.TRAIN]
_NUM_CLASSES = schema.OFFICIAL_NUM_CLASSES

# `images` [batch, size, size, 3], `class_index` [batch] int32 and `mask` [batch] bool, by name.
Batch = Mapping[str, Any]


class BatchReader(Protocol):
    """The batches of one rank; imagenet_prep.read.Reader is one.

    Iterating yields the rest of the current epoch.
    """

    @property
    def num_classes(self) -> int:
        """Class indices are smaller than this."""

    @property
    def class_numbers(self) -> Sequence[int]:
        """The number of each class index in the class list of the data set."""

    @property
    def present(self) -> Sequence[int]:
        """The class indices of which the split has examples, sorted."""

    @property
    def decoder(self) -> Mapping[str, str]:
        """The backend that decodes, and its device; empty if nothing is decoded."""

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

    def receipt(self) -> Json:
        """Returns the settings that decide which images a step uses; empty if it uses none."""

    def restore(self, state: Json) -> None:
        """Continues at the position of `state`."""

    def close(self) -> None:
        """Closes the data."""


# (split, training, world) -> its reader; (set, False, world, True) -> that of another set, to
# evaluate on
OpenReader = Callable[..., BatchReader]


class Evaluated(NamedTuple):
    """A split that a run is evaluated on."""

    split: str
    reader: BatchReader


def splits(there: Collection[str], data_dir: str | None) -> tuple[str, str]:
    """Returns the splits to evaluate on during training and at its end, which may be the same."""
    found = [split for split in (schema.HOLDOUT, schema.VALIDATION) if split in there]
    if not found:
        raise UsageError(
            f"{data_dir}: it has only the split{'s' * (len(there) > 1)} {', '.join(there)}, and "
            "nothing to evaluate on. Prepare it with --holdout 10%, which holds that share of "
            "train out of it; or train with --no-evaluation."
        )
    return found[0], found[-1]


class Inputs:
    """The readers of a run.

    Attributes:
      watched: evaluated during training; None if nothing is evaluated.
      last: evaluated at the end, and by `--evaluate`.
      also: the other datasets to evaluate on, by name.
    """

    def __init__(self, config: Config, world: World, open_reader: OpenReader) -> None:
        self.watched: Evaluated | None = None
        self.last: Evaluated | None = None
        self.also: dict[str, BatchReader] = {}
        if config.synthetic:
            assert config.image_size is not None
            self.train: BatchReader = Noise(config.batch_size, config.image_size, world)
            return
        self.train = open_reader(schema.TRAIN, True, world)
        if not config.no_evaluation:
            watched, last = splits(self.train.splits, config.data_dir)
            self.last = self.watched = Evaluated(last, open_reader(last, False, world))
            if watched != last:
                self.watched = Evaluated(watched, open_reader(watched, False, world))
        self.also = {name: open_reader(name, False, world, True) for name in config.also}

    def close(self) -> None:
        """Closes the data."""
        evaluated = (each.reader for each in (self.watched, self.last) if each is not None)
        for reader in {self.train, *evaluated, *self.also.values()}:
            reader.close()


class Noise:
    """Yields the same batch of noise again and again, to measure training without input."""

    num_classes = _NUM_CLASSES
    num_examples = _NUM_EXAMPLES
    class_numbers = present = range(_NUM_CLASSES)
    splits = (schema.TRAIN,)
    decoder: Mapping[str, str] = MappingProxyType({})

    def __init__(self, batch_size: int, image_size: int, world: World) -> None:
        random = np.random.default_rng(world.rank)
        shape = (batch_size, image_size, image_size, 3)
        self._batch: Batch = {
            "images": random.standard_normal(shape, np.float32),
            "class_index": random.integers(_NUM_CLASSES, size=batch_size, dtype=np.int32),
            "mask": np.ones(batch_size, bool),
        }
        self._steps = _NUM_EXAMPLES // (batch_size * world.size)

    def be_held(self, hold: Callable[[Batch], Batch]) -> None:
        """Makes the batch what a framework holds, once and for all."""
        self._batch = hold(self._batch)

    def __iter__(self) -> Iterator[Batch]:
        for _ in range(self._steps):
            yield self._batch

    def state(self) -> Json:
        """Returns nothing: every batch is the same."""
        return {}

    receipt = state

    def restore(self, state: Json) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""
