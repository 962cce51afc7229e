"""The index of a shard: where its records lie, held against what the manifest says of the shard."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from imagenet_prep.core.errors import DataDamagedError
from imagenet_prep.dataset import naming, tfrecord
from imagenet_prep.dataset.manifest import Shard

if TYPE_CHECKING:
    import numpy.typing as npt

# Numbers of this many digits fit 63 bits. A line has two numbers, a blank and a line end.
_DIGITS = 18
_LINE_BYTES = 2 * _DIGITS + 2


def most_bytes(shard: Shard) -> int:
    """Returns how much of the index of a shard is read: one byte more than it may have."""
    return min(_LINE_BYTES * shard.examples, shard.index_bytes) + 1


def parse(content: bytes, shard: Shard, root: Path) -> npt.NDArray[np.int64]:
    """Returns [records, 2]: offset and size in bytes of each record; `root` is for errors."""
    path = root / naming.index_name(shard.name)
    words = content.split()
    try:
        # numpy takes each word for what int() takes, which is more than digits.
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
        f"{path}: does not fit {shard.name} with its {shard.examples:,} records in "
        f"{shard.num_bytes:,} bytes. Run imagenet-prep verify {root}"
    )
