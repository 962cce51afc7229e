"""Reads tables of samples from a store and verifies them."""

from __future__ import annotations

import contextlib
import hashlib
import io
import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import BinaryIO, TypeVar

from imagenet_prep.core.errors import DataDamagedError, StoreError
from imagenet_prep.dataset import naming, samples
from imagenet_prep.dataset.manifest import Shard
from imagenet_prep.dataset.samples import Head, Sample
from imagenet_prep.storage.ahead import ahead
from imagenet_prep.storage.fetch import as_file, hashed
from imagenet_prep.storage.store import Readable

# Tables up to this size are prefetched: those of ImageNet-21K in 1,024 shards are half as large.
_AHEAD_BYTES = 8 << 20
Row = TypeVar("Row")
Parse = Callable[[Iterable[bytes], str], Iterator[Row]]
Opened = contextlib.AbstractContextManager[BinaryIO]


def rows(store: Readable, shard: Shard, num_classes: float = math.inf) -> Iterator[Sample]:
    """Yields the samples of a shard in record order, with the checks and errors of `lines`."""
    where = store.where(_name(shard))
    return samples.parse(lines(store, shard), where, num_classes=num_classes)


def heads(
    store: Readable, shard: Shard, num_classes: int, *, images: bool = False
) -> Iterator[Head]:
    """Yields the class index, key and (if `images`) image columns of each sample of a shard."""
    where = store.where(_name(shard))
    return samples.heads(lines(store, shard), where, num_classes=num_classes, images=images)


def each(parse: Parse[Row], store: Readable, shards: Iterable[Shard]) -> Iterator[Iterator[Row]]:
    """Yields the result of `parse` for the table of each shard; prefetches the next few tables.

    If reading a table raises an error, the following tables are still yielded.
    """
    for shard, opening in ahead(partial(_opened, store), shards):
        yield parse(lines(store, shard, opening.result), store.where(_name(shard)))


def mentions(store: Readable, shard: Shard, texts: Iterable[bytes]) -> bool:
    """Returns False if a shard's table contains none of the texts; True if it may contain one."""
    with contextlib.suppress(StoreError), store.opened(_name(shard)) as file:
        data = file.read(min(shard.samples_bytes, _AHEAD_BYTES) + 1)
        if hashlib.sha256(data).hexdigest() == shard.samples_sha256:
            return any(text in data for text in texts)
    return True


def _name(shard: Shard) -> str:
    return naming.samples_name(shard.name)


def _opened(store: Readable, shard: Shard) -> Opened:
    """Opens a table; a small one is read into memory first."""
    opened = store.opened(_name(shard))
    if shard.samples_bytes > _AHEAD_BYTES:
        return opened
    with opened as file:
        return io.BytesIO(file.read(shard.samples_bytes + 1))


def lines(
    store: Readable, shard: Shard, opened: Callable[[], Opened] | None = None
) -> Iterator[bytes]:
    """Yields the lines of a shard's table, header first; verifies the table after the last line."""
    where = store.where(_name(shard))
    digest = hashlib.sha256()
    number = 0
    with opened() if opened else store.opened(_name(shard)) as file:
        for number, line in enumerate(samples.read_lines(as_file(hashed(file, [digest])))):
            if number > shard.examples:
                raise DataDamagedError(f"{where}: more than {shard.examples:,} lines")
            yield line
    if number < shard.examples:
        raise DataDamagedError(f"{where}: {number:,} lines, expected {shard.examples:,}")
    if (sha256 := digest.hexdigest()) != shard.samples_sha256:
        raise DataDamagedError(
            f"{where}: sha256 {sha256}, the manifest says {shard.samples_sha256}. Copy the "
            "table again from the original dataset."
        )
