"""Damaged JPEGs, the same on every machine, with the faults of disks, networks and editors."""

from __future__ import annotations

import io
import random
from collections.abc import Iterator

import numpy as np
from PIL import Image

from tests.kit.codec import jpegs

_SIZE = (160, 120)


def photograph(size: tuple[int, int] = _SIZE) -> np.ndarray:
    """Returns uint8 RGB pixels: smooth shapes and grain, so that every coefficient is used."""
    rng = np.random.default_rng(0)
    small = rng.integers(0, 256, (8, 10, 3), dtype=np.uint8)
    smooth = np.asarray(Image.fromarray(small).resize(size, Image.Resampling.BICUBIC), np.int16)
    grain = rng.normal(0, 12, smooth.shape).astype(np.int16)
    return np.clip(smooth + grain, 0, 255).astype(np.uint8)


def _encoded(image: Image.Image, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", **options)
    return buffer.getvalue()


def sources(size: tuple[int, int] = _SIZE) -> dict[str, bytes]:
    """Returns sound JPEGs of every kind that codecs treat differently."""
    pixels = photograph(size)
    image = Image.fromarray(pixels)
    exif = Image.Exif()
    exif[0x0112] = 6
    return {
        "420": jpegs.encode(pixels, 90, "420"),
        "444": jpegs.encode(pixels, 60, "444"),
        "422": _encoded(image, quality=85, subsampling="4:2:2"),
        "progressive": _encoded(image, quality=85, progressive=True),
        "optimized": _encoded(image, quality=30, optimize=True),
        "restarts": _encoded(image, quality=85, restart_marker_blocks=4),
        "grey": _encoded(image.convert("L"), quality=85),
        "cmyk": _encoded(image.convert("CMYK"), quality=85),
        "exif": _encoded(image, quality=85, exif=exif),
        "comment": _encoded(image, quality=85, comment=b"\xff\xd9 no end \xff\xda no scan"),
    }


def mutated(seed: int, count: int) -> Iterator[tuple[str, bytes]]:
    """Yields (description, bytes) of damaged JPEGs; the same for the same arguments."""
    rng = random.Random(seed)
    sound = sources()
    names = sorted(sound)
    for _ in range(count):
        name = rng.choice(names)
        data = bytearray(sound[name])
        how = rng.choice(WAYS)
        how(data, rng, bytearray(sound[rng.choice(names)]))
        yield f"{name} {how.__name__}", bytes(data)


def flip_bits(data: bytearray, rng: random.Random, _: bytearray) -> None:
    for _ in range(rng.choice([1, 1, 2, 8, 64])):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def flip_header_bits(data: bytearray, rng: random.Random, _: bytearray) -> None:
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        data[rng.randrange(2, min(len(data), 640))] ^= 1 << rng.randrange(8)


def cut_end(data: bytearray, rng: random.Random, _: bytearray) -> None:
    del data[rng.randrange(len(data)) :]


def cut_few(data: bytearray, rng: random.Random, _: bytearray) -> None:
    del data[-rng.randint(1, 8) :]


def cut_middle(data: bytearray, rng: random.Random, _: bytearray) -> None:
    start = rng.randrange(len(data))
    del data[start : start + rng.choice([1, 2, 16, 512])]


def insert(data: bytearray, rng: random.Random, _: bytearray) -> None:
    start = rng.randrange(len(data))
    data[start:start] = rng.randbytes(rng.choice([1, 2, 16, 512]))


def splice(data: bytearray, rng: random.Random, other: bytearray) -> None:
    """Joins the head of one file to the tail of a second one at their start of scan."""
    data[data.find(b"\xff\xda") :] = other[other.find(b"\xff\xda") :]


def swap_blocks(data: bytearray, rng: random.Random, _: bytearray) -> None:
    size = rng.choice([16, 256, 512])
    first, second = sorted(rng.randrange(len(data)) for _ in range(2))
    one, two = data[first : first + size], data[second : second + size]
    data[second : second + len(one)] = one
    data[first : first + len(two)] = two


def zero_block(data: bytearray, rng: random.Random, _: bytearray) -> None:
    """Returns a file with a block of zeros, as a sparse download leaves it."""
    start = rng.randrange(len(data))
    size = rng.choice([16, 512, 4096])
    data[start : start + size] = bytes(len(data[start : start + size]))


def other_markers(data: bytearray, rng: random.Random, _: bytearray) -> None:
    places = [i for i in range(len(data) - 1) if data[i] == 0xFF and data[i + 1] not in (0, 0xFF)]
    data[rng.choice(places) + 1] = rng.randrange(1, 255)


def append(data: bytearray, rng: random.Random, other: bytearray) -> None:
    data += rng.choice([bytes(100), rng.randbytes(100), other, other[: len(other) // 2]])


WAYS = (
    flip_bits,
    flip_header_bits,
    cut_end,
    cut_few,
    cut_middle,
    insert,
    splice,
    swap_blocks,
    zero_block,
    other_markers,
    append,
)
