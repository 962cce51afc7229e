"""What the pages of a Parquet file unpack to, from their own headers.

The footer says how many bytes a column has, and each page says it again for itself. The Parquet
library makes room for what a page says: two megabytes can become two gigabytes. So the headers are
walked before a page is unpacked. They are structs in Thrift's compact protocol, of which we need
two numbers and the length.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyarrow.parquet import ColumnChunkMetaData  # type: ignore[import-untyped]

# Mostly the first is enough; the least and the largest value of a page may be long.
_READ_BYTES = (1 << 10, 1 << 20)
# The most pages that a column may have in a group of rows. Writers begin a new page after a
# megabyte, or after 20,000 rows.
_MAX_PAGES = 1 << 16
# A header has half as many, in structs in structs.
_MAX_FIELDS = 64
_MAX_DEPTH = 4
# Fields of a page's header.
_UNPACKED, _PACKED = 2, 3
# Thrift's types, as far as headers have them. The value of a boolean is in its type.
_BOOLEANS, _INTEGERS, _BINARY, _STRUCT = (1, 2), (4, 5, 6), 8, 12


def check(descriptor: int, column: ColumnChunkMetaData) -> None:
    """Makes sure that the pages of a column unpack to no more than the footer says."""
    starts = (column.dictionary_page_offset, column.data_page_offset)
    position = min(start for start in starts if start is not None)
    stop, left = position + column.total_compressed_size, column.total_uncompressed_size
    for _ in range(_MAX_PAGES):
        if position >= stop:
            return
        length, fields = _header(descriptor, position)
        unpacked, packed = fields.get(_UNPACKED, -1), fields.get(_PACKED, -1)
        left -= unpacked
        if min(unpacked, packed, left) < 0:
            raise ValueError(
                f"the page at byte {position:,} unpacks to {unpacked:,} bytes, and the footer says "
                f"{column.total_uncompressed_size:,} of all pages of its column"
            )
        position += length + packed
    raise ValueError(f"a column of a group of rows has more than {_MAX_PAGES:,} pages")


def _header(descriptor: int, position: int) -> tuple[int, dict[int, int]]:
    """Returns the length of a page's header, and its numbers by field."""
    for size in _READ_BYTES:
        reader = _Reader(os.pread(descriptor, size, position))
        try:
            fields = reader.struct(0)
        except IndexError:
            continue
        return reader.position, fields
    raise ValueError(f"there is no header of a page at byte {position:,}")


class _Reader:
    """Reads Thrift's compact protocol; raises IndexError at the end of the data."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.position = 0
        self._fields = 0

    def struct(self, depth: int) -> dict[int, int]:
        """Returns the numbers of a struct by field; all else is passed over."""
        fields: dict[int, int] = {}
        field = 0
        while (head := self._byte()) != 0:
            self._fields += 1
            if self._fields > _MAX_FIELDS or depth > _MAX_DEPTH:
                raise ValueError("the header of a page has more fields than any")
            kind = head & 15
            field = field + (head >> 4) if head >> 4 else self._number()
            if kind in _INTEGERS:
                fields[field] = self._number()
            elif kind == _BINARY:
                self._skip(self._varint())
            elif kind == _STRUCT:
                self.struct(depth + 1)
            elif kind not in _BOOLEANS:
                raise ValueError(f"the header of a page holds a value of kind {kind}")
        return fields

    def _byte(self) -> int:
        byte = self._data[self.position]
        self.position += 1
        return byte

    def _skip(self, count: int) -> None:
        self.position += count
        if self.position > len(self._data):
            raise IndexError

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
            if shift > 63:
                raise ValueError("a number in the header of a page has too many bytes")

    def _number(self) -> int:
        """Returns a signed number, in zigzag."""
        value = self._varint()
        return value >> 1 ^ -(value & 1)
