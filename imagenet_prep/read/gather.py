"""Reads, verifies and parses the records of a batch with one call of gather.c."""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from imagenet_prep.core import compiled
from imagenet_prep.dataset.example import Places
from imagenet_prep.dataset.jpeg import MAX_PIXELS
from imagenet_prep.read.dlpack import leased

if TYPE_CHECKING:
    import numpy.typing as npt

# For each record, gather.c writes the fields of `Places`, then height and width of the image.
_NUM_PLACES = len(Places._fields)
_NUM_FOUND = _NUM_PLACES + 2
_LIBRARY = Path(__file__).with_name("_gather.so")
_POINTER = ctypes.c_void_p
_TYPES = (ctypes.c_int, ctypes.c_int, *[_POINTER] * 3, ctypes.c_int64, *[_POINTER] * 2)


def gather(
    descriptors: Sequence[int],
    offsets: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    free: deque[npt.NDArray[Any]],
) -> tuple[memoryview, list[tuple[Places, tuple[int, int]] | None]]:
    """Reads records into memory from `free`, given the file, offset and size of each record.

    Returns the bytes of all records. For each record, it also returns the offsets of its parts and
    the (height, width) of its JPEG, or None if the record is damaged or not in the format of
    `prepare`. All are None if gather.c was not compiled or the processor has no CRC32C instruction.
    """
    library = compiled.find(_LIBRARY, gather=_TYPES)
    if library is None:
        return memoryview(b""), [None] * len(descriptors)
    batch = leased(int(sizes.sum()), free)
    rows = np.empty((len(descriptors), _NUM_FOUND), np.int64)
    files = np.array(descriptors, np.int32)
    arrays = (array.ctypes.data for array in (files, offsets, sizes))
    done = library.gather(len(files), *arrays, MAX_PIXELS, batch.ctypes.data, rows.ctypes.data)
    if not done:
        return memoryview(b""), [None] * len(descriptors)
    return batch.data, [
        (Places(*row[:_NUM_PLACES]), (row[-2], row[-1])) if row[0] >= 0 else None
        for row in rows.tolist()
    ]
