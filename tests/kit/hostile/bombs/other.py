"""Files of formats that are not read, and files that only start like an image."""

from __future__ import annotations

from tests.kit.hostile import images


def _head(head: bytes, size: int) -> bytes:
    return head + bytes(size)


def jpeg_xl(size: int) -> bytes:
    return _head(b"\xff\x0a", size)


def jpeg_2000(size: int) -> bytes:
    return _head(b"\0\0\0\x0cjP  \r\n\x87\n", size)


def photoshop(size: int) -> bytes:
    return _head(b"8BPS", size)


def big_endian_big_tiff(size: int) -> bytes:
    return _head(b"MM\0+\0\x08\0\0" + b"\xff" * 8, size)


def eps(size: int) -> bytes:
    return images.eps() + b"\n" * size


def zeros(size: int) -> bytes:
    return bytes(size)


def line_ends(size: int) -> bytes:
    return b"\n" * size


# fmt: off
TABLE = {
    "JPEG XL": (jpeg_xl, (100, 30_000_000)),
    "JPEG 2000": (jpeg_2000, (100, 30_000_000)),
    "Photoshop": (photoshop, (100, 30_000_000)),
    "big-endian BigTIFF": (big_endian_big_tiff, (100, 30_000_000)),
    "EPS": (eps, (100, 30_000_000)),
    "zeros": (zeros, (0, 1, 30_000_000)),
    "line ends": (line_ends, (100, 30_000_000)),
}
# fmt: on
