"""`ExampleSource` gives single examples by number, for loaders that choose the order themselves."""

from __future__ import annotations

import operator
import threading
from collections.abc import Sequence
from typing import Any, Protocol, SupportsIndex

import numpy as np

from imagenet_prep.core.errors import UsageError

FIELDS = ("encoded", "class_index", "key")  # the default fields of an example


class _Examples(Protocol):
    """What a source needs of a `Reader`."""

    @property
    def num_examples(self) -> int: ...

    def state(self) -> dict[str, Any]: ...

    def batch_of(self, number: int, epoch: int, lock: threading.Lock) -> dict[str, Any]: ...


class ExampleSource:
    """The chosen examples of a reader, by number; created by `Reader.source`.

    Grain (`MapDataset.source`, `DataLoader`), torchtitan, Ray Data and a PyTorch DataLoader over a
    map-style dataset accept it. It can be pickled, and used from several threads.

    Example:
      >>> from imagenet_prep.read import decode, make_dataset
      >>> reader = make_dataset("/data/imagenet-480", "train", batch_size=8)
      >>> source = reader.source()
      >>> example = source[len(source) - 1]
      >>> list(example)
      ['encoded', 'class_index', 'key']
      >>> decode(example["encoded"], size=224).shape
      (224, 224, 3)
    """

    def __init__(self, reader: _Examples, epoch: int) -> None:
        """`reader` has batches of one example, and only this source uses it."""
        self._reader = reader
        self._epoch = epoch
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self._reader.num_examples

    def __getitem__(self, index: SupportsIndex) -> dict[str, Any]:
        """Returns one example, in record order; its fields have no batch axis.

        Raises:
          IndexError: there is no such example.
          DataDamagedError: its record is damaged; the message names shard, record and offset.
        """
        number = operator.index(index)
        count = len(self)
        if not -count <= number < count:
            raise IndexError(f"example {number} of {count:,}")
        batch = self._reader.batch_of(number % count, self._epoch, self._lock)
        return {name: _first(values) for name, values in batch.items()}

    def __repr__(self) -> str:
        # Grain stores this text in its checkpoints and compares it, so it has no path.
        state = self._reader.state()
        choice = f", choice={state['choice']}" if "choice" in state else ""
        return f"ExampleSource(dataset={state['dataset']!r}, split={state['split']!r}{choice})"

    def __reduce__(self) -> tuple[Any, ...]:
        return ExampleSource, (self._reader, self._epoch)


def _first(values: Any) -> Any:
    """Returns the only example's value of a field of a batch."""
    if isinstance(values, tuple):  # the arrays of several views
        return tuple(_first(array) for array in values)
    value = values[0]
    if isinstance(value, np.str_):
        return str(value)
    is_number = getattr(value, "ndim", None) == 0
    return np.asarray(value).item() if is_number else value


def require_random_access(reader: _Examples, fields: Sequence[str]) -> None:
    """Raises UsageError if single examples of a reader cannot be read in any order."""
    if reader.state()["nodes"] > 1:
        raise UsageError(
            "this host has only its part of a partitioned dataset, so single examples cannot be "
            "read in any order. Use a complete copy of the dataset"
        )
    if "mask" in fields:
        raise UsageError("fields= of a source cannot have 'mask': damaged records raise an error")
