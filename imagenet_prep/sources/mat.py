"""Reads numbers, text, cells and structures in MAT-files of version 5, such as the devkit's.

Claimed sizes are not trusted: a few hundred bytes can claim an array of a billion cells.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator
from typing import Any

# The devkit's file unpacks to 1.5 MB. Eight bytes can become an object of up to 100 bytes.
_MAX_UNPACKED_BYTES = 4 << 20
_MAX_DEPTH = 4
_MAX_DIMENSIONS = 32

_HEADER_BYTES = 128
_MATRIX = 14
_COMPRESSED = 15
_CELL = 1
_STRUCT = 2
_CHAR = 4
_ANY_NUMBER = range(6, 16)
_NUMBER = {1: "b", 2: "B", 3: "h", 4: "H", 5: "i", 6: "I", 7: "f", 9: "d", 12: "q", 13: "Q"}
_TEXT = {1: "ascii", 2: "ascii", 4: "utf-16-le", 16: "utf-8", 17: "utf-16-le", 18: "utf-32-le"}


def read(data: bytes) -> dict[str, Any]:
    """Returns arrays by name, as tuples of numbers, text, lists of cells, or dicts of fields."""
    if data[126:_HEADER_BYTES] != b"IM":
        raise ValueError("it is not a MAT-file of version 5")
    unpacked = bytearray()  # a `bytes` would be copied for each of 500,000 small elements
    for kind, content in _elements(data[_HEADER_BYTES:]):
        if kind == _COMPRESSED:
            room = _MAX_UNPACKED_BYTES - len(unpacked)
            unpacked += zlib.decompressobj().decompress(content, room + 1)
        else:
            unpacked += struct.pack("<II", kind, len(content)) + content
        if len(unpacked) > _MAX_UNPACKED_BYTES:
            raise ValueError(f"it unpacks to more than {_MAX_UNPACKED_BYTES:,} bytes")
    return dict(_array(*element, 0) for element in _elements(bytes(unpacked)))


def _elements(data: bytes) -> Iterator[tuple[int, bytes]]:
    position = 0
    while position < len(data):
        kind, size = struct.unpack_from("<II", data, position)
        head = 8
        if kind >> 16:  # small element: type and size share four bytes
            size = kind >> 16
            kind &= 0xFFFF
            head = 4
        content = data[position + head : position + head + size]
        if len(content) < size:
            raise ValueError("it ends inside an element")
        yield kind, content
        position += head + size
        if kind != _COMPRESSED:
            position += -(head + size) % 8


def _array(kind: int, content: bytes, depth: int) -> tuple[str, Any]:
    if kind != _MATRIX:
        raise ValueError(f"an element of kind {kind}, expected an array")
    if depth > _MAX_DEPTH:
        raise ValueError("its arrays are nested too deeply")
    if not content:
        return "", ()
    (_, flags), sides, (_, name), *parts = _elements(content)
    array = flags[0]
    fields = [b""]
    if array == _CHAR:
        ((kind, text),) = parts
        return name.decode(), text.decode(_TEXT[kind])
    if array == _STRUCT:
        lengths, (_, names), *parts = parts
        (longest,) = _numbers(*lengths)
        fields = [names[i : i + longest].partition(b"\0")[0] for i in range(0, len(names), longest)]
    if array in (_CELL, _STRUCT):
        values: Any = [_array(*part, depth + 1)[1] for part in parts]
    elif array in _ANY_NUMBER:
        (part,) = parts
        values = _numbers(*part)
    else:
        raise ValueError(f"an array of unsupported kind {array}")
    dimensions = _numbers(*sides)
    if len(dimensions) > _MAX_DIMENSIONS or math.prod(dimensions) * len(fields) != len(values):
        raise ValueError(f"an array of {list(dimensions[:4])} has {len(values):,} values")
    if array == _STRUCT:
        values = {field.decode(): values[i :: len(fields)] for i, field in enumerate(fields)}
    return name.decode(), values


def _numbers(kind: int, content: bytes) -> tuple[Any, ...]:
    code = _NUMBER[kind]
    return struct.unpack(f"<{len(content) // struct.calcsize(code)}{code}", content)
