"""Writes Parquet files that a correct writer never makes: any encoding, count and size.

A file has the columns image {bytes, path} and label, all required, so its pages have no levels.
The structures are those of parquet-format's parquet.thrift, in Thrift's compact protocol.
"""

from __future__ import annotations

import gzip
import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

NAME = "train-00000-of-00001.parquet"
PLAIN = 0
PLAIN_DICTIONARY = 2
RLE = 3
DELTA_PACKED = 5
DELTA_LENGTH = 6
DELTA_BYTES = 7
RLE_DICTIONARY = 8
BYTE_STREAM_SPLIT = 9
INT64 = 2
BYTE_ARRAY = 6
MOST = (1 << 31) - 1
_DATA_PAGE = 0
_DICTIONARY_PAGE = 2
_GZIP = 2
_LIST = 9
_BINARY = 8
_STRUCT = 12
_I32 = 5
_I64 = 6


class Page(NamedTuple):
    """A page: its content before compression, and its header's encoding and number of values.

    `more` are additional fields of the header.
    """

    content: bytes
    num_values: int
    encoding: int = PLAIN
    is_dictionary: bool = False
    more: bytes = b""


Columns = Mapping[str, Sequence[Page]]


def varint(number: int) -> bytes:
    """Returns an unsigned number in base 128."""
    digits = bytearray()
    while number > 127:
        digits.append(number & 127 | 128)
        number >>= 7
    return bytes([*digits, number])


def zigzag(number: int) -> bytes:
    """Returns a signed number as Thrift and the delta encodings write it."""
    return varint(number << 1 if number >= 0 else (-number << 1) - 1)


def integer(number: int) -> tuple[int, bytes]:
    """Returns the type and bytes of an integer in a struct."""
    return _I64, zigzag(number)


def text(value: bytes) -> tuple[int, bytes]:
    """Returns the type and bytes of a text in a struct."""
    return _BINARY, varint(len(value)) + value


def record(**fields: tuple[int, bytes]) -> tuple[int, bytes]:
    """Returns the type and bytes of a struct; `f5` is its field 5."""
    data = bytearray()
    for name, (kind, content) in fields.items():
        data += bytes([kind]) + zigzag(int(name[1:])) + content
    return _STRUCT, bytes(data) + b"\0"


def small(number: int) -> tuple[int, bytes]:
    """Returns the type and bytes of an integer of 32 bits, as enumerations are."""
    return _I32, zigzag(number)


def several(kind: int, items: Sequence[bytes]) -> tuple[int, bytes]:
    """Returns the type and bytes of a list."""
    return _LIST, bytes([0xF0 | kind]) + varint(len(items)) + b"".join(items)


def values(*each: bytes) -> bytes:
    """Returns the content of a PLAIN page of byte arrays."""
    return b"".join(struct.pack("<I", len(value)) + value for value in each)


def repeated(index: int, count: int, bits: int = 8) -> bytes:
    """Returns the content of an RLE_DICTIONARY page in which all values have one index."""
    return bytes([bits]) + varint(count << 1) + index.to_bytes(-(-bits // 8), "little")


def dictionary(page: bytes, num_values: int, rows: int, index: int = 0) -> list[Page]:
    """Returns a dictionary page and a data page with `rows` times the same value."""
    return [
        Page(page, num_values, PLAIN, is_dictionary=True),
        Page(repeated(index, rows), rows, RLE_DICTIONARY),
    ]


def repeated_size(field: int) -> Page:
    """Returns a page with a header that states a second, larger size in this field."""
    return Page(values(b"x"), 1, more=bytes([_I32]) + zigzag(field) + zigzag(MOST))


def labels(rows: int) -> list[Page]:
    """Returns the pages of `rows` labels 0."""
    return dictionary(struct.pack("<q", 0), 1, rows)


def delta_packed(first: int, count: int, block: int = 128) -> bytes:
    """Returns `count` equal integers in DELTA_BINARY_PACKED, with blocks of `block` values."""
    head = varint(block) + varint(4) + varint(count) + zigzag(first)
    return head + (zigzag(0) + bytes(4)) * min(1000, -(-count // block))


def write(path: Path, columns: Columns, rows: int, footer: bytes | None = None) -> None:
    """Writes a file with one row group; `footer` replaces the correct one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = bytearray(b"PAR1")
    chunks = []
    for name, pages in columns.items():
        start = len(data)
        unpacked = 0
        offsets = {}
        for page in pages:
            packed = gzip.compress(page.content, 1, mtime=0)
            offsets.setdefault(page.is_dictionary, len(data))
            head = _page_header(page, len(packed))
            data += head + packed
            unpacked += len(head) + len(page.content)
        kind = INT64 if name == "label" else BYTE_ARRAY
        fields = {
            "f1": small(kind),
            "f2": several(_I32, [zigzag(page.encoding) for page in pages]),
            "f3": several(_BINARY, [text(part.encode())[1] for part in name.split(".")]),
            "f4": small(_GZIP),
            "f5": integer(rows),
            "f6": integer(unpacked),
            "f7": integer(len(data) - start),
            "f9": integer(offsets.get(False, start)),
        }
        if True in offsets:
            fields["f11"] = integer(offsets[True])
        chunks.append(record(f2=integer(start), f3=record(**fields))[1])
    group = record(f1=several(_STRUCT, chunks), f2=integer(1), f3=integer(rows))[1]
    end = footer if footer is not None else _footer(group, rows)
    path.write_bytes(bytes(data) + end + struct.pack("<I", len(end)) + b"PAR1")


def _page_header(page: Page, packed: int) -> bytes:
    kind = _DICTIONARY_PAGE if page.is_dictionary else _DATA_PAGE
    fields = {"f1": small(kind), "f2": small(len(page.content)), "f3": small(packed)}
    header = {"f1": small(page.num_values), "f2": small(page.encoding)}
    if page.is_dictionary:
        fields["f7"] = record(**header)
    else:
        fields["f5"] = record(**header, f3=small(RLE), f4=small(RLE))
    return record(**fields)[1][:-1] + page.more + b"\0"


def _footer(group: bytes, rows: int) -> bytes:
    features = {"image": {"_type": "Image"}, "label": {"names": ["cat", "dog"]}}
    metadata = json.dumps({"info": {"features": features}}).encode()
    schema = [
        record(f4=text(b"schema"), f5=small(2))[1],
        record(f3=small(0), f4=text(b"image"), f5=small(2))[1],
        record(f1=small(BYTE_ARRAY), f3=small(0), f4=text(b"bytes"))[1],
        record(f1=small(BYTE_ARRAY), f3=small(0), f4=text(b"path"), f6=small(0))[1],
        record(f1=small(INT64), f3=small(0), f4=text(b"label"))[1],
    ]
    return record(
        f1=small(2),
        f2=several(_STRUCT, schema),
        f3=integer(rows),
        f4=several(_STRUCT, [group]),
        f5=several(_STRUCT, [record(f1=text(b"huggingface"), f2=text(metadata))[1]]),
    )[1]


def many_chunks(number: int) -> bytes:
    """Returns a footer with a row group of `number` empty columns, three bytes each."""
    chunk = b"\x26\x00\x00"
    columns = bytes([0x19, 0xF0 | _STRUCT]) + varint(number) + chunk * number
    group = columns + b"\x16\x00\x16\x00\x00"
    return b"\x15\x02\x19\x1c" + record(f4=text(b"r"))[1] + b"\x16\x00\x19\x1c" + group + b"\x00"


def many_names(number: int) -> bytes:
    """Returns a footer with one column, which has a path of `number` empty parts."""
    parts = bytes([0xF0 | _BINARY]) + varint(number) + bytes(number)
    column = record(f2=integer(0), f3=record(f3=(_LIST, parts)))[1]
    group = record(f1=several(_STRUCT, [column]), f2=integer(0), f3=integer(0))[1]
    return _footer(group, 0)


def nested(depth: int) -> bytes:
    """Returns a footer with lists in lists."""
    return b"\x19" + b"\x19" * depth + bytes(depth)


def files(unpacked: int) -> Iterator[tuple[str, Columns, int, bytes | None]]:
    """Yields hostile files: name, columns, number of rows and footer; values have `unpacked` bytes.

    They are the combinations of structures that repeat: dictionaries, runs, prefixes, counts.
    """
    blob = bytes(unpacked)
    images: dict[str, tuple[list[Page], int]] = {
        "one value": (dictionary(values(blob), 1, 64), 64),
        "one value in plain pages": ([Page(values(blob), 1)] * 5, 5),
        "a million rows": (dictionary(values(b"x" * 1000), 1, 1 << 20), 1 << 20),
        "billions of rows": (dictionary(values(b"x"), 1, MOST), MOST),
        "empty values": (dictionary(bytes(unpacked), unpacked // 4, 4), 4),
        "claimed dictionary": (dictionary(values(b"x"), MOST, 4), 4),
        "claimed values": ([Page(values(b"x"), MOST)], 4),
        "prefixes": (
            [Page(delta_packed(unpacked, 64) + delta_packed(0, 64) + blob, 64, DELTA_BYTES)],
            64,
        ),
        "claimed lengths": ([Page(delta_packed(0, MOST, 1 << 30), 4, DELTA_LENGTH)], 4),
        "split bytes": ([Page(blob, 4, BYTE_STREAM_SPLIT)], 4),
        "repeated field": ([repeated_size(2)] * 4, 4),
        "field beyond 16 bits": ([repeated_size((1 << 16) + 2)] * 4, 4),
        "many pages": ([Page(values(b"x"), 1)] * 70_000, 70_000),
        "out of the dictionary": (dictionary(values(b"x"), 1, 64, index=200), 64),
    }
    short = values(b"a.jpg")
    for name, (pages, rows) in images.items():
        columns = {
            "image.bytes": pages,
            "image.path": dictionary(short, 1, rows),
            "label": labels(rows),
        }
        yield name, columns, rows, None
    rows = 64
    image = dictionary(values(b"x"), 1, rows)
    paths = {
        "long path": dictionary(values(blob), 1, rows),
        "long path in prefixes": [
            Page(delta_packed(unpacked, 64) + delta_packed(0, 64) + blob, 64, DELTA_BYTES)
        ],
        "path of the limit": dictionary(values(b"p" * 4097), 1, rows),
    }
    for name, pages in paths.items():
        columns = {"image.bytes": image, "image.path": pages, "label": labels(rows)}
        yield name, columns, rows, None
    numbers = {
        "labels in many small blocks": [Page(delta_packed(0, rows, 1 << 30), rows, DELTA_PACKED)],
        "claimed labels": [Page(struct.pack("<q", 0), MOST)],
        "claimed label dictionary": dictionary(struct.pack("<q", 0), MOST, rows),
    }
    for name, pages in numbers.items():
        columns = {"image.bytes": image, "image.path": dictionary(short, 1, rows), "label": pages}
        yield name, columns, rows, None
    good = {"image.bytes": image, "image.path": dictionary(short, 1, rows), "label": labels(rows)}
    footers = {
        "many chunks": many_chunks(3_000_000),
        "chunks below the limit": many_chunks(86_000),
        "many names": many_names(20_000_000),
        "deep lists": nested(600_000),
        "no footer": b"",
    }
    for name, footer in footers.items():
        yield name, good, rows, footer
