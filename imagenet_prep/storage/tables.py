"""Reads the table of samples of a shard from its store, and proves it on the way."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterable, Iterator

from imagenet_prep.core.errors import DataDamagedError, StoreError
from imagenet_prep.dataset import naming, samples
from imagenet_prep.dataset.manifest import Shard
from imagenet_prep.dataset.samples import Made, Sample
from imagenet_prep.storage.fetch import as_file, hashed
from imagenet_prep.storage.store import Readable


def rows(store: Readable, shard: Shard) -> Iterator[Sample]:
    """Yields the samples of a shard in the order of its records; proven and raising as `lines`."""
    return _each(samples.parse, store, shard)


def entries(store: Readable, shard: Shard) -> Iterator[bytes]:
    """Yields the entries of the samples of a shard, as `rows` does."""
    return _each(samples.entries, store, shard)


def heads(
    store: Readable, shard: Shard, *, images: bool = False
) -> Iterator[tuple[str, int, bytes]]:
    """Yields the beginnings of the lines, see `samples.heads`; as `rows` does."""
    return _each(functools.partial(samples.heads, images=images), store, shard)


def _each(
    parse: Callable[[Iterable[bytes], str], Iterator[Made]], store: Readable, shard: Shard
) -> Iterator[Made]:
    return parse(lines(store, shard), store.where(naming.samples_name(shard.name)))


def lines(store: Readable, shard: Shard) -> Iterator[bytes]:
    """Yields the lines of a shard's table, the header first.

    The table is proven when the last has been yielded, not before: whoever cannot take back what it
    does with the first reads all of them before.

    Raises:
      DataDamagedError: it is not the table that the manifest names.
      StoreError: it cannot be read.
    """
    name = naming.samples_name(shard.name)
    where, digest, number = store.where(name), hashlib.sha256(), 0
    try:
        with store.opened(name) as file:
            found = samples.read_lines(as_file(hashed(file, [digest])))
            for number, line in enumerate(found):
                if number > shard.examples:
                    raise DataDamagedError(f"{where}: more than {shard.examples:,} lines")
                yield line
    except OSError as error:
        raise StoreError(f"cannot read {where}: {error.strerror or error}") from error
    if number < shard.examples:
        raise DataDamagedError(f"{where}: {number:,} lines, expected {shard.examples:,}")
    if (sha256 := digest.hexdigest()) != shard.samples_sha256:
        raise DataDamagedError(
            f"{where}: sha256 {sha256}, the manifest says {shard.samples_sha256}. Fetch it again "
            "from where the data set was made."
        )
