"""Checks the unpacked sizes in the page headers of a Parquet file.

The Parquet library allocates the size that a page states: 2 MB can become 2 GB. So all page headers
(structs in Thrift's compact protocol) are checked before a page is unpacked.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyarrow.parquet import ColumnChunkMetaData  # type: ignore[import-untyped]

# Bytes to read for a header: first 1 kB, then 1 MB for long minimum and maximum values.
_READ_BYTES = (1 << 10, 1 << 20)
# Limits the pages of a column in one row group. Writers start a new page after 1 MB or 20,000 rows.
_MAX_PAGES = 1 << 16
_MAX_FIELDS = 64  # twice the number of fields in a page header and its nested structs
_MAX_DEPTH = 4
_UNPACKED, _PACKED = 2, 3
# Thrift types used in headers. The type of a boolean includes its value.
_BOOLEANS, _INTEGERS, _BINARY, _STRUCT = (1, 2), (4, 5, 6), 8, 12


def check(descriptor: int, column: ColumnChunkMetaData) -> None:
    """Raises ValueError if the pages of a column unpack to more than the footer states."""
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
                f"the page at byte {position:,} unpacks to {unpacked:,} bytes, but the footer says "
                f"{column.total_uncompressed_size:,} for all pages of its column"
            )
        position += length + packed
    raise ValueError(f"a column of a row group has more than {_MAX_PAGES:,} pages")


def _header(descriptor: int, position: int) -> tuple[int, dict[int, int]]:
    for size in _READ_BYTES:
        reader = _Reader(os.pread(descriptor, size, position))
        try:
            fields = reader.struct(0)
        except IndexError:
            continue
        return reader.position, fields
    raise ValueError(f"there is no page header at byte {position:,}")


class _Reader:
    """Reads Thrift's compact protocol; raises IndexError at the end of the data."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.position = 0
        self._fields = 0

    def struct(self, depth: int) -> dict[int, int]:
        """Returns the integers of a struct by field number, and skips other values."""
        fields: dict[int, int] = {}
        field = 0
        while (head := self._byte()) != 0:
            self._fields += 1
            if self._fields > _MAX_FIELDS or depth > _MAX_DEPTH:
                raise ValueError("a page header has too many fields")
            kind = head & 15
            field = field + (head >> 4) if head >> 4 else self._number()
            if kind in _INTEGERS:
                fields[field] = self._number()
            elif kind == _BINARY:
                size = self._varint()
                self.position += size  # past the end, the next byte raises IndexError
            elif kind == _STRUCT:
                self.struct(depth + 1)
            elif kind not in _BOOLEANS:
                raise ValueError(f"a page header has a value of unknown kind {kind}")
        return fields

    def _byte(self) -> int:
        byte = self._data[self.position]
        self.position += 1
        return byte

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
            if shift > 63:
                raise ValueError("a number in a page header has too many bytes")

    def _number(self) -> int:
        """Returns a signed number in zigzag encoding."""
        value = self._varint()
        return value >> 1 ^ -(value & 1)
