"""What matching.c takes and returns."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

from imagenet_prep.core import compiled

PLAIN, AVX2 = 0, 2
BUCKETS = 1 << 16
_LIBRARY = Path(__file__).with_name("_matching.so")


class Sorted(ctypes.Structure):
    """`sorted` in matching.c."""

    _fields_ = (("keys", ctypes.c_void_p), ("ids", ctypes.c_void_p), ("start", ctypes.c_void_p))


class Place(ctypes.Structure):
    """`place` in matching.c."""

    _fields_ = (("bucket", ctypes.c_int64), ("near", ctypes.c_int64), ("row", ctypes.c_int64))


class Join(ctypes.Structure):
    """`join` in matching.c."""

    _fields_ = (
        ("left", Sorted),
        ("right", Sorted),
        ("same", ctypes.c_int32),
        ("band", ctypes.c_int32),
        ("radius", ctypes.c_int32),
        ("band_radius", ctypes.c_int32),
        ("mirror", ctypes.c_uint64),
        ("end", ctypes.c_int64),
        ("pairs", ctypes.c_void_p),
        ("room", ctypes.c_int64),
    )


_POINTER, _NUMBER, _SIZE = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
_FUNCTIONS = {
    "matching_best": (_NUMBER,),
    "matching_sort": (None, _POINTER, _POINTER, _SIZE, _NUMBER, *[_POINTER] * 3),
    "matching_join": (_SIZE, _POINTER, _POINTER, _NUMBER),
    "matching_prove": (None, *[_POINTER] * 3, _SIZE, _NUMBER, _NUMBER, _POINTER, _NUMBER),
}


def library() -> ctypes.CDLL:
    """Returns matching.c; raises as `compiled.load`."""
    return compiled.load(_LIBRARY, **_FUNCTIONS)


@functools.lru_cache(maxsize=1)
def best() -> int:
    """Returns the best vector code that this processor has."""
    return int(library().matching_best())
