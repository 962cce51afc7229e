"""The row that is stored for each image: its hashes, and a small picture for quick comparisons."""

from __future__ import annotations

import hashlib
import mmap
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from imagenet_prep.codec import likeness

if TYPE_CHECKING:
    import numpy.typing as npt

# Change this with `ROW` or the hashes: rows with a different definition are computed again.
DEFINITION = "likeness-1"
SMALL = 32  # samples per side of the small picture
ROW = np.dtype(
    [
        ("whole", "<u8", 4),
        ("window", "<u8", 4),
        ("means", "<u8"),  # a digest of the means, equal for images with equal pixels
        ("strong", "<u2"),
        ("rough", "<u2"),
        ("sound", "u1"),
        ("small", "u1", (SMALL, SMALL)),
    ]
)
# An image has enough detail if at least LEAST_STRONG of its frequencies have an amplitude of a
# quarter of a grey level, and at least LEAST_ROUGH of its cells differ from their surroundings by a
# grey level. Re-encoding removes detail, so one image of a pair must reach these numbers, and the
# second image only this share (LESS) of them.
LEAST_STRONG = 128
LEAST_ROUGH = 820
LESS = 0.75


def row(means: npt.NDArray[np.uint16]) -> npt.NDArray[Any]:
    """Returns the row of an image, given the result of `likeness.means`."""
    result = np.zeros((), ROW)
    measured = likeness.hashes(means)
    result["whole"], result["window"] = measured["bits"]
    result["strong"], result["rough"] = measured["strong"][0], measured["rough"][0]
    result["sound"] = 1
    digest = hashlib.blake2b(means.tobytes(), digest_size=8).digest()
    result["means"] = int.from_bytes(digest, "little")
    four = means.reshape(SMALL, 2, SMALL, 2).sum(axis=(1, 3), dtype=np.uint32)
    result["small"] = (four + 2 * likeness.SIXTEENTHS) // (4 * likeness.SIXTEENTHS)
    return result


def judged(rows: npt.NDArray[Any], share: float = 1) -> npt.NDArray[np.bool_]:
    """Returns whether each image has enough detail; the limits are multiplied by `share`."""
    enough = rows["strong"] >= share * LEAST_STRONG
    return np.asarray(enough & (rows["rough"] >= share * LEAST_ROUGH))


def of(data: bytes) -> bytes:
    """Returns the row of an image file; raises BadImageError if it cannot be decoded."""
    return row(likeness.means(data)).tobytes()


def forget(array: npt.NDArray[Any]) -> None:
    """Lets the kernel reclaim the pages of a memory-mapped array."""
    pages = getattr(array, "_mmap", None)
    if pages is not None:
        pages.madvise(mmap.MADV_DONTNEED)


def rows_of(array: npt.NDArray[np.uint64], ids: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint64]:
    """Returns the rows `ids` of an array; rows of a mapped file are read one by one."""
    # On kernels with large folios, each row read through the mapping would use 2 MB of memory.
    if not isinstance(array, np.memmap) or array.filename is None:
        return array[ids]
    rows = np.empty((len(ids), *array.shape[1:]), array.dtype)
    with open(array.filename, "rb", buffering=0) as file:
        for row, number in zip(rows, ids.tolist(), strict=True):
            os.preadv(file.fileno(), [row], number * array.strides[0])
    return rows
