"""Reads the table of samples of a shard from its store, and proves it on the way."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator

from imagenet_prep.core.errors import DataDamagedError, StoreError
from imagenet_prep.dataset import naming, samples
from imagenet_prep.dataset.manifest import Shard
from imagenet_prep.dataset.samples import Made, Sample
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
    return _each(samples.parse, store, shard)


def entries(store: Store, shard: Shard) -> Iterator[bytes]:
    """Yields the entries of the samples of a shard, as `rows` does and raising as it does."""
    return _each(samples.entries, store, shard)


def _each(
    parse: Callable[[Iterable[bytes], str], Iterator[Made]], store: Store, shard: Shard
) -> Iterator[Made]:
    name = naming.samples_name(shard.name)
    where, digest, examples = store.where(name), hashlib.sha256(), 0
    try:
        with store.opened(name) as file:
            lines = samples.read_lines(as_file(hashed(file, [digest])))
            for each in parse(lines, where):
                examples += 1
                if examples > shard.examples:
                    raise DataDamagedError(f"{where}: more than {shard.examples:,} lines")
                yield each
    except OSError as error:
        raise StoreError(f"cannot read {where}: {error.strerror or error}") from error
    if examples < shard.examples:
        raise DataDamagedError(f"{where}: {examples:,} lines, expected {shard.examples:,}")
    if (found := digest.hexdigest()) != shard.samples_sha256:
        raise DataDamagedError(
            f"{where}: sha256 {found}, the manifest says {shard.samples_sha256}. Fetch it again "
            "from where the data set was made."
        )
