"""Reads the table of samples of a shard from its store, and proves it on the way."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from imagenet_prep.core.errors import DataDamagedError, StoreError
from imagenet_prep.dataset import naming, samples
from imagenet_prep.dataset.manifest import Shard
from imagenet_prep.dataset.samples import Sample
from imagenet_prep.storage.fetch import as_file, hashed
from imagenet_prep.storage.store import Store


def rows(store: Store, shard: Shard) -> Iterator[Sample]:
    """Yields the samples of a shard in the order of its records.

    The table is proven when the last has been yielded, not before: whoever cannot take back what it
    does with the first reads all of them before.

    Raises:
      DataDamagedError: it is not the table that the manifest names.
      StoreError: it cannot be read.
    """
    name = naming.samples_name(shard.name)
    where, digest, examples = store.where(name), hashlib.sha256(), 0
    try:
        with store.opened(name) as file:
            lines = samples.read_lines(as_file(hashed(file, [digest])))
            for sample in samples.parse(lines, where):
                examples += 1
                if examples > shard.examples:
                    raise DataDamagedError(f"{where}: more than {shard.examples:,} lines")
                yield sample
    except OSError as error:
        raise StoreError(f"cannot read {where}: {error.strerror or error}") from error
    if (found := digest.hexdigest()) != shard.samples_sha256:
        raise DataDamagedError(
            f"{where}: sha256 {found}, the manifest says {shard.samples_sha256}. Fetch it again "
            "from where the data set was made."
        )
