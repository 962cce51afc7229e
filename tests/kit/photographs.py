"""Photographs as cameras and telephones leave them: EXIF blocks, formats, odd names."""

from __future__ import annotations

import io
import struct

import numpy as np
from PIL import Image, ImageDraw

SHORT = 3
_ORIENTATION = 0x0112


def pixels(height: int, width: int, seed: int = 0) -> Image.Image:
    """Returns a picture that looks other in each of the eight orientations."""
    rows, columns = np.mgrid[0:height, 0:width]
    channels = (columns * 200 / max(width - 1, 1), rows * 200 / max(height - 1, 1), rows * 0 + 90)
    image = Image.fromarray(np.stack(channels, axis=2).astype(np.uint8))
    draw = ImageDraw.Draw(image)
    rng = np.random.default_rng(seed)
    for _ in range(12):
        x, y = rng.integers(0, width), rng.integers(0, height)
        side = max(2, min(height, width) // 6)
        color = tuple(map(int, rng.integers(0, 256, 3)))
        draw.ellipse((x, y, x + side, y + side // 2), fill=color)
    draw.rectangle((0, 0, width // 3, height // 8), fill=(250, 30, 30))
    return image


def photograph(height: int, width: int, seed: int = 0, **options: object) -> bytes:
    """Returns a JPEG of `pixels`."""
    buffer = io.BytesIO()
    pixels(height, width, seed).save(buffer, "JPEG", quality=92, **options)
    return buffer.getvalue()


def exif(
    value: int, order: str = "II", *, kind: int = SHORT, count: int = 1, entries: int = 1
) -> bytes:
    """Returns an EXIF block whose last entry is the orientation; those before it mean nothing."""
    sign = "<" if order == "II" else ">"
    size = {1: "B3x", 4: "L"}.get(kind, "H2x")
    body = b"".join(
        struct.pack(f"{sign}HHLL", 0x0100, 4, 1, number) for number in range(entries - 1)
    )
    body += struct.pack(f"{sign}HHL{size}", _ORIENTATION, kind, count, value)
    head = order.encode() + struct.pack(f"{sign}HLH", 42, 8, entries)
    return b"Exif\0\0" + head + body + bytes(4)


def tagged(jpeg: bytes, value: int, order: str = "II", **odd: int) -> bytes:
    """Returns a JPEG with an EXIF block of this orientation."""
    block = exif(value, order, **odd)
    return jpeg[:2] + b"\xff\xe1" + struct.pack(">H", len(block) + 2) + block + jpeg[2:]
