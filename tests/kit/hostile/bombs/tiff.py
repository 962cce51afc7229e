"""TIFFs, and the directories of EXIF, with structures that repeat, nest, claim or unpack."""

from __future__ import annotations

import io
import struct
from collections.abc import Sequence

from PIL import Image

from tests.kit.hostile import images
from tests.kit.hostile.archives import zlib_of_zeros

# Tag, type, count and value of an entry. Bytes that do not fit are stored behind the directory.
Entry = tuple[int, int, int, int | bytes]

_BYTE = 1
_SHORT = 3
_LONG = 4
_UNDEFINED = 7
_LONG8 = 16
_WIDTH = 256
_HEIGHT = 257
_BITS = 258
_COMPRESSION = 259
_PHOTOMETRIC = 262
_STRIPS = 273
_SAMPLES = 277
_ROWS = 278
_STRIP_SIZES = 279
_PLANAR = 284
_TILE_WIDTH = 322
_TILE_HEIGHT = 323
_TILES = 324
_TILE_SIZES = 325
_COLOURS = 320
_ORIENTATION = 274
_PRIVATE = 0xC000
_RAW = 1
_FAX = 4
_LZW = 5
_OLD_JPEG = 6
_JPEG = 7
_DEFLATE = 8
_PACKBITS = 32773
_LZMA = 34925
_ZSTD = 50000
_WEBP = 50001
# Entries for EXIF, GPS, interoperability and SubIFDs, all of which are the first directory.
DIRECTORIES: list[Entry] = [(tag, _LONG, 1, 8) for tag in (0x8769, 0x8825, 0xA005, 0x014A)]


def directory(
    entries: Sequence[Entry],
    *,
    following: int = 0,
    padding: int = 0,
    entry_count: int | None = None,
) -> bytes:
    """Returns a TIFF header with one directory.

    Args:
      following: the offset of the next directory.
      padding: number of zeros behind the directory.
      entry_count: the number of entries that it claims.
    """
    count = len(entries) if entry_count is None else entry_count
    place = 8 + 2 + 12 * len(entries) + 4
    parts = [b"II*\0", struct.pack("<IH", 8, count)]
    behind = []
    for tag, kind, length, value in entries:
        if isinstance(value, int):
            stored = struct.pack("<I", value)
        elif len(value) <= 4:
            stored = value.ljust(4, b"\0")
        else:
            stored = struct.pack("<I", place)
            behind.append(value)
            place += len(value)
        parts.append(struct.pack("<HHI", tag, kind, length) + stored)
    return b"".join([*parts, struct.pack("<I", following), *behind, bytes(padding)])


def _described(
    width: int, height: int, compression: int = _RAW, *, bits: int = 8, samples: int = 1
) -> list[Entry]:
    return [
        (_WIDTH, _LONG, 1, width),
        (_HEIGHT, _LONG, 1, height),
        (_BITS, _SHORT, samples, struct.pack("<H", bits) * samples),
        (_COMPRESSION, _SHORT, 1, compression),
        (_PHOTOMETRIC, _SHORT, 1, 2 if samples == 3 else 1),
        (_SAMPLES, _SHORT, 1, samples),
    ]


def _strip(entries: list[Entry], data: bytes, height: int) -> bytes:
    """Returns a TIFF of one strip."""
    entries = [*entries, (_ROWS, _LONG, 1, height), (_STRIP_SIZES, _LONG, 1, len(data))]
    size = len(directory([*entries, (_STRIPS, _LONG, 1, 0)]))
    return directory(sorted([*entries, (_STRIPS, _LONG, 1, size)])) + data


def _sound(extra: Sequence[Entry] = ()) -> bytes:
    return _strip([*_described(8, 8), *extra], bytes(64), 8)


def strips_of_bytes(count: int) -> bytes:
    """The offset of each strip is one byte, so each byte is a strip."""
    entries = [
        *_described(16, 16),
        (_STRIPS, _BYTE, count, bytes(max(count, 5))),
        (_ROWS, _LONG, 1, 16),
        (_STRIP_SIZES, _LONG, 1, 16),
    ]
    return directory(sorted(entries))


def strips_of_one_row(height: int) -> bytes:
    offsets = struct.pack("<I", 8) * height
    sizes = struct.pack("<H", 1) * height
    entries = [
        *_described(1, height),
        (_STRIPS, _LONG, height, offsets),
        (_ROWS, _LONG, 1, 1),
        (_STRIP_SIZES, _SHORT, height, sizes),
    ]
    return directory(sorted(entries))


def rows_per_strip(rows: int) -> bytes:
    entries = [*_described(8, 8), (_ROWS, _LONG, 1, rows), (_STRIPS, _LONG, 1, 8)]
    return directory(sorted([*entries, (_STRIP_SIZES, _LONG, 1, 64)]))


def small_tiles(side: int) -> bytes:
    """Tiles of one pixel; the offset of each is one byte."""
    entries = [
        *_described(side, side),
        (_TILE_WIDTH, _LONG, 1, 1),
        (_TILE_HEIGHT, _LONG, 1, 1),
        (_TILES, _BYTE, side * side, bytes(side * side)),
        (_TILE_SIZES, _BYTE, side * side, b"\1" * (side * side)),
    ]
    return directory(sorted(entries))


def tiles_of_no_size(side: int) -> bytes:
    entries = [
        *_described(side, side),
        (_TILE_WIDTH, _LONG, 1, 0),
        (_TILE_HEIGHT, _LONG, 1, 0),
        (_TILES, _LONG, 1, 8),
        (_TILE_SIZES, _LONG, 1, 64),
    ]
    return directory(sorted(entries))


def large_tile(side: int) -> bytes:
    return images.tiff_in_a_tile(64, side)


def next_directory_is_the_first(_: int) -> bytes:
    entries = [*_described(8, 8), (_ROWS, _LONG, 1, 8), (_STRIPS, _LONG, 1, 8)]
    return directory(sorted([*entries, (_STRIP_SIZES, _LONG, 1, 64)]), following=8)


def directories(count: int) -> bytes:
    """A chain of directories without entries."""
    data = _sound()
    at = 8 + 2 + 12 * int.from_bytes(data[8:10], "little")
    parts = [data[:at], struct.pack("<I", len(data)), data[at + 4 :]]
    place = len(data)
    for _ in range(count):
        place += 6
        parts.append(struct.pack("<HI", 0, place))
    return b"".join(parts)


def nested_directories(count: int) -> bytes:
    """Each directory has one entry: the next one, for EXIF."""
    data = _sound([(0x8769, _LONG, 1, 0)])
    at = data.index(struct.pack("<HHI", 0x8769, _LONG, 1)) + 8
    parts = [data[:at], struct.pack("<I", len(data)), data[at + 4 :]]
    place = len(data)
    for _ in range(count):
        place += 18
        parts.append(struct.pack("<HHHIII", 1, 0x8769, _LONG, 1, place, 0))
    return b"".join(parts)


def directories_that_point_to_themselves(_: int) -> bytes:
    return _sound(DIRECTORIES)


def entries(count: int) -> bytes:
    return _sound([(_PRIVATE, _BYTE, 1, 0)] * (count - 9))


def entries_of_the_same_bytes(size: int) -> bytes:
    """47,000 arrays, each of which is the complete file."""
    extra: list[Entry] = [(tag, _UNDEFINED, size, 8) for tag in range(1_000, 48_000)]
    return _sound(extra) + bytes(size)


def numbers_of_the_same_bytes(size: int) -> bytes:
    """Arrays of numbers, which become objects."""
    extra: list[Entry] = [(tag, _SHORT, size // 2, 8) for tag in range(1_000, 2_000)]
    return _sound(extra) + bytes(size)


def entries_claim(count: int) -> bytes:
    return _sound([(_PRIVATE, _LONG, count, 8)])


def orientations(count: int) -> bytes:
    return _sound([(_ORIENTATION, _SHORT, 1, 6)] * count)


def colours(count: int) -> bytes:
    return _sound([(_COLOURS, _SHORT, count, bytes(2 * max(count, 3)))])


def many_samples(count: int) -> bytes:
    described = _described(8, 8)
    described[2] = (_BITS, _SHORT, count, b"\x08\0" * max(count, 3))
    described[5] = (_SAMPLES, _SHORT, 1, count)
    return _strip(described, bytes(64), 8)


def raw_claims(side: int) -> bytes:
    return _strip(_described(side, side, samples=3), bytes(64), side)


def deflated(side: int) -> bytes:
    data = zlib_of_zeros(3 * side * side)
    return _strip(_described(side, side, _DEFLATE, samples=3), data, side)


def deflated_surplus(size: int) -> bytes:
    """64 pixels, and zeros behind them."""
    return _strip(_described(8, 8, _DEFLATE), zlib_of_zeros(size), 8)


def packbits(side: int) -> bytes:
    data = b"\x81\0" * (side * side // 128 + 1)
    return _strip(_described(side, side, _PACKBITS), data, side)


def packbits_of_nothing(count: int) -> bytes:
    """The byte 80 has no effect."""
    return _strip(_described(8, 8, _PACKBITS), b"\x80" * count, 8)


def lzw_clear_codes(count: int) -> bytes:
    """Codes of nine bits, all of them "clear"."""
    eight = int("100000000" * 8, 2).to_bytes(9, "big")
    return _strip(_described(8_000, 8_000, _LZW), eight * count, 8_000)


def fax(side: int) -> bytes:
    """Bits of 1: each of them repeats a row of Group 4."""
    return _strip(_described(side, side, _FAX, bits=1), b"\xff" * (side // 8 + 1), side)


def jpeg_in_tiff(side: int) -> bytes:
    data = images.jpeg_that_claims(side, side)
    return _strip(_described(side, side, _JPEG, samples=3), data, side)


def small_tiff_of_a_large_jpeg(side: int) -> bytes:
    data = images.jpeg_that_claims(side, side)
    return _strip(_described(8, 8, _JPEG, samples=3), data, 8)


def old_jpeg(side: int) -> bytes:
    data = images.jpeg_that_claims(side, side)
    return _strip(_described(side, side, _OLD_JPEG, samples=3), data, side)


def scans_of_a_jpeg(count: int) -> bytes:
    """A TIFF of 64 MP in one strip: a JPEG of many scans."""
    data = bytearray(images.progressive_jpeg(count))
    at = data.index(b"\xff\xc2")
    data[at + 5 : at + 9] = struct.pack(">HH", 8_000, 8_000)
    return _strip(_described(8_000, 8_000, _JPEG, samples=3), bytes(data), 8_000)


def _claims(compression: int, side: int) -> bytes:
    return _strip(_described(side, side, compression, samples=3), bytes(1_000), side)


def lzma(side: int) -> bytes:
    return _claims(_LZMA, side)


def zstd(side: int) -> bytes:
    return _claims(_ZSTD, side)


def webp(side: int) -> bytes:
    return _claims(_WEBP, side)


def planes(side: int) -> bytes:
    extra: Entry = (_PLANAR, _SHORT, 1, 2)
    return _strip([*_described(side, side, samples=3), extra], bytes(64), side)


def big_tiff(count: int) -> bytes:
    """A BigTIFF that claims this size of offsets."""
    described: list[tuple[int, int, int, int]] = [
        (_WIDTH, _LONG, 1, 8),
        (_HEIGHT, _LONG, 1, 8),
        (_BITS, _SHORT, 1, 8),
        (_COMPRESSION, _SHORT, 1, 1),
        (_PHOTOMETRIC, _SHORT, 1, 1),
        (_STRIPS, _LONG8, count, 16),
        (_SAMPLES, _SHORT, 1, 1),
        (_ROWS, _LONG, 1, 8),
        (_STRIP_SIZES, _LONG8, count, 64),
    ]
    entries = [struct.pack("<HHQQ", *entry) for entry in described]
    head = b"II+\0" + struct.pack("<HHQQ", 8, 0, 16, len(described))
    return b"".join([head, *entries, bytes(8), bytes(1_000)])


def big_tiff_entries(count: int) -> bytes:
    """A BigTIFF that claims more than 65,535 entries."""
    return b"II+\0" + struct.pack("<HHQQ", 8, 0, 16, count) + bytes(20) * min(count, 1_000_000)


def frames(count: int) -> bytes:
    buffer = io.BytesIO()
    pictures = [Image.new("L", (1, 1))] * count
    pictures[0].save(buffer, "TIFF", save_all=True, append_images=pictures[1:])
    return buffer.getvalue()


# fmt: off
TABLE = {
    "strips of bytes": (strips_of_bytes, (16, 100_000, 4_000_000, 30_000_000)),
    "strips of one row": (strips_of_one_row, (100, 100_000, 5_000_000)),
    "rows per strip": (rows_per_strip, (0, 1, 2**32 - 1)),
    "small tiles": (small_tiles, (10, 500, 3_800)),
    "tiles of no size": (tiles_of_no_size, (10, 8_000)),
    "a large tile": (large_tile, (1_024, 8_000, 65_520)),
    "the next directory is the first": (next_directory_is_the_first, (1,)),
    "directories": (directories, (10, 5_000_000)),
    "nested directories": (nested_directories, (10, 1_600_000)),
    "directories that point to themselves": (directories_that_point_to_themselves, (1,)),
    "entries": (entries, (100, 65_535)),
    "entries of the same bytes": (entries_of_the_same_bytes, (10, 1_000, 1_000_000, 29_000_000)),
    "numbers of the same bytes": (numbers_of_the_same_bytes, (1_000, 1_000_000, 29_000_000)),
    "claimed numbers": (entries_claim, (1 << 24, 2**32 - 1)),
    "orientations": (orientations, (2, 12_000, 65_000)),
    "colours": (colours, (768, 15_000_000)),
    "many samples": (many_samples, (5, 65_535)),
    "raw claims": (raw_claims, (1_000, 8_000, 65_500)),
    "deflated zeros": (deflated, (100, 8_000)),
    "surplus of deflated zeros": (deflated_surplus, (1_000, 2_000_000_000)),
    "packed bits": (packbits, (100, 8_000)),
    "packed bits of nothing": (packbits_of_nothing, (100, 30_000_000)),
    "clear codes of LZW": (lzw_clear_codes, (10, 3_000_000)),
    "fax": (fax, (100, 8_000)),
    "a JPEG": (jpeg_in_tiff, (64, 8_000, 65_500)),
    "a JPEG that is too large": (small_tiff_of_a_large_jpeg, (64, 8_000, 65_500)),
    "an old JPEG": (old_jpeg, (64, 8_000)),
    "scans of a JPEG": (scans_of_a_jpeg, (20, 2_000)),
    "LZMA": (lzma, (100, 8_000)),
    "Zstandard": (zstd, (100, 8_000)),
    "WebP": (webp, (100, 8_000)),
    "planes": (planes, (100, 8_000)),
    "BigTIFF": (big_tiff, (1, 1_000_000, 2**63)),
    "entries of BigTIFF": (big_tiff_entries, (1_000, 1_000_000, 2**64 - 1)),
    "frames": (frames, (10, 1_000)),
}
# fmt: on
