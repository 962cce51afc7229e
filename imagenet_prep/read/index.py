"""Parses a shard's index, which has the offset and size of each record, and checks it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from imagenet_prep.core.errors import DataDamagedError
from imagenet_prep.dataset import naming, tfrecord
from imagenet_prep.dataset.manifest import Shard

if TYPE_CHECKING:
    import numpy.typing as npt

# Numbers of 18 digits fit into 63 bits. A line has two numbers, a space and a newline.
_DIGITS = 18
_LINE_BYTES = 2 * _DIGITS + 2


def most_bytes(shard: Shard) -> int:
    """Returns how many bytes of an index to read: one more than the longest valid index has."""
    return min(_LINE_BYTES * shard.examples, shard.index_bytes) + 1


def parse(content: bytes, shard: Shard, root: Path) -> npt.NDArray[np.int64]:
    """Returns [records, 2]: offset and size in bytes of each record; errors name `root`."""
    path = root / naming.index_name(shard.name)
    words = content.split()
    try:
        # Check for digits, since NumPy also accepts words like "+1" and "1_000".
        odd = next((w for w in words if not w.isdigit() or len(w) > _DIGITS), None)
        if odd is not None:
            raise ValueError(f"{odd[:32]!r} is not a byte offset")
        numbers = np.array(words, np.int64)
    except ValueError as error:
        raise DataDamagedError(f"{path}: cannot be read: {error}") from error
    index = numbers.reshape(-1, 2) if len(numbers) == 2 * shard.examples else None
    if index is not None and len(index):
        stops = index.sum(axis=1)
        starts = np.concatenate(([0], stops[:-1]))
        payloads = index[:, 1] - tfrecord.FRAMING_BYTES
        possible = ((payloads >= 0) & (payloads <= tfrecord.MAX_PAYLOAD_BYTES)).all()
        if possible and (index[:, 0] == starts).all() and stops[-1] == shard.num_bytes:
            return index
    raise DataDamagedError(
        f"{path}: does not match {shard.name}, which has {shard.examples:,} records and "
        f"{shard.num_bytes:,} bytes. Run imagenet-prep verify {root}"
    )
