"""Loads matching.c."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

from imagenet_prep.core.errors import UsageError

PLAIN, AVX2, AVX512 = 0, 2, 4  # of simd.h
BUCKETS = 1 << 16
_LIBRARY = Path(__file__).with_name("_matching.so")


@functools.lru_cache(maxsize=1)
def library() -> ctypes.CDLL:
    """Returns matching.c; ctypes releases the GIL while it works.

    Raises:
      UsageError: it was not compiled.
    """
    try:
        found = ctypes.CDLL(str(_LIBRARY))
    except OSError as error:
        raise UsageError(
            f"{_LIBRARY} cannot be loaded: it is compiled when imagenet-prep is installed. Install "
            "a C compiler, or `pip install ziglang`, and then imagenet-prep again."
        ) from error
    pointer, number, size = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
    found.matching_join.argtypes = [pointer, pointer, number]
    found.matching_join.restype = size
    found.matching_prove.argtypes = [
        *(pointer, pointer, number, size, number, number, pointer, number)
    ]
    return found


@functools.lru_cache(maxsize=1)
def best() -> int:
    """Returns the best vector code that this processor has."""
    return int(library().matching_best())
