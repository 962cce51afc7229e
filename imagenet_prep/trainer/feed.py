"""The readers of a training run: their interface, the splits to read, and synthetic batches."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np

from imagenet_prep.core.errors import UsageError
from imagenet_prep.core.strict_json import Json
from imagenet_prep.core.world import World
from imagenet_prep.dataset import schema
from imagenet_prep.dataset.class_list import ClassList
from imagenet_prep.trainer.config import TrainConfig
from imagenet_prep.trainer.interface import Colours, Interface

# A synthetic run has the steps and weights of a run on ImageNet.
_NUM_EXAMPLES = schema.OFFICIAL_NUM_EXAMPLES[schema.TRAIN]
_NUM_CLASSES = schema.OFFICIAL_NUM_CLASSES

# `images` [batch, size, size, 3], `class_index` [batch] int32 and `mask` [batch] bool, by name. If
# the mask is False, the class index is NO_CLASS.
Batch = Mapping[str, Any]


class BatchReader(Protocol):
    """The batches of one rank; implemented by `imagenet_prep.read.Reader`."""

    @property
    def num_classes(self) -> int:
        """The number of classes; all class indices are smaller."""

    @property
    def class_numbers(self) -> Sequence[int]:
        """The number of each class in the dataset's class list, by class index."""

    @property
    def class_list(self) -> ClassList:
        """The classes, by class index."""

    @property
    def classes_digest(self) -> str:
        """The sha256 of the dataset's class list, which may have more classes than are read."""

    @property
    def normalisation(self) -> tuple[Colours, Colours]:
        """Mean and standard deviation of R, G, B in [0, 255] that normalise the images."""

    @property
    def present(self) -> Sequence[int]:
        """The class indices with examples in the split, sorted."""

    @property
    def decoder(self) -> Mapping[str, str]:
        """The decoding backend and its device; empty if nothing is decoded."""

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits of the dataset."""

    @property
    def num_examples(self) -> int:
        """The number of examples in the split, over all ranks."""

    def __iter__(self) -> Iterator[Batch]:
        """Yields the remaining batches of the current epoch; in evaluation, all batches."""

    def state(self) -> Json:
        """Returns the reading position as JSON."""

    def receipt(self) -> Json:
        """Returns the settings that determine each step's images; empty for synthetic data."""

    def restore(self, state: Json) -> None:
        """Continues at the reading position that `state` returned."""

    def close(self) -> None:
        """Closes all open files."""


# (split, training, world) -> reader; (dataset, False, world, True) -> reader for --also
OpenReader = Callable[..., BatchReader]


class Evaluated(NamedTuple):
    """A split to evaluate on."""

    split: str
    reader: BatchReader


def splits(available: Collection[str], data_dir: str | None) -> tuple[str, str]:
    """Returns the splits to evaluate during and after training, which may be the same."""
    usable = [split for split in (schema.HOLDOUT, schema.VALIDATION) if split in available]
    if not usable:
        raise UsageError(
            f"{data_dir}: no split to evaluate on, only {', '.join(available)}. Prepare the "
            "dataset with --holdout 10%, which takes 10% of train, or train with --no-evaluation. "
            "To evaluate a network on all images of a new dataset: imagenet-prep train --data-dir "
            "SET --log-dir RUN --evaluate --also NEW, with the dataset of the run as SET."
        )
    return usable[0], usable[-1]


class Inputs:
    """The readers of a run.

    `watched` reads the split to evaluate during training, `last` the split to evaluate at the end
    or with `--evaluate`; both are None without evaluations. `also` maps names to `--also` readers.
    """

    def __init__(self, config: TrainConfig, world: World, open_reader: OpenReader) -> None:
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

    @property
    def interface(self) -> Interface:
        """The interface of a network that is trained on these images."""
        mean, std = self.train.normalisation
        return Interface(self.train.class_list.render().decode(), mean, std)

    def close(self) -> None:
        """Closes all readers."""
        evaluated = (split.reader for split in (self.watched, self.last) if split is not None)
        for reader in {self.train, *evaluated, *self.also.values()}:
            reader.close()


class Noise:
    """Repeats one batch of noise, to measure the training speed without reading data."""

    num_classes = _NUM_CLASSES
    num_examples = _NUM_EXAMPLES
    class_numbers = present = range(_NUM_CLASSES)
    class_list = ClassList((), ())
    classes_digest = class_list.digest
    normalisation = ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
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
        """Converts the batch to the framework's arrays, only once."""
        self._batch = hold(self._batch)

    def __iter__(self) -> Iterator[Batch]:
        for _ in range(self._steps):
            yield self._batch

    def state(self) -> Json:
        """Returns an empty state: all batches are the same."""
        return {}

    receipt = state

    def restore(self, state: Json) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""
