"""PNGs with structures that repeat, claim or unpack."""

from __future__ import annotations

import struct
import zlib

from tests.kit.hostile import images
from tests.kit.hostile.archives import zlib_of_zeros
from tests.kit.hostile.bombs.tiff import DIRECTORIES, Entry, directory
from tests.kit.hostile.images import chunk

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_RGB = 2
_PALETTE = 3
_RGBA = 6
_END = chunk(b"IEND", b"")
_ROWS = (b"\0" + bytes(24)) * 8
_IDAT = chunk(b"IDAT", zlib.compress(_ROWS))


def _header(
    width: int = 8, height: int = 8, *, bits: int = 8, kind: int = _RGB, is_interlaced: bool = False
) -> bytes:
    content = struct.pack(">IIBBBBB", width, height, bits, kind, 0, 0, is_interlaced)
    return chunk(b"IHDR", content)


def _with(parts: bytes) -> bytes:
    """Returns a PNG with chunks before its pixels."""
    return _SIGNATURE + _header() + parts + _IDAT + _END


def private_chunks(count: int) -> bytes:
    return _with(chunk(b"prVt", b"") * count)


def texts(count: int) -> bytes:
    return _with(chunk(b"tEXt", b"a\0b") * count)


def long_text(size: int) -> bytes:
    return _with(chunk(b"tEXt", b"a\0" + b"b" * size))


def exif_texts(count: int) -> bytes:
    """EXIF as text, in ImageMagick's form, which we keep."""
    text = b"\nexif\n      8\n" + b"49492a0008000000" * 100
    return _with(chunk(b"tEXt", b"Raw profile type exif\0" + text) * count)


def packed_exif_text(size: int) -> bytes:
    """EXIF as packed text of a few bytes, which unpacks to zeros."""
    return _with(chunk(b"zTXt", b"Raw profile type exif\0\0" + zlib_of_zeros(size)))


def packed_text(size: int) -> bytes:
    return _with(chunk(b"zTXt", b"a\0\0" + zlib_of_zeros(size)))


def packed_texts(count: int) -> bytes:
    return _with(chunk(b"zTXt", b"Raw profile type APP1\0\0" + zlib_of_zeros(1 << 20)) * count)


def packed_unicode_text(size: int) -> bytes:
    return _with(chunk(b"iTXt", b"a\0\1\0\0\0" + zlib_of_zeros(size)))


def profile(size: int) -> bytes:
    """A colour profile of a few bytes, which unpacks to zeros."""
    return _with(chunk(b"iCCP", b"a\0\0" + zlib_of_zeros(size)))


def headers(count: int) -> bytes:
    return _SIGNATURE + _header() * count + _IDAT + _END


def second_header(side: int) -> bytes:
    """A small header before the pixels, and a large one before the rest of them."""
    return _SIGNATURE + _header() + _IDAT + _header(side, side) + _IDAT + _END


def empty_pixels(count: int) -> bytes:
    return _with(chunk(b"IDAT", b"") * count)


def tiny_pixels(count: int) -> bytes:
    """One byte of the pixels per chunk, behind empty blocks."""
    packed = b"\x78\x01" + b"\0\0\0\xff\xff" * (count // 5) + zlib.compress(_ROWS)[2:]
    parts = [chunk(b"IDAT", bytes((byte,))) for byte in packed]
    return _SIGNATURE + _header() + b"".join(parts) + _END


def palettes(count: int) -> bytes:
    head = _SIGNATURE + _header(kind=_PALETTE)
    return head + chunk(b"PLTE", bytes(768)) * count + _IDAT + _END


def long_palette(size: int) -> bytes:
    return _SIGNATURE + _header(kind=_PALETTE) + chunk(b"PLTE", bytes(size)) + _IDAT + _END


def transparencies(count: int) -> bytes:
    return _with(chunk(b"tRNS", bytes(6)) * count)


def long_transparency(size: int) -> bytes:
    head = _SIGNATURE + _header(kind=_PALETTE) + chunk(b"PLTE", bytes(768))
    return head + chunk(b"tRNS", b"\1" * size) + _IDAT + _END


def exif(count: int) -> bytes:
    entry: Entry = (0x0112, 3, 1, struct.pack("<HH", 6, 0))
    return _with(chunk(b"eXIf", directory([entry] * 9_000)) * count)


def exif_that_points_to_itself(count: int) -> bytes:
    return _with(chunk(b"eXIf", directory(DIRECTORIES, following=8)) * count)


def small_chunks(count: int) -> bytes:
    """Resolutions, gammas and other values of few bytes."""
    kinds = {b"pHYs": 9, b"gAMA": 4, b"cHRM": 32, b"sRGB": 1, b"sBIT": 3, b"tIME": 7, b"hIST": 2}
    parts = []
    for kind, size in kinds.items():
        parts.append(chunk(kind, b"\1" * size))
    return _with(b"".join(parts) * count)


def length_claims(size: int) -> bytes:
    """A chunk that claims to be longer than the file."""
    return _with(struct.pack(">I", size) + b"prVt")


def frame_claims(count: int) -> bytes:
    """An animation that claims many images, and has one."""
    return _with(chunk(b"acTL", struct.pack(">II", count, 0)) + _frame(0, 8))


def _frame(sequence: int, side: int, disposal: int = 0) -> bytes:
    content = struct.pack(">IIIIIHHBB", sequence, side, side, 0, 0, 1, 1, disposal, 0)
    return chunk(b"fcTL", content)


def frames(count: int) -> bytes:
    parts = [chunk(b"acTL", struct.pack(">II", count, 0)), _frame(0, 8), _IDAT]
    for number in range(count):
        parts.append(_frame(2 * number + 1, 1))
        data = struct.pack(">I", 2 * number + 2) + zlib.compress(bytes(4))
        parts.append(chunk(b"fdAT", data))
    return _SIGNATURE + _header() + b"".join(parts) + _END


def frame_controls(count: int) -> bytes:
    return _with(
        chunk(b"acTL", struct.pack(">II", 2, 0))
        + b"".join(_frame(number, 8) for number in range(count))
    )


def large_canvas(side: int) -> bytes:
    return images.apng_that_claims(side, side)


def large_canvas_behind_small(side: int) -> bytes:
    return images.apng_that_claims(side, side, small_first=True)


def claims(side: int) -> bytes:
    return images.png_that_claims(side, side)


def surplus_pixels(size: int) -> bytes:
    """64 pixels, and zeros behind them in the same zlib data."""
    return _SIGNATURE + _header() + chunk(b"IDAT", zlib_of_zeros(size)) + _END


def _zeros(side: int, bytes_per_row: int, header: bytes) -> bytes:
    data = zlib_of_zeros(side * (bytes_per_row + 3))  # interlaced rows are more, but shorter
    return _SIGNATURE + header + chunk(b"IDAT", data) + _END


def deep_pixels(side: int) -> bytes:
    """16 bits for each of four samples."""
    return _zeros(side, 8 * side, _header(side, side, bits=16, kind=_RGBA))


def transparent_pixels(side: int) -> bytes:
    return _zeros(side, 4 * side, _header(side, side, kind=_RGBA))


def single_bits(side: int) -> bytes:
    return _zeros(side, side // 8 + 1, _header(side, side, bits=1, kind=0))


def interlaced(side: int) -> bytes:
    return _zeros(side, 4 * side, _header(side, side, kind=_RGBA, is_interlaced=True))


def one_row(width: int) -> bytes:
    header = _header(width, 1)
    return _SIGNATURE + header + chunk(b"IDAT", zlib_of_zeros(3 * width + 1)) + _END


def one_column(height: int) -> bytes:
    header = _header(1, height)
    return _SIGNATURE + header + chunk(b"IDAT", zlib_of_zeros(4 * height)) + _END


# fmt: off
TABLE = {
    "private chunks": (private_chunks, (100, 100_000, 2_500_000)),
    "texts": (texts, (100, 100_000, 2_000_000)),
    "a long text": (long_text, (1_000, 30_000_000)),
    "EXIF texts": (exif_texts, (1, 1_000, 18_000)),
    "a packed EXIF text": (packed_exif_text, (1_000, 100_000_000, 2_000_000_000)),
    "a packed text": (packed_text, (1_000, 1_000_000_000)),
    "packed texts": (packed_texts, (1, 1_000, 20_000)),
    "a packed Unicode text": (packed_unicode_text, (1_000, 1_000_000_000)),
    "a profile": (profile, (1_000, 1_000_000_000)),
    "headers": (headers, (2, 100_000, 1_200_000)),
    "a second header": (second_header, (100, 8_000, 65_500)),
    "empty pixel chunks": (empty_pixels, (100, 2_500_000)),
    "tiny pixel chunks": (tiny_pixels, (100, 1_000_000)),
    "palettes": (palettes, (2, 38_000)),
    "a long palette": (long_palette, (3_000, 30_000_000)),
    "transparencies": (transparencies, (2, 1_600_000)),
    "a long transparency": (long_transparency, (1_000, 30_000_000)),
    "EXIF": (exif, (1, 270)),
    "EXIF that points to itself": (exif_that_points_to_itself, (1, 400_000)),
    "small chunks": (small_chunks, (2, 200_000)),
    "claimed length": (length_claims, (2**31 - 1, 2**32 - 1)),
    "claimed frames": (frame_claims, (2**31 - 1,)),
    "frames": (frames, (10, 10_000, 400_000)),
    "frame controls": (frame_controls, (2, 700_000)),
    "a large canvas": (large_canvas, (1_000, 8_000, 65_500)),
    "a large canvas behind a small one": (large_canvas_behind_small, (1_000, 8_000, 65_500)),
    "claims": (claims, (1_000, 8_000, 65_500)),
    "surplus pixels": (surplus_pixels, (10_000, 2_000_000_000)),
    "deep pixels": (deep_pixels, (100, 8_000)),
    "transparent pixels": (transparent_pixels, (100, 8_000)),
    "single bits": (single_bits, (100, 8_000)),
    "interlaced pixels": (interlaced, (100, 8_000)),
    "one row": (one_row, (1_000, 64_000_000)),
    "one column": (one_column, (1_000, 64_000_000)),
}
# fmt: on
