"""Loads the compiled matching.c and declares the signatures of its functions."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

from imagenet_prep.core import compiled

# as in simd.h
PLAIN = 0
AVX2 = 2
AVX512 = 4
BUCKETS = 1 << 16
_LIBRARY = Path(__file__).with_name("_matching.so")
_POINTER, _NUMBER, _SIZE = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
_FUNCTIONS = {
    "matching_best": (_NUMBER,),
    "matching_join": (_SIZE, _POINTER, _POINTER, _NUMBER),
    "matching_prove": (None, *[_POINTER] * 2, _NUMBER, _SIZE, *[_NUMBER] * 2, _POINTER, _NUMBER),
}


def library() -> ctypes.CDLL:
    """Returns the compiled library of matching.c."""
    return compiled.load(_LIBRARY, **_FUNCTIONS)


@functools.lru_cache(maxsize=1)
def best() -> int:
    """Returns the best SIMD level of this processor."""
    return int(library().matching_best())
