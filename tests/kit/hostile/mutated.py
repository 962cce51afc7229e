"""Damaged images of all formats, the same on every machine, made with knowledge of their parts.

Parts are the segments, chunks, boxes, blocks and entries of a file. They are swapped between files,
repeated and removed, and their lengths and counts are changed.
"""

from __future__ import annotations

import functools
import io
import random
import zlib
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

from PIL import Image

from imagenet_prep.dataset import formats
from tests.kit.codec import frames, mutations
from tests.kit.hostile.bombs import BOMBS, SMALLEST

_SIZE = (52, 36)
# Files of more bytes would only be slower.
_MOST_BYTES = 20_000
_NUMBERS = (0, 1, 2, 7, 8, 255, 256, 32_767, 65_535, 2**24, 2**31 - 1, 2**31, 2**32 - 1)
_BOXES_WITH_BOXES = {b"iprp": 8, b"ipco": 8, b"moov": 8, b"trak": 8, b"meta": 12, b"iinf": 14}

Order = Literal["little", "big"]


class Part(NamedTuple):
    """A part of a file: its start and end, and the position of its length or count."""

    start: int
    end: int
    length_at: int
    length_bytes: int
    order: Order


def _saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


@functools.cache
def sound() -> dict[str, bytes]:
    """Returns sound images by name; most encoders of Pillow are used."""
    pixels = mutations.photograph(_SIZE)
    image = Image.fromarray(pixels)
    clear = image.convert("RGBA")
    clear.putalpha(120)
    exif = Image.Exif()
    exif[0x0112] = 6
    second = {"save_all": True, "append_images": [image.rotate(180)]}
    found = {f"JPEG {name}": data for name, data in mutations.sources(_SIZE).items()}
    found["JPEG lossless"] = frames.lossless(pixels)
    found["JPEG arithmetic"] = frames.arithmetic(pixels)
    for mode in ("1", "L", "P", "LA", "RGB", "RGBA", "I;16"):
        found[f"PNG {mode}"] = _saved(image.convert("L").convert(mode), "PNG")
    found["PNG exif"] = _saved(image, "PNG", exif=exif)
    for kind in ("PNG", "GIF", "WEBP", "AVIF", "TIFF"):
        found[f"{kind} of two frames"] = _saved(image, kind, **second)
    for mode in ("1", "L", "P", "RGB", "RGBA"):
        found[f"BMP {mode}"] = _saved(image.convert(mode), "BMP")
    for packed in ("raw", "packbits", "tiff_lzw", "tiff_adobe_deflate", "jpeg"):
        found[f"TIFF {packed}"] = _saved(image, "TIFF", compression=packed)
    found["TIFF group4"] = _saved(image.convert("1"), "TIFF", compression="group4")
    found["TIFF of 16 bits"] = _saved(image.convert("L").convert("I;16"), "TIFF")
    found["BigTIFF"] = _saved(image, "TIFF", big_tiff=True)
    for lossless in (False, True):
        found[f"WebP {lossless}"] = _saved(clear, "WEBP", lossless=lossless, exif=exif)
    found["AVIF"] = _saved(clear, "AVIF", exif=exif.tobytes())
    if formats.is_readable(formats.HEIC):
        import pillow_heif

        pillow_heif.register_heif_opener(thumbnails=False)
        found["HEIC"] = _saved(image, "HEIF")
        found["HEIC of two frames"] = _saved(clear, "HEIF", **second)
    return found


@functools.cache
def _sources() -> tuple[list[bytes], list[bytes]]:
    """Returns sound images, and small bombs."""
    small = (BOMBS[name]() for name in SMALLEST)
    return [*sound().values()], [data for data in small if 32 < len(data) < _MOST_BYTES]


def mutated(seed: int, count: int) -> Iterator[tuple[str, bytes]]:
    """Yields the changes and the bytes of each file; the same for the same arguments."""
    rng = random.Random(seed)
    images, bombs = _sources()
    for number in range(count):
        data = bytearray(rng.choice(images if rng.random() < 0.7 else bombs))
        names = [f"seed {seed}, file {number}"]
        for _ in range(rng.choice((1, 1, 1, 1, 2, 3))):
            if len(data) < 16:
                break
            way = rng.choice(_WAYS)
            way(data, rng, bytearray(rng.choice(images)))
            names.append(way.__name__)
        if rng.random() < 0.8:
            _fix_checksums(data)
        yield ", ".join(names), bytes(data)


def _fix_checksums(data: bytearray) -> None:
    """Corrects the checksums of a PNG, because a decoder refuses a chunk with a wrong one."""
    if not data.startswith(b"\x89PNG\r\n\x1a\n"):
        return
    for part in _chunks(data):
        if part.end <= len(data):
            crc = zlib.crc32(data[part.start + 4 : part.end - 4])
            data[part.end - 4 : part.end] = crc.to_bytes(4, "big")


def parts(data: bytes | bytearray) -> list[Part]:
    """Returns the parts of a file, and none for an unknown format."""
    head = bytes(data[: formats.HEAD_BYTES])
    walk = {
        "JPEG": _segments,
        "PNG": _chunks,
        "GIF": _blocks,
        "BMP": _fields,
        "TIFF": _entries,
        "WebP": _riff_chunks,
        "AVIF": _boxes,
        "HEIC": _boxes,
    }.get(formats.name_of(head) or "")
    return [] if walk is None else [*walk(data)]


def _number(data: bytes | bytearray, at: int, size: int, order: Order) -> int:
    return int.from_bytes(data[at : at + size], order)


def _segments(data: bytes | bytearray) -> Iterator[Part]:
    at = 2
    while at + 4 <= len(data) and data[at] == 0xFF:
        end = at + 2 + _number(data, at + 2, 2, "big")
        yield Part(at, end, at + 2, 2, "big")
        if data[at + 1] == 0xDA:
            return
        at = end


def _chunks(data: bytes | bytearray) -> Iterator[Part]:
    at = 8
    while at + 12 <= len(data):
        end = at + 12 + _number(data, at, 4, "big")
        yield Part(at, end, at, 4, "big")
        at = end


def _riff_chunks(data: bytes | bytearray) -> Iterator[Part]:
    at = 12
    while at + 8 <= len(data):
        size = _number(data, at + 4, 4, "little")
        end = at + 8 + size + size % 2
        yield Part(at, end, at + 4, 4, "little")
        at = end


def _blocks(data: bytes | bytearray) -> Iterator[Part]:
    """Yields the blocks of 255 bytes at most, which start with their length."""
    at = 13
    if data[10] & 0x80:
        at += 3 << (data[10] & 7) + 1
    while at + 11 < len(data):
        at += 10 if data[at] == 0x2C else 2
        if data[at - 10] == 0x2C:
            at += 1  # the size of the codes
        while at < len(data) and data[at]:
            end = at + 1 + data[at]
            yield Part(at, end, at, 1, "little")
            at = end
        at += 1


def _fields(_: bytes | bytearray) -> Iterator[Part]:
    for at in range(2, 54, 4):
        yield Part(at, at + 4, at, 4, "little")


def _entries(data: bytes | bytearray) -> Iterator[Part]:
    order: Order = "little" if data.startswith(b"II") else "big"
    if _number(data, 2, 2, order) == 43:  # BigTIFF
        at = _number(data, 8, 8, order)
        entry_bytes = 20
        count_at = 4
        count_bytes = 8
        count = _number(data, at, 8, order)
        at += 8
    else:
        at = _number(data, 4, 4, order)
        entry_bytes = 12
        count_at = 4
        count_bytes = 4
        count = _number(data, at, 2, order)
        at += 2
    for _ in range(count):
        if at + entry_bytes > len(data):
            return
        yield Part(at, at + entry_bytes, at + count_at, count_bytes, order)
        at += entry_bytes


def _boxes(data: bytes | bytearray, start: int = 0, stop: int | None = None) -> Iterator[Part]:
    at = start
    last = len(data) if stop is None else min(stop, len(data))
    while at + 8 <= last:
        size = _number(data, at, 4, "big")
        if size < 8:
            return
        yield Part(at, at + size, at, 4, "big")
        inner = _BOXES_WITH_BOXES.get(bytes(data[at + 4 : at + 8]))
        if inner is not None:
            yield from _boxes(data, at + inner, at + size)
        at += size


def change_length(data: bytearray, rng: random.Random, _: bytearray) -> None:
    """Changes the length or the count of a part."""
    found = parts(data)
    if not found:
        return
    part = rng.choice(found)
    before = _number(data, part.length_at, part.length_bytes, part.order)
    value = rng.choice((*_NUMBERS, before - 1, before + 1, before * 2, rng.randrange(1 << 32)))
    value %= 1 << 8 * part.length_bytes
    end = part.length_at + part.length_bytes
    data[part.length_at : end] = value.to_bytes(part.length_bytes, part.order)


def change_number(data: bytearray, rng: random.Random, _: bytearray) -> None:
    """Writes a number at any place, mostly in the header."""
    size = rng.choice((1, 2, 4))
    at = rng.randrange(rng.choice((len(data), min(len(data), 100), min(len(data), 400))))
    order = rng.choice(("little", "big"))
    value = rng.choice(_NUMBERS) % (1 << 8 * size)
    data[at : at + size] = value.to_bytes(size, "little" if order == "little" else "big")


def swap_part(data: bytearray, rng: random.Random, other: bytearray) -> None:
    """Replaces a part by one of a different file, perhaps of a different format."""
    ours = parts(data)
    theirs = parts(other)
    if ours and theirs:
        part = rng.choice(ours)
        given = rng.choice(theirs)
        data[part.start : part.end] = other[given.start : given.end]


def insert_part(data: bytearray, rng: random.Random, other: bytearray) -> None:
    ours = parts(data)
    theirs = parts(other)
    if ours and theirs:
        part = rng.choice(ours)
        given = rng.choice(theirs)
        data[part.start : part.start] = other[given.start : given.end]


def repeat_part(data: bytearray, rng: random.Random, _: bytearray) -> None:
    found = parts(data)
    if found:
        part = rng.choice(found)
        data[part.end : part.end] = data[part.start : part.end] * rng.choice((1, 2, 9, 100))


def remove_part(data: bytearray, rng: random.Random, _: bytearray) -> None:
    found = parts(data)
    if found:
        part = rng.choice(found)
        del data[part.start : part.end]


def change_bytes(data: bytearray, rng: random.Random, _: bytearray) -> None:
    for _number_of_change in range(rng.choice((1, 2, 8))):
        at = rng.randrange(min(len(data), rng.choice((len(data), 400))))
        data[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))


_WAYS: tuple[Callable[[bytearray, random.Random, bytearray], None], ...] = (
    change_length,
    change_length,
    change_number,
    change_number,
    change_bytes,
    change_bytes,
    swap_part,
    insert_part,
    repeat_part,
    remove_part,
    mutations.flip_bits,
    mutations.cut_end,
    mutations.cut_few,
    mutations.cut_middle,
    mutations.insert,
    mutations.swap_blocks,
    mutations.zero_block,
    mutations.append,
)
