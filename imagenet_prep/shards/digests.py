"""Computes the SHA-256 of several images, two at a time to save time: see digests.c."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Sequence
from pathlib import Path

from imagenet_prep.core import compiled

_BYTES = 32
_LIBRARY = Path(__file__).with_name("_digests.so")
_TYPES = (ctypes.c_int, ctypes.c_int, *[ctypes.c_void_p] * 3)


def sha256(pieces: Sequence[bytes]) -> list[str]:
    """Returns the sha256 of each piece in hex; uses hashlib if the processor is not supported."""
    library = compiled.find(_LIBRARY, sha256=_TYPES)
    count = len(pieces)
    if library is not None:
        digests = ctypes.create_string_buffer(_BYTES * count)
        data = (ctypes.c_char_p * count)(*pieces)
        sizes = (ctypes.c_int64 * count)(*map(len, pieces))
        if library.sha256(count, data, sizes, digests):
            raw = digests.raw
            return [raw[at : at + _BYTES].hex() for at in range(0, len(raw), _BYTES)]
    return [hashlib.sha256(piece).hexdigest() for piece in pieces]
