"""Checks the sizes and counts in the footer and the page headers of a Parquet file.

The Parquet library allocates the sizes and counts that a file states: 2 MB can become 2 GB. So the
footer and all page headers (structs in Thrift's compact protocol) are checked first. A value takes
no more memory than its page, because encodings in which it could are refused.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from imagenet_prep.core.errors import SourceError

if TYPE_CHECKING:
    from pyarrow.parquet import ColumnChunkMetaData  # type: ignore[import-untyped]

# Bytes to read for a header: first 1 kB, then 1 MB for long minimum and maximum values.
_READ_BYTES = (1 << 10, 1 << 20)
# Limits the pages of a column in one row group. Writers start a new page after 1 MB or 20,000 rows.
_MAX_PAGES = 1 << 16
# Each value in a dictionary takes 20 bytes in addition to its own. Writers stop at 1 MB.
_MAX_DICTIONARY_VALUES = 1 << 20
_MAX_DEPTH = 8
_MAX_HEADER_VALUES = 64  # twice the number of fields in a page header and its nested structs
# pyarrow 25 allocates up to 700 bytes for three bytes of a footer, at most 60 MB for a small one.
# The values in larger footers are counted first: 500 row groups of 20 columns have 450,000.
_SMALL_FOOTER_BYTES = 256 << 10
_MAX_FOOTER_BYTES = 64 << 20
_MAX_FOOTER_VALUES = 1 << 19
_MAGIC = b"PAR1"
_TAIL_BYTES = 8  # the length of the footer and the magic number
# Field numbers of PageHeader in parquet-format's parquet.thrift.
_KIND = 1
_UNPACKED = 2
_PACKED = 3
_DICTIONARY_PAGE = 2
# For each kind of page, the field with its own header, and the field of the encoding in it.
_ENCODING_FIELD = {0: (5, 2), _DICTIONARY_PAGE: (7, 2), 3: (8, 4)}
_NUM_VALUES = 1  # in all of these headers
# PLAIN, PLAIN_DICTIONARY, RLE (booleans), DELTA_BINARY_PACKED (integers), RLE_DICTIONARY. In
# DELTA_BYTE_ARRAY, each value can repeat the previous one; the library allocates the number of
# values that DELTA_LENGTH_BYTE_ARRAY states.
_ENCODINGS = (0, 2, 3, 5, 8)
# Thrift types. In a struct, the type of a boolean includes its value.
_BOOLEANS = (1, 2)
_BYTE = 3
_INTEGERS = (4, 5, 6)
_DOUBLE = 7
_BINARY = 8
_LISTS = (9, 10)
_STRUCT = 12


def require_sound_footer(descriptor: int, path: Path) -> None:
    """Raises SourceError if the footer has more row groups and columns than fit in memory."""
    size = os.fstat(descriptor).st_size
    tail = os.pread(descriptor, _TAIL_BYTES, max(0, size - _TAIL_BYTES))
    length = int.from_bytes(tail[:-4], "little")
    if not tail.endswith(_MAGIC) or length <= _SMALL_FOOTER_BYTES:
        return  # the library reports a wrong end
    start = size - _TAIL_BYTES - length
    if start < 0:
        return
    try:
        if length > _MAX_FOOTER_BYTES:
            raise ValueError(f"more than {_MAX_FOOTER_BYTES:,} bytes")
        footer = os.pread(descriptor, length, start)
        _ThriftReader(footer, _MAX_FOOTER_VALUES).struct(0)
    except (ValueError, IndexError) as error:
        raise SourceError(
            f"{path}: its footer of {length:,} bytes is too large or damaged: {error}. Save the "
            "dataset with fewer row groups and columns per file."
        ) from None


def check(descriptor: int, column: ColumnChunkMetaData, path: Path) -> None:
    """Checks the page headers of a column in one row group.

    Raises ValueError if the pages unpack to more than the footer states, and SourceError if their
    encoding is not supported.
    """
    starts = (column.dictionary_page_offset, column.data_page_offset)
    position = min(start for start in starts if start is not None)
    stop = position + column.total_compressed_size
    remaining = column.total_uncompressed_size
    for _ in range(_MAX_PAGES):
        if position >= stop:
            return
        length, fields = _header(descriptor, position)
        unpacked = fields.get(_UNPACKED, -1)
        packed = fields.get(_PACKED, -1)
        remaining -= unpacked
        if min(unpacked, packed, remaining) < 0:
            raise ValueError(
                f"the page at byte {position:,} unpacks to {unpacked:,} bytes, but the footer says "
                f"{column.total_uncompressed_size:,} for all pages of its column"
            )
        _check_values(fields, f"{path}: the page at byte {position:,}")
        position += length + packed
    raise ValueError(f"a column of a row group has more than {_MAX_PAGES:,} pages")


def _check_values(fields: dict[int, Any], where: str) -> None:
    """Raises SourceError if the values of a page can take more memory than the page."""
    kind = fields.get(_KIND)
    if kind not in _ENCODING_FIELD:
        return  # the library skips such pages
    header_field, encoding_field = _ENCODING_FIELD[kind]
    header = fields.get(header_field, {})
    encoding = header.get(encoding_field)
    if encoding not in _ENCODINGS:
        raise SourceError(
            f"{where} has the encoding number {encoding}, which is not read, because a few bytes "
            "of it can unpack to gigabytes. Save the dataset with plain or dictionary encoding."
        )
    num_values = header.get(_NUM_VALUES, 0)
    if kind == _DICTIONARY_PAGE and not 0 <= num_values <= _MAX_DICTIONARY_VALUES:
        raise SourceError(
            f"{where} is a dictionary of {num_values:,} values, expected at most "
            f"{_MAX_DICTIONARY_VALUES:,}. Save the dataset without a dictionary."
        )


def _header(descriptor: int, position: int) -> tuple[int, dict[int, Any]]:
    for size in _READ_BYTES:
        reader = _ThriftReader(os.pread(descriptor, size, position), _MAX_HEADER_VALUES)
        try:
            fields = reader.struct(0)
        except IndexError:
            continue
        return reader.position, fields
    raise ValueError(f"there is no page header at byte {position:,}")


class _ThriftReader:
    """Reads Thrift's compact protocol; raises IndexError at the end of the data.

    Raises ValueError if there are more than `most_values` fields and list elements.
    """

    def __init__(self, data: bytes, most_values: int) -> None:
        self._data = data
        self.position = 0
        self._values_left = most_values

    def struct(self, depth: int) -> dict[int, Any]:
        """Returns the integers and structs in a struct by field number; skips other values."""
        fields: dict[int, Any] = {}
        field = 0
        while (head := self._byte()) != 0:
            self._count(1)
            kind = head & 15
            field = field + (head >> 4) if head >> 4 else self._number()
            # The library takes the last 16 bits of a number, and another value of a repeated field.
            if field in fields or not 0 < field < 1 << 15:
                raise ValueError(f"the number {field} of a field is repeated or out of bounds")
            if kind not in _BOOLEANS:
                value = self._value(kind, depth)
                if value is not None:
                    fields[field] = value
        return fields

    def _value(self, kind: int, depth: int) -> int | dict[int, Any] | None:
        """Returns an integer or a struct, or skips a value of a different kind."""
        if depth > _MAX_DEPTH:
            raise ValueError("its values are nested too deeply")
        if kind in _INTEGERS:
            return self._number()
        if kind == _STRUCT:
            return self.struct(depth + 1)
        if kind in _LISTS:
            self._skip_list(depth)
        elif kind == _BINARY:
            # After a position past the end, the next byte raises IndexError.
            size = self._varint()
            self.position += size
        elif kind == _DOUBLE:
            self.position += 8
        elif kind in (*_BOOLEANS, _BYTE):
            self.position += 1
        else:
            raise ValueError(f"a value of unknown kind {kind}")
        return None

    def _skip_list(self, depth: int) -> None:
        head = self._byte()
        number = head >> 4
        if number == 15:
            number = self._varint()
        self._count(number)
        for _ in range(number):
            self._value(head & 15, depth + 1)

    def _count(self, number: int) -> None:
        self._values_left -= number
        if self._values_left < 0:
            raise ValueError("too many values")

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
