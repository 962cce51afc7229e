"""Looks through a MAT-file of version 5 before SciPy reads it, which believes what it claims.

A few hundred bytes can claim an array of a billion cells, or unpack to gigabytes.
"""

from __future__ import annotations

import math
import struct
import zlib

# The devkit's unpacks to 1.5 MB. SciPy takes some 100 bytes for each eight of them.
_MAX_UNPACKED_BYTES = 8 << 20
# The devkit's: numbers and texts in structures.
_MAX_DEPTH = 4

_HEADER_BYTES = 128
_ORDERS = {b"IM": "<", b"MI": ">"}
# Kinds of elements, and of arrays (MAT-File Format, MathWorks).
_MATRIX, _COMPRESSED = 14, 15
_CELL, _STRUCT, _CHAR = 1, 2, 4
_NUMBERS = range(6, 16)
_COMPLEX = 0x0800


def check(data: bytes) -> None:
    """Makes sure that the arrays of a MAT-file are as large as they claim to be.

    Raises:
      ValueError: they are not, or it is no file of version 5 that holds numbers and texts only.
      zlib.error, struct.error: it is damaged.
    """
    order = _ORDERS.get(data[126:_HEADER_BYTES])
    if order is None:
        raise ValueError("it is no MAT-file of version 5")
    left = _MAX_UNPACKED_BYTES
    position = _HEADER_BYTES
    while position < len(data):
        kind, size = struct.unpack_from(f"{order}II", data, position)
        element = data[position : position + 8 + size]
        position += 8 + size
        if kind == _COMPRESSED:
            element = zlib.decompressobj().decompress(element[8:], left + 1)
        left -= len(element)
        if left < 0:
            raise ValueError(f"it unpacks to more than {_MAX_UNPACKED_BYTES:,} bytes")
        _Elements(element, order).matrix(0)


class _Elements:
    """Reads elements one after the other, as SciPy does."""

    def __init__(self, data: bytes, order: str) -> None:
        self._data = data
        self._order = order
        self._position = 0

    def matrix(self, depth: int) -> None:
        """Reads one array, and what lies in it."""
        kind, size = self._words()
        if kind != _MATRIX:
            raise ValueError(f"an element of kind {kind} where an array is expected")
        if not size:
            return
        if depth > _MAX_DEPTH:
            raise ValueError("its arrays are nested too deeply")
        (flags, _), dimensions, _ = self._integers(), self._integers(), self._next()
        count = math.prod(dimensions)
        array = flags & 0xFF
        if array == _STRUCT:
            (longest,) = self._integers()
            count *= len(self._next()) // max(longest, 1)
        if array in (_CELL, _STRUCT):
            self._demand(count, (len(self._data) - self._position) // 8, dimensions)
            for _ in range(count):
                self.matrix(depth + 1)
        elif array == _CHAR or array in _NUMBERS:
            for _ in range(2 if flags & _COMPLEX else 1):
                self._demand(count, len(self._next()), dimensions)
        else:
            raise ValueError(f"an array of kind {array}, which the devkit has not")

    def _demand(self, count: int, most: int, dimensions: tuple[int, ...]) -> None:
        if not 0 <= count <= most:
            raise ValueError(f"an array claims {list(dimensions[:4])} values that are not there")

    def _integers(self) -> tuple[int, ...]:
        data = self._next()
        return struct.unpack(f"{self._order}{len(data) // 4}i", data[: len(data) // 4 * 4])

    def _next(self) -> bytes:
        """Returns the bytes of an element that is no array."""
        kind, size = self._words()
        if short := kind >> 16:
            self._position -= 4
            return self._take(4)[:short]
        data = self._take(size)
        self._position += -size % 8
        return data

    def _words(self) -> tuple[int, int]:
        words: tuple[int, int] = struct.unpack(f"{self._order}II", self._take(8))
        return words

    def _take(self, size: int) -> bytes:
        data = self._data[self._position : self._position + size]
        if len(data) < size:
            raise ValueError("it ends inside an element")
        self._position += size
        return data
