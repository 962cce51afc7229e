"""The records of a batch, read, proven and taken apart in one call of C: what gather.c does."""

from __future__ import annotations

import ctypes
import functools
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from imagenet_prep.dataset.jpeg import MAX_PIXELS
from imagenet_prep.read.dlpack import Lease

if TYPE_CHECKING:
    import numpy.typing as npt

_NUM_PLACES = 9
_LIBRARY = Path(__file__).with_name("_gather.so")


def gather(
    descriptors: Sequence[int],
    offsets: npt.NDArray[np.int64],
    sizes: npt.NDArray[np.int64],
    free: deque[npt.NDArray[Any]],
) -> tuple[memoryview, list[list[int] | None]]:
    """Reads records.

    Args:
      descriptors: of the open file of each.
      offsets, sizes: of each in its file, bytes.
      free: memory that batches have had; this one's is put there when nothing refers to it.

    Returns:
      The bytes of all, and of each where its parts lie in them, as `example.decode_at` takes it,
      and then height and width of its image, as the JPEG says them: None for a record that is
      damaged or unlike those of `prepare`, and for all of them where this was not compiled or the
      processor cannot.
    """
    library = _library()
    if library is None:
        return memoryview(b""), [None] * len(descriptors)
    batch = np.asarray(Lease(_memory(int(sizes.sum()), free), free))
    found = np.empty((len(descriptors), _NUM_PLACES), np.int64)
    files = np.array(descriptors, np.int32)
    arrays = (array.ctypes.data for array in (files, offsets, sizes))
    done = library.gather(len(files), *arrays, MAX_PIXELS, batch.ctypes.data, found.ctypes.data)
    if not done:
        return memoryview(b""), [None] * len(descriptors)
    return batch.data, [row if row[0] >= 0 else None for row in found.tolist()]


def _memory(num_bytes: int, free: deque[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    try:
        memory = free.pop()
    except IndexError:
        memory = np.empty(0, np.uint8)
    # One that is too small is not kept: soon all are as large as the largest batch.
    return memory if len(memory) >= num_bytes else np.empty(num_bytes, np.uint8)


@functools.cache
def _library() -> ctypes.CDLL | None:
    """Returns what was compiled when this package was installed, or None."""
    try:
        library = ctypes.CDLL(str(_LIBRARY))
    except OSError:
        return None
    pointer = ctypes.c_void_p
    library.gather.argtypes = [ctypes.c_int, *[pointer] * 3, ctypes.c_int64, *[pointer] * 2]
    return library
