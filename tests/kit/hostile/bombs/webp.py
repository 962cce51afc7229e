"""WebPs with structures that repeat, claim or unpack."""

from __future__ import annotations

import functools
import io
import struct

from PIL import Image

from tests.kit.hostile import images
from tests.kit.hostile.bombs.tiff import DIRECTORIES, Entry, directory

_ICC = 0x20
_ALPHA = 0x10
_EXIF = 8
_XMP = 4
_ANIMATION = 2


@functools.cache
def _pixels(*, lossless: bool = False) -> bytes:
    """Returns the chunk with the pixels of a small sound WebP."""
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8), "red").save(buffer, "WEBP", lossless=lossless)
    return buffer.getvalue()[12:]


def _chunk(kind: bytes, content: bytes) -> bytes:
    return kind + struct.pack("<I", len(content)) + content + bytes(len(content) % 2)


def _riff(parts: bytes) -> bytes:
    return b"RIFF" + struct.pack("<I", 4 + len(parts)) + b"WEBP" + parts


def _canvas(flags: int, side: int = 8) -> bytes:
    size = (side - 1).to_bytes(3, "little")
    return _chunk(b"VP8X", struct.pack("<I", flags) + size + size)


def _frame(side: int = 8) -> bytes:
    size = (side - 1).to_bytes(3, "little")
    return _chunk(b"ANMF", bytes(6) + size + size + bytes(4) + _pixels())


def _animation(frames: bytes, side: int = 8) -> bytes:
    return _riff(_canvas(_ANIMATION, side) + _chunk(b"ANIM", bytes(6)) + frames)


def unknown_chunks(count: int) -> bytes:
    return _riff(_canvas(0) + _pixels() + _chunk(b"abcd", b"") * count)


def unknown_chunks_before_pixels(count: int) -> bytes:
    return _riff(_canvas(0) + _chunk(b"abcd", b"") * count + _pixels())


def exif(count: int) -> bytes:
    entry: Entry = (0x0112, 3, 1, struct.pack("<HH", 6, 0))
    content = directory([entry] * 9_000)
    return _riff(_canvas(_EXIF) + _pixels() + _chunk(b"EXIF", content) * count)


def exif_that_points_to_itself(count: int) -> bytes:
    content = directory(DIRECTORIES, following=8)
    return _riff(_canvas(_EXIF) + _pixels() + _chunk(b"EXIF", content) * count)


def xmp(size: int) -> bytes:
    return _riff(_canvas(_XMP) + _pixels() + _chunk(b"XMP ", b"x" * size))


def profile(size: int) -> bytes:
    return _riff(_canvas(_ICC) + _chunk(b"ICCP", bytes(size)) + _pixels())


def alpha(size: int) -> bytes:
    return _riff(_canvas(_ALPHA) + _chunk(b"ALPH", bytes(size)) + _pixels())


def frames(count: int) -> bytes:
    return _animation(_frame() * count)


def frame_on_large_canvas(side: int) -> bytes:
    return _animation(_frame(), side)


def frame_claims(side: int) -> bytes:
    return _animation(_frame(side), side)


def size_claims(size: int) -> bytes:
    data = _riff(_pixels())
    return data[:4] + struct.pack("<I", size) + data[8:]


def chunk_claims(size: int) -> bytes:
    data = _riff(_pixels())
    return data[:16] + struct.pack("<I", size) + data[20:]


def lossy_claims(side: int) -> bytes:
    data = bytearray(_riff(_pixels()))
    data[26:30] = struct.pack("<HH", side, side)
    return bytes(data)


def lossless_claims(side: int) -> bytes:
    data = bytearray(_riff(_pixels(lossless=True)))
    data[21:25] = struct.pack("<I", (side - 1) | (side - 1) << 14)
    return bytes(data)


# fmt: off
TABLE = {
    "canvas": (images.webp_that_claims, (1_000, 8_000, 16_384)),
    "unknown chunks": (unknown_chunks, (10, 100_000, 3_700_000)),
    "unknown chunks before the pixels": (unknown_chunks_before_pixels, (10, 3_700_000)),
    "EXIF": (exif, (1, 270)),
    "EXIF that points to itself": (exif_that_points_to_itself, (1, 500_000)),
    "XMP": (xmp, (1_000, 30_000_000)),
    "profile": (profile, (1_000, 30_000_000)),
    "alpha": (alpha, (10, 30_000_000)),
    "frames": (frames, (10, 10_000, 400_000)),
    "a frame on a large canvas": (frame_on_large_canvas, (1_000, 8_000, 16_384)),
    "claims of a frame": (frame_claims, (1_000, 8_000)),
    "claimed size": (size_claims, (0, 2**32 - 1)),
    "claimed size of a chunk": (chunk_claims, (0, 2**32 - 1)),
    "lossy claims": (lossy_claims, (1_000, 8_000, 16_383)),
    "lossless claims": (lossless_claims, (1_000, 8_000, 16_384)),
    "sound pixels": (images.heavy_webp, (100, 8_000)),
}
# fmt: on
