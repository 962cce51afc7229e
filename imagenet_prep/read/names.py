"""Reads keys and classes of the examples of a split without reading their images."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from imagenet_prep.dataset.samples import Head, Sample
from imagenet_prep.storage import dataset_store
from imagenet_prep.storage.folder import LocalStore

if TYPE_CHECKING:
    import numpy.typing as npt

    from imagenet_prep.read.records import Records


class Names:
    """Reads class indices and keys from the sample tables; without tables, from the records."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self._store = LocalStore(records.root)
        if records.manifest.has_samples:
            if records.cache is not None:
                records.cache.bring_samples(records.shards)
        else:
            logging.getLogger(__name__).warning(
                f"{records.dataset.where} has no tables of samples, so the key of each image is "
                "read from its record, which is slower. imagenet-prep adopt adds tables and "
                "leaves the images unchanged."
            )

    def of(self, shard: int, *, sides: bool = False) -> Iterable[Head]:
        """Yields the `Head` of each example of a shard; the image is b"" unless `sides` is set."""
        records = self._records
        if not records.manifest.has_samples:
            return ((*records.name(number), b"") for number in records.numbers_of(shard))
        return dataset_store.sample_heads(
            self._store, records.shards[shard], len(records.wnids), images=sides
        )

    def __iter__(self) -> Iterator[Head]:
        return itertools.chain.from_iterable(map(self.of, range(len(self._records.shards))))

    def mentions(self, shard: int, texts: Iterable[bytes]) -> bool:
        """Returns False if the table of a shard contains none of the strings in `texts`."""
        records = self._records
        has_samples = records.manifest.has_samples
        return not has_samples or dataset_store.table_mentions(
            self._store, records.shards[shard], texts
        )

    def samples(self, shard: int) -> Iterator[Sample]:
        """Yields the lines of a shard's table; verifies the table after the last line."""
        return dataset_store.sample_rows(
            self._store, self._records.shards[shard], len(self._records.wnids)
        )

    def at(self, number: int) -> tuple[int, str]:
        """Returns class index and key of one example."""
        shard, record = self._records.place(number)
        if not self._records.manifest.has_samples:
            return self._records.name(number)
        # Read the table to its end, which verifies it.
        return list(self.of(shard))[record][:2]


class Facts:
    """Columns of the sample tables; needs 4 bytes of memory per example, or 34 with keys."""

    def __init__(self, records: Records, fields: Collection[str]) -> None:
        self._records = records
        self._names = Names(records)
        self._fields = fields
        self._has_sides = not {"width", "height"}.isdisjoint(fields)
        self._keys: dict[int, npt.NDArray[np.bytes_] | list[bytes]] = {}
        self.classes = np.zeros(len(records), np.int32)
        self.sides = np.zeros((2, len(records)) if self._has_sides else (2, 0), np.int32)
        self._is_read = np.zeros(len(records.shards), bool)

    def read(self, numbers: Sequence[int]) -> None:
        """Reads the tables that contain these examples; skips tables that were read before."""
        if self._is_read.all():
            return
        for shard in np.unique(self._records.shards_of(numbers)).tolist():
            if not self._is_read[shard]:
                self._read(shard)

    def _read(self, shard: int) -> None:
        numbers = self._records.numbers_of(shard)
        part = slice(numbers.start, numbers.stop)
        classes, keys, images = zip(*self._names.of(shard, sides=self._has_sides), strict=True)
        self.classes[part] = classes
        if "key" in self._fields:
            self._keys[shard] = _compact([key.encode() for key in keys])
        if self._has_sides:
            self.sides[:, part] = np.array([i.split(b",")[1:3] for i in images], np.int64).T
        self._is_read[shard] = True

    def keys(self, numbers: npt.NDArray[np.int64]) -> list[str]:
        """Returns the keys of examples, after `read` has read their tables."""
        places = map(self._records.place, numbers.tolist())
        return [self._keys[shard][record].decode() for shard, record in places]


def _compact(keys: list[bytes]) -> npt.NDArray[np.bytes_] | list[bytes]:
    """Returns keys as an array, unless a few long keys would make it much larger."""
    # In an array, each key takes as many bytes as the longest one.
    num_bytes = max(map(len, keys)) * len(keys)
    return np.array(keys) if num_bytes <= 2 * sum(map(len, keys)) else keys
