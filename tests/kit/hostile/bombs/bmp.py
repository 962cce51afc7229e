"""BMPs with structures that repeat, claim or unpack."""

from __future__ import annotations

import struct

_RGB = 0
_RLE8 = 1
_RLE4 = 2
_MASKS = 3
_JPEG = 4
_PALETTE = bytes(1024)


def _bmp(
    width: int,
    height: int,
    bits: int,
    compression: int,
    data: bytes,
    *,
    palette: bytes = _PALETTE,
    colours: int = 256,
) -> bytes:
    start = 54 + len(palette)
    file = struct.pack("<IHHI", start + len(data), 0, 0, start)
    info = struct.pack(
        "<IiiHHIIiiII", 40, width, height, 1, bits, compression, len(data), 0, 0, colours, 0
    )
    return b"BM" + file + info + palette + data


def delta(width: int) -> bytes:
    """One command that skips 255 rows."""
    return _bmp(width, 1, 8, _RLE8, b"\0\2\xff\xff\0\1")


def deltas(count: int) -> bytes:
    """Commands that skip nothing."""
    return _bmp(8, 8, 8, _RLE8, b"\0\2\0\0" * count + b"\0\1")


def deltas_of_rows(count: int) -> bytes:
    return _bmp(1_000, 64_000, 8, _RLE8, b"\0\2\0\1" * count + b"\0\1")


def runs_of_bytes(count: int) -> bytes:
    """Runs of one pixel."""
    return _bmp(8_000, 8_000, 8, _RLE8, b"\1\x7f" * count)


def runs_of_nibbles(count: int) -> bytes:
    return _bmp(8_000, 8_000, 4, _RLE4, b"\1\x7f" * count, palette=bytes(64), colours=16)


def empty_runs(count: int) -> bytes:
    """Absolute runs of three pixels, each padded."""
    return _bmp(8_000, 8_000, 8, _RLE8, b"\0\3\1\2\3\0" * count)


def row_ends(count: int) -> bytes:
    return _bmp(8, 8, 8, _RLE8, b"\0\0" * count)


def row_ends_of_wide_rows(count: int) -> bytes:
    """Each command makes a row of 100,000 pixels."""
    return _bmp(100_000, 640, 8, _RLE8, b"\0\0" * count)


def long_runs(side: int) -> bytes:
    return _bmp(side, side, 8, _RLE8, b"\xff\7" * (side * side // 255))


def claimed_colours(count: int) -> bytes:
    return _bmp(8, 8, 8, _RGB, bytes(64), colours=count)


def long_palette(count: int) -> bytes:
    return _bmp(8, 8, 8, _RGB, bytes(64), palette=bytes(4 * count), colours=count)


def masks(mask: int) -> bytes:
    """16 bits per pixel, with the same mask for each colour."""
    palette = struct.pack("<III", mask, mask, mask)
    return _bmp(64, 64, 16, _MASKS, bytes(2 * 64 * 64), palette=palette, colours=0)


def header_sizes(size: int) -> bytes:
    header = struct.pack("<IHHI", 200, 0, 0, 200) + struct.pack("<I", size)
    return b"BM" + header + struct.pack("<iiHH", 8, 8, 1, 24) + bytes(400)


def start_claims(start: int) -> bytes:
    """The pixels are claimed to start behind the file."""
    data = bytearray(_bmp(8, 8, 24, _RGB, bytes(192), palette=b"", colours=0))
    data[10:14] = struct.pack("<I", start)
    return bytes(data)


def _claims(bits: int, side: int) -> bytes:
    return _bmp(side, side, bits, _RGB, bytes(1_000))


def claims_of_one_bit(side: int) -> bytes:
    return _claims(1, side)


def claims_of_8_bits(side: int) -> bytes:
    return _claims(8, side)


def claims_of_32_bits(side: int) -> bytes:
    return _claims(32, side)


def pixels_of_one_bit(side: int) -> bytes:
    return _bmp(side, side, 1, _RGB, bytes(side * side // 8), palette=bytes(8), colours=2)


def upside_down(height: int) -> bytes:
    return _bmp(8, -height, 24, _RGB, bytes(192), palette=b"", colours=0)


def embedded_jpeg(side: int) -> bytes:
    return _bmp(side, side, 0, _JPEG, b"\xff\xd8\xff\xd9", palette=b"", colours=0)


# fmt: off
TABLE = {
    "a delta": (delta, (64_000, 4_000_000, 64_000_000)),
    "deltas": (deltas, (10, 7_000_000)),
    "deltas of rows": (deltas_of_rows, (10, 64_000)),
    "runs of bytes": (runs_of_bytes, (100, 15_000_000)),
    "runs of nibbles": (runs_of_nibbles, (100, 15_000_000)),
    "absolute runs": (empty_runs, (100, 5_000_000)),
    "ends of rows": (row_ends, (100, 15_000_000)),
    "ends of wide rows": (row_ends_of_wide_rows, (640, 15_000_000)),
    "long runs": (long_runs, (100, 8_000)),
    "claimed colours": (claimed_colours, (1 << 24, 2**31 - 1, 2**32 - 1)),
    "a long palette": (long_palette, (1_000, 7_000_000)),
    "masks": (masks, (0, 1, 2**32 - 1)),
    "header sizes": (header_sizes, (12, 124, 2**31 - 1)),
    "claimed start": (start_claims, (2**31 - 1, 2**32 - 1)),
    "claims of one bit": (claims_of_one_bit, (1_000, 8_000, 2**31 - 1)),
    "claims of 8 bits": (claims_of_8_bits, (1_000, 8_000, 65_500)),
    "claims of 32 bits": (claims_of_32_bits, (1_000, 8_000, 65_500)),
    "pixels of one bit": (pixels_of_one_bit, (64, 8_000)),
    "upside down": (upside_down, (8, 2**31 - 1)),
    "an embedded JPEG": (embedded_jpeg, (64, 65_500)),
}
# fmt: on
