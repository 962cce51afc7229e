"""Images that cost far more to decode than to send."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
from PIL import Image

from tests.kit.codec import frames

SIDE = 65_500


def progressive_jpeg(num_scans: int, side: int = 64) -> bytes:
    """Returns a sound progressive JPEG that repeats its last scan up to this number of scans."""
    buffer = io.BytesIO()
    Image.new("RGB", (side, side), (90, 120, 30)).save(buffer, "JPEG", progressive=True)
    return _with_scans(buffer.getvalue(), num_scans)


def many_scans_without_interleaving(num_scans: int, side: int = 64) -> bytes:
    """Returns a JPEG that is not progressive and repeats one scan per component.

    A decoder keeps all coefficients of this file, and reads scans until the end.
    """
    buffer = io.BytesIO()
    Image.new("L", (side, side), 77).save(buffer, "JPEG")
    grey = buffer.getvalue()
    sof = grey.index(b"\xff\xc0")
    sos = grey.index(b"\xff\xda")
    frame = b"\xff\xc0" + struct.pack(">HBHHB", 17, 8, side, side, 3)
    frame += bytes((1, 0x11, 0, 2, 0x11, 0, 3, 0x11, 0))
    scans = [
        grey[sos : sos + 5] + bytes((component,)) + grey[sos + 6 : -2] for component in (1, 2, 3)
    ]
    count = max(0, num_scans - 2)
    body = b"".join(scans[:2] + scans[2:] * count)
    return grey[:sof] + frame + grey[sof + 13 : sos] + body + b"\xff\xd9"


def scans_behind_garbage(num_scans: int) -> bytes:
    """Returns `progressive_jpeg` with bytes before a marker, which libjpeg skips."""
    data = progressive_jpeg(num_scans)
    place = data.index(b"\xff\xc2")
    return data[:place] + b"\x00garbage\xff\x00" + data[place:]


def scans_behind_an_end_in_a_comment(num_scans: int) -> bytes:
    """Returns `progressive_jpeg` with an end marker that is the text of a comment."""
    data = progressive_jpeg(num_scans)
    place = data.index(b"\xff\xda", data.index(b"\xff\xda") + 2)
    return data[:place] + b"\xff\xfe\x00\x04\xff\xd9" + data[place:]


def jpeg_with_many_comments(count: int) -> bytes:
    """Returns a JPEG with this number of empty comments before its frame."""
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8)).save(buffer, "JPEG")
    data = buffer.getvalue()
    return data[:2] + b"\xff\xfe\x00\x02" * count + data[2:]


def jpeg_that_claims(width: int = SIDE, height: int = SIDE, *, progressive: bool = False) -> bytes:
    """Returns a JPEG of 64 pixels with a header that claims a different size."""
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8)).save(buffer, "JPEG", progressive=progressive)
    data = bytearray(buffer.getvalue())
    place = data.index(b"\xff\xc2" if progressive else b"\xff\xc0")
    data[place + 5 : place + 9] = struct.pack(">HH", height, width)
    return bytes(data)


def chunk(kind: bytes, content: bytes) -> bytes:
    """Returns a chunk of a PNG."""
    crc = struct.pack(">I", zlib.crc32(kind + content))
    return struct.pack(">I", len(content)) + kind + content + crc


def png_that_claims(width: int = SIDE, height: int = SIDE) -> bytes:
    """Returns a PNG without pixels and a header that claims this size."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


def gif_that_claims(width: int = SIDE, height: int = SIDE, *, screen: int | None = None) -> bytes:
    """Returns a GIF of 43 bytes with a first image, of no pixels, that is to be disposed of.

    Pillow makes the canvas for this when it opens the file. `screen` is the side of the screen, if
    it is not that of the image.
    """
    sides = (width, height) if screen is None else (screen, screen)
    head = b"GIF89a" + struct.pack("<HHBBB", *sides, 0x80, 0, 0) + b"\0\0\0\xff\xff\xff"
    disposed = b"\x21\xf9\x04" + bytes((2 << 2, 0, 0, 0, 0))
    frame = b"," + struct.pack("<HHHHB", 0, 0, width, height, 0)
    return head + disposed + frame + b"\x02\x02\x4c\x01\0;"


def apng_that_claims(width: int = SIDE, height: int = SIDE, *, small_first: bool = False) -> bytes:
    """Returns an animated PNG with a first image, of no pixels, that is to be disposed of.

    Pillow makes the canvas for this when it opens the file, too. With `small_first`, a small header
    precedes the true one.
    """

    def header(width: int, height: int) -> bytes:
        return chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0))

    frame = struct.pack(">IIIIIHHBB", 0, width, height, 0, 0, 1, 1, 1, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + (header(1, 1) if small_first else b"")
        + header(width, height)
        + chunk(b"acTL", struct.pack(">II", 2, 0))
        + chunk(b"fcTL", frame)
        + chunk(b"IDAT", zlib.compress(b""))
        + chunk(b"IEND", b"")
    )


def webp_that_claims(side: int = 1 << 14) -> bytes:
    """Returns a WebP of the largest canvas, without pixels."""
    canvas = (side - 1).to_bytes(3, "little")
    chunk = b"VP8X" + struct.pack("<II", 10, 2) + canvas + canvas
    return b"RIFF" + struct.pack("<I", 4 + len(chunk)) + b"WEBP" + chunk


def lossless_jpeg(side: int = 420, components: int = 3) -> bytes:
    """Returns a sound lossless JPEG (SOF3), which libjpeg-turbo cannot downscale."""
    pixels = np.random.default_rng(side).integers(0, 256, (side // 4, side // 4, components))
    return frames.lossless(pixels.repeat(4, axis=0).repeat(4, axis=1))


def eps() -> bytes:
    """Returns an EPS, for which Pillow starts the program `gs` on PATH."""
    return b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 300 200\n%%EndComments\nshowpage\n%%EOF\n"


def tiff_in_a_tile(side: int, tile: int) -> bytes:
    """Returns a TIFF of side x side RGBA pixels in one deflated tile of tile x tile.

    A huge tile only has its beginning.
    """
    packed = zlib.compress(bytes(4 * min(tile * tile, 1 << 20)), 9)
    short = 3
    long = 4
    behind = 8 + 2 + 12 * 10 + 4
    entries = (
        (256, long, 1, side),
        (257, long, 1, side),
        (258, short, 4, behind),
        (259, short, 1, 8),
        (262, short, 1, 2),
        (277, short, 1, 4),
        (322, long, 1, tile),
        (323, long, 1, tile),
        (324, long, 1, behind + 8),
        (325, long, 1, len(packed)),
    )
    directory = b"".join(struct.pack("<HHII", *entry) for entry in entries)
    head = b"II*\0" + struct.pack("<IH", 8, len(entries))
    return head + directory + bytes(4) + struct.pack("<4H", 8, 8, 8, 8) + packed


def heavy_webp(side: int = 8000) -> bytes:
    """Returns a WebP of 33 kB at 8,000 squared, the image that takes the most memory to decode."""
    buffer = io.BytesIO()
    Image.new("RGB", (side, side), (10, 200, 30)).save(buffer, "WEBP", lossless=True, method=0)
    return buffer.getvalue()


def transparent_png(side: int) -> bytes:
    """Returns a PNG of few bytes with side x side transparent pixels."""
    buffer = io.BytesIO()
    Image.new("RGBA", (side, side)).save(buffer, "PNG")
    return buffer.getvalue()


def _with_scans(data: bytes, num_scans: int) -> bytes:
    # Tables are between scans, so each piece is a scan with its preceding tables.
    last = data.rindex(b"\xff\xda")
    there = data.count(b"\xff\xda")
    return data[:-2] + data[last:-2] * (num_scans - there) + b"\xff\xd9"
