"""Keys and classes of the examples of a split, without their images."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from imagenet_prep.dataset.samples import Head, Sample
from imagenet_prep.storage import tables
from imagenet_prep.storage.folder import LocalStore

if TYPE_CHECKING:
    from imagenet_prep.read.records import Records


class Names:
    """Class index and key of examples: from the tables of samples, or else from the records."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self._store = LocalStore(records.root)
        if records.manifest.has_samples:
            records.bring_samples()
        else:
            logging.getLogger(__name__).warning(
                f"{records.dataset.where} has no tables of samples, so each record is "
                "looked into for its key. imagenet-prep adopt writes tables, and leaves the "
                "images as they are."
            )

    def of(self, shard: int) -> Iterable[Head]:
        """Returns the class index and key of each example of a shard, and b"", one by one."""
        records = self._records
        if not records.manifest.has_samples:
            return ((*records.name(number), b"") for number in records.numbers_of(shard))
        return tables.heads(self._store, records.shards[shard], len(records.wnids))

    def __iter__(self) -> Iterator[Head]:
        return itertools.chain.from_iterable(map(self.of, range(len(self._records.shards))))

    def mentions(self, shard: int, texts: Iterable[bytes]) -> bool:
        """Returns whether the names of a shard may contain one of some texts."""
        records = self._records
        has_samples = records.manifest.has_samples
        return not has_samples or tables.mentions(self._store, records.shards[shard], texts)

    def having(self, shard: int, sha256: str) -> Iterator[tuple[int, Sample]]:
        """Yields number and sample of each example that is this file, or was in the source."""
        records, there = self._records, self._records.shards[shard]
        if not self.mentions(shard, [sha256.encode()]):
            return
        numbers = records.numbers_of(shard)
        # To its end, where the table is proven.
        for number, sample in list(
            zip(numbers, tables.rows(self._store, there, len(records.wnids)), strict=True)
        ):
            if sha256 in (sample.sha256, sample.source_sha256):
                yield number, sample

    def at(self, number: int) -> tuple[int, str]:
        """Returns those of one example."""
        shard, record = self._records.place(number)
        if not self._records.manifest.has_samples:
            return self._records.name(number)
        # To its end, where the table is proven.
        return list(self.of(shard))[record][:2]
