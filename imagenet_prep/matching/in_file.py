"""Arrays that lie in files, since 14 million hashes would fill the memory."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt


def opened(path: Path, shape: tuple[int, ...]) -> npt.NDArray[np.uint64]:
    """Returns the array that a file holds."""
    return np.memmap(path, np.uint64, "r", shape=shape)


def forget(array: npt.NDArray[Any]) -> None:
    """Lets the kernel take back the pages of an array that lies in a file."""
    pages = getattr(array, "_mmap", None)
    if pages is not None:
        pages.madvise(mmap.MADV_DONTNEED)
