"""Keys and classes of the examples of a split, without their images."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from imagenet_prep.core.errors import DataDamagedError
from imagenet_prep.storage import tables
from imagenet_prep.storage.folder import LocalStore

if TYPE_CHECKING:
    from imagenet_prep.read.records import Records

Name = tuple[int, str]


class Names:
    """Class index and key of examples: from the tables of samples, or else from the records."""

    def __init__(self, records: Records) -> None:
        """Takes a split; of a remote set the tables are fetched, and no shard.

        Raises:
          ImagenetPrepError: they cannot be had.
        """
        self._records = records
        self._store = LocalStore(records.root)
        if records.manifest.has_samples:
            records.bring_samples()
        else:
            logging.getLogger(__name__).warning(
                f"{records.root} has no tables of samples, so each record is looked into for its "
                "key. imagenet-prep adopt writes tables, and leaves the images as they are."
            )

    def of(self, shard: int) -> Iterator[Name]:
        """Yields class index and key of each example of a shard.

        Raises:
          DataDamagedError: the message names the table and its line, or the record.
          ImagenetPrepError: as for `Records.name`.
        """
        records = self._records
        if not records.manifest.has_samples:
            yield from map(records.name, records.numbers_of(shard))
            return
        there = records.shards[shard]
        for record, (key, class_index, _) in enumerate(tables.heads(self._store, there)):
            if class_index >= len(records.wnids):
                raise DataDamagedError(
                    f"{records.root}: the table of {there.name}, line {record + 2:,}, has class "
                    f"{class_index:,}, and there are {len(records.wnids):,}"
                )
            yield class_index, key

    def __iter__(self) -> Iterator[Name]:
        """Yields those of all examples, in the order of their records; raises as `of`."""
        return itertools.chain.from_iterable(map(self.of, range(len(self._records.shards))))

    def at(self, number: int) -> Name:
        """Returns those of one example; raises as `of`."""
        shard, record = self._records.place(number)
        if not self._records.manifest.has_samples:
            return self._records.name(number)
        # To its end, where the table is proven.
        return list(self.of(shard))[record]
