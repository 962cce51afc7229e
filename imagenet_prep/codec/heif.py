"""Reads the image sizes in AVIF and HEIC files, before a decoder allocates memory for them.

Both formats are HEIF (ISO/IEC 23008-12), a format of nested boxes. The box `ispe` has the size of
an image or tile. AV1 decoders ignore this size and use the sequence headers in the data; libheif
compares this size with the HEVC data.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from itertools import count, islice

from imagenet_prep.core.errors import BadImageError

# Kinds of boxes that contain boxes, and the number of bytes before the first inner box.
_WITHIN = dict.fromkeys((b"iprp", b"ipco", b"moov", b"trak", b"mdia", b"minf", b"stbl"), 0)
_WITHIN[b"meta"] = 4
_READ = {b"ispe", b"infe", b"iloc", b"idat", b"stsz", b"stco", b"co64"}
# A photograph with 256 tiles has about a thousand boxes and data units.
_MOST_PARTS = 20_000
# All images of a file (tiles, alpha, gain map, thumbnail) may together have 4 * `max_pixels`.
_MOST_TIMES = 4
_SEQUENCE_HEADER = 1


def sizes(data: bytes, max_pixels: int) -> Iterator[tuple[int, int]]:
    """Yields (width, height) of all images; raises BadImageError for too many pixels in total."""
    parts, pixels = count(1), 0

    def part() -> None:
        if next(parts) > _MOST_PARTS:
            raise BadImageError("undecodable", f"it has more than {_MOST_PARTS:,} parts")

    boxes = [*_boxes(data, part)]
    yield from ((_int(box[4:8]), _int(box[8:12])) for kind, box in boxes if kind == b"ispe")
    for stream in _streams(data, boxes, part):
        for header in _sequence_headers(stream, part):
            width, height = _largest_frame(header)
            yield width, height
            pixels += width * height
            if pixels > _MOST_TIMES * max_pixels:
                raise BadImageError("too_many_pixels", f"its pictures have {pixels:,} together")


def _int(data: bytes) -> int:
    return int.from_bytes(data, "big")


def _boxes(data: bytes, part: Callable[[], None]) -> Iterator[tuple[bytes, bytes]]:
    """Yields (kind, content) of all boxes with a kind in _READ, including nested ones."""
    waiting = [(0, len(data))]
    while waiting:
        at, stop = waiting.pop()
        while stop - at >= 8:
            part()
            size, kind, body = _int(data[at : at + 4]), data[at + 4 : at + 8], at + 8
            if size == 1:
                size, body = _int(data[body : body + 8]), body + 8
            end = at + size if size else stop
            if not body <= end <= stop:
                break
            if kind == b"iinf":
                waiting.append((body + (8 if data[body] else 6), end))
            elif kind in _WITHIN:
                waiting.append((body + _WITHIN[kind], end))
            elif kind in _READ:
                yield kind, data[body:end]
            at = end


def _streams(
    data: bytes, boxes: list[tuple[bytes, bytes]], part: Callable[[], None]
) -> Iterator[bytes]:
    """Yields the data of all AV1 items, and of the first sample of each track."""
    coded, small, most, left = set[int](), b"", 0, 2 * len(data)

    def piece(store: bytes, at: int, size: int) -> bytes:
        nonlocal left
        found = store[at : at + size]
        left -= len(found)
        if left < 0:
            raise BadImageError("undecodable", "its items overlap")
        return found

    for kind, box in boxes:
        wide = 2 * (kind == b"infe" and box[0] > 2)
        if kind == b"infe" and box[8 + wide : 12 + wide] == b"av01":
            coded.add(_int(box[4 : 6 + wide]))
        elif kind == b"idat":
            small = box
        elif kind == b"stsz":
            most = max(most, _int(box[4:8]) or _int(box[12:16]))
    for kind, box in boxes:
        if kind == b"iloc":
            for item, in_idat, places in _located(box, part):
                if item in coded:
                    store = small if in_idat else data
                    # Length 0 means up to the end of the data.
                    yield b"".join(piece(store, at, size or len(store)) for at, size in places)
        elif kind in (b"stco", b"co64"):
            # `most` is the size of the largest sample, so `piece` may return more than one sample.
            yield piece(data, _int(box[8 : 12 if kind == b"stco" else 16]), most)


def _located(
    box: bytes, part: Callable[[], None]
) -> Iterator[tuple[int, bool, list[tuple[int, int]]]]:
    """Parses `iloc`: yields (item, True if its data are in `idat`, its (offset, length) pairs)."""
    file, version, wide = io.BytesIO(box), box[0], 4 if box[0] > 1 else 2

    def take(size: int) -> int:
        return _int(file.read(size))

    widths = take(6)
    offset_size, length_size, base_size, index_size = (widths >> n & 15 for n in (12, 8, 4, 0))
    for _ in range(take(wide)):
        part()
        item, method = take(wide), take(2) & 15 if version else 0
        base, places = take(2 + base_size) & (1 << 8 * base_size) - 1, []
        for _ in range(take(2)):
            part()
            take(index_size if version else 0)
            places.append((base + take(offset_size), take(length_size)))
        yield item, method == 1, places


def _sequence_headers(units: bytes, part: Callable[[], None]) -> Iterator[bytes]:
    at = 0
    while at < len(units):
        part()
        head, size, shift = units[at], len(units), 0
        at += 1 + (head >> 2 & 1)
        if head & 2:
            size, digit = 0, 128
            while digit & 128:
                digit = _int(units[at : at + 1])
                size, shift, at = size | (digit & 127) << shift, shift + 7, at + 1
        if head >> 3 & 15 == _SEQUENCE_HEADER:
            yield units[at : at + min(size, 512)]
        at += size


def _largest_frame(header: bytes) -> tuple[int, int]:
    """Returns the largest frame width and height in an AV1 sequence header (5.5.1)."""
    bits = iter("".join(f"{byte:08b}" for byte in header))

    def take(size: int) -> int:
        return int("0" + "".join(islice(bits, size)), 2)

    take(4)
    if take(1):
        take(5)
    else:
        model = delay = 0
        if take(1):  # timing
            take(64)
            if take(1):
                take(next((zeros for zeros in range(32) if take(1)), 0))
            if model := take(1):
                delay = take(5) + 1
                take(42)
        shows_delay = take(1)
        for _ in range(take(5) + 1):
            take(12)
            take(take(5) > 7)
            take(2 * delay + 1 if model and take(1) else 0)
            take(4 if shows_delay and take(1) else 0)
    width_bits, height_bits = take(4) + 1, take(4) + 1
    return take(width_bits) + 1, take(height_bits) + 1
