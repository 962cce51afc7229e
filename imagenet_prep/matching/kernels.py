"""Loads matching.c, and says what its structures hold."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

from imagenet_prep.core.errors import UsageError

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
    found.matching_sort.argtypes = [pointer, pointer, size, number, pointer, pointer, pointer]
    found.matching_join.argtypes = [pointer, pointer, number]
    found.matching_join.restype = size
    found.matching_prove.argtypes = [
        *(pointer, pointer, pointer, size, number, number, pointer, number)
    ]
    return found


@functools.lru_cache(maxsize=1)
def best() -> int:
    """Returns the best vector code that this processor has."""
    return int(library().matching_best())
