"""Photographs as cameras and telephones write them: EXIF blocks, formats, odd names."""

from __future__ import annotations

import io
import itertools
import struct
import warnings

import numpy as np
from PIL import Image, ImageDraw, ImageOps

from imagenet_prep.codec.policy import Policy
from imagenet_prep.codec.transform import transform
from imagenet_prep.dataset.jpeg import APPLY, NEUTRAL

SHORT = 3
_ORIENTATION = 0x0112


def pixels(height: int, width: int, seed: int = 0) -> Image.Image:
    """Returns an image that looks different in each of the eight orientations."""
    rows, columns = np.mgrid[0:height, 0:width]
    channels = (columns * 200 / max(width - 1, 1), rows * 200 / max(height - 1, 1), rows * 0 + 90)
    image = Image.fromarray(np.stack(channels, axis=2).astype(np.uint8))
    draw = ImageDraw.Draw(image)
    rng = np.random.default_rng(seed)
    for _ in range(12):
        x = rng.integers(0, width)
        y = rng.integers(0, height)
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
    """Returns an EXIF block with the orientation as its last entry; the others have no meaning."""
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


HEIGHT = 96
WIDTH = 160
BROKEN = {"broken": exif(6, "MM", kind=2), "cut": exif(6, "II")[:-14], "zero": exif(0, "MM")}


def shown(data: bytes, *, obeys: bool) -> np.ndarray:
    """Returns the pixels of a decoder that obeys the tag, or of one that does not."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of damaged EXIF
        image = Image.open(io.BytesIO(data))
        if obeys:
            image = ImageOps.exif_transpose(image)
    return np.asarray(image.convert("RGB"), dtype=np.int16)


def sources() -> dict[str, bytes]:
    """Returns a photograph with each orientation in both byte orders, and with broken EXIF."""
    plain = photograph(HEIGHT, WIDTH)
    found = {}
    for orientation, order in itertools.product(range(1, 9), ("II", "MM")):
        found[f"{orientation} {order}"] = tagged(plain, orientation, order)
    for name, block in BROKEN.items():
        size = (len(block) + 2).to_bytes(2, "big")
        found[name] = plain[:2] + b"\xff\xe1" + size + block + plain[2:]
    return found


def stored() -> list[bytes]:
    """Returns every image with a tag as it is stored under each rule, kept or downscaled."""
    rules = itertools.product((APPLY, NEUTRAL), (None, 48))
    policies = [Policy(side, orientation=rule) for rule, side in rules]
    choices = itertools.product(sources().values(), policies)
    return [transform(data, policy).encoded for data, policy in choices]
