"""AVIFs and HEICs with structures that repeat, nest, overlap or claim."""

from __future__ import annotations

import functools
import io
import struct
from collections.abc import Callable
from typing import NamedTuple

from PIL import Image

from imagenet_prep.dataset import formats

_VERSION_0 = bytes(4)
_VERSION_2 = b"\2\0\0\0"
_GRID = b"grid"
_EXIF = b"Exif"
_AVIF = b"avif"
_HEIC = b"heic"
_SIDE = 64
_LARGEST_SIDE = 65_500


def box(kind: bytes, content: bytes, version: bytes = b"") -> bytes:
    """Returns a box; `version` and its flags are four bytes, if the box has them."""
    return struct.pack(">I", 8 + len(version) + len(content)) + kind + version + content


def sequence_header(width: int, height: int) -> bytes:
    """Returns a unit of AV1 (OBU): the sequence header of a still picture of this size."""
    bits = "000" + "1" + "1" + 5 * "0"  # profile 0, still, reduced header, level 0
    for side in (15, 15):
        bits += f"{side:04b}"
    bits += f"{width - 1:016b}{height - 1:016b}"
    content = int(bits.ljust(56, "0"), 2).to_bytes(7, "big")
    return bytes((1 << 3 | 2, len(content))) + content


def _size(side: int) -> bytes:
    """Returns the property with the size of a square picture."""
    return box(b"ispe", struct.pack(">II", side, side), _VERSION_0)


class Item(NamedTuple):
    """An item of a file.

    Attributes:
      kind: its type; b"" for a picture.
      extents: the number of times that its data is repeated.
      properties: the numbers of its properties, from 1.
      start: the offset of its data in `mdat`.
      size: the number of bytes of its data; None for the rest.
    """

    kind: bytes = b""
    extents: int = 1
    properties: tuple[int, ...] = (1, 2, 3)
    start: int = 0
    size: int | None = None


class _Codec(NamedTuple):
    """The type of items with pictures, their configuration, and a sound picture."""

    kind: bytes
    configuration: bytes
    frame: bytes


@functools.cache
def _codec(brand: bytes) -> _Codec:
    """Returns HEVC for HEIC, if it can be encoded here, and AV1 otherwise."""
    kind = b"av01"
    name = "AVIF"
    config = b"av1C"
    if brand == _HEIC and formats.is_readable(formats.HEIC):
        import pillow_heif

        pillow_heif.register_heif_opener(thumbnails=False)
        kind = b"hvc1"
        name = "HEIF"
        config = b"hvcC"
    buffer = io.BytesIO()
    Image.new("RGB", (_SIDE, _SIDE), "red").save(buffer, name)
    data = buffer.getvalue()
    start = data.index(config) - 4
    size = int.from_bytes(data[start : start + 4], "big")
    return _Codec(kind, data[start : start + size], data[data.index(b"mdat") + 4 :])


def heif(
    data: bytes,
    side: int = 64,
    brand: bytes = _AVIF,
    *,
    items: tuple[Item, ...] = (Item(),),
    boxes: bytes = b"",
    properties: bytes = b"",
    top: bytes = b"",
    brands: bytes = b"",
) -> bytes:
    """Returns a file with items that have their data in `mdat`, mostly all the same.

    Args:
      side: of the square that the property `ispe` claims.
      boxes: more boxes in `meta`.
      properties: more properties in `ipco`.
      top: more boxes between `ftyp` and `meta`.
      brands: more brands in `ftyp`.
    """
    codec = _codec(brand)
    known = _size(side) + codec.configuration + box(b"pixi", bytes((3, 8, 8, 8)), _VERSION_0)
    uses = []
    described = []
    for number, item in enumerate(items, 1):
        uses.append(struct.pack(">HB", number, len(item.properties)) + bytes(item.properties))
        entry = struct.pack(">HH4s", number, 0, item.kind or codec.kind) + b"\0"
        described.append(box(b"infe", entry, _VERSION_2))
    associations = box(b"ipma", struct.pack(">I", len(items)) + b"".join(uses), _VERSION_0)
    start = 0
    for _ in range(2):  # the offset of the data depends on the length of the preceding boxes
        located = struct.pack(">BBH", 0x44, 0, len(items))
        places = []
        for number, item in enumerate(items, 1):
            size = len(data) - item.start if item.size is None else item.size
            extent = struct.pack(">II", start + item.start, size)
            places.append(struct.pack(">HHH", number, 0, item.extents) + extent * item.extents)
        meta = (
            box(b"hdlr", struct.pack(">I4s", 0, b"pict") + bytes(13), _VERSION_0)
            + box(b"pitm", struct.pack(">H", 1), _VERSION_0)
            + box(b"iloc", located + b"".join(places), _VERSION_0)
            + box(b"iinf", struct.pack(">H", len(items)) + b"".join(described), _VERSION_0)
            + box(b"iprp", box(b"ipco", known + properties) + associations)
            + boxes
        )
        kinds = box(b"ftyp", brand + _VERSION_0 + b"mif1miaf" + brand + brands)
        head = kinds + top + box(b"meta", meta, _VERSION_0)
        start = len(head) + 8
    return head + box(b"mdat", data)


def _frame(brand: bytes) -> bytes:
    return _codec(brand).frame


def frame_claims(side: int, brand: bytes = _AVIF) -> bytes:
    """The frame claims 65,500 x 65,500 pixels, and the box a different size."""
    return heif(b"\x12\0" + sequence_header(_LARGEST_SIDE, _LARGEST_SIDE), side, brand)


def box_claims(side: int, brand: bytes = _AVIF) -> bytes:
    return heif(_frame(brand), side, brand)


def digits(count: int, brand: bytes = _AVIF) -> bytes:
    """The size of a unit has as many digits as the file has bytes."""
    return heif(b"\x0a" + b"\xff" * count, brand=brand)


def empty_units(count: int, brand: bytes = _AVIF) -> bytes:
    return heif(b"\x12\0" * count, brand=brand)


def sequence_headers(count: int, brand: bytes = _AVIF) -> bytes:
    return heif(b"\x12\0" + sequence_header(64, 64) * count, brand=brand)


def frames(count: int, brand: bytes = _AVIF) -> bytes:
    return heif(_frame(brand) * count, brand=brand)


def nested_boxes(depth: int, brand: bytes = _AVIF) -> bytes:
    """Boxes of properties in boxes of properties; each size covers the rest."""
    return heif(_frame(brand), brand=brand, properties=_nested(b"ipco", depth))


def nested_top_boxes(depth: int, brand: bytes = _AVIF) -> bytes:
    return heif(_frame(brand), brand=brand, top=_nested(b"moov", depth))


def _nested(kind: bytes, depth: int) -> bytes:
    heads = [struct.pack(">I4s", 8 * (depth - number), kind) for number in range(depth)]
    return b"".join(heads)


def free_boxes(count: int, brand: bytes = _AVIF) -> bytes:
    return heif(_frame(brand), brand=brand, top=box(b"free", b"") * count)


def free_boxes_in_meta(count: int, brand: bytes = _AVIF) -> bytes:
    return heif(_frame(brand), brand=brand, boxes=box(b"free", b"") * count)


def box_sizes(size: int, brand: bytes = _AVIF) -> bytes:
    return heif(_frame(brand), brand=brand, top=struct.pack(">I4s", size, b"free"))


def large_box_sizes(size: int, brand: bytes = _AVIF) -> bytes:
    return heif(_frame(brand), brand=brand, top=struct.pack(">I4sQ", 1, b"free", size))


def brands(count: int, brand: bytes = _AVIF) -> bytes:
    return heif(_frame(brand), brand=brand, brands=b"miaf" * count)


def items(count: int, brand: bytes = _AVIF) -> bytes:
    return heif(_frame(brand), brand=brand, items=(Item(),) * count)


def extents(count: int, brand: bytes = _AVIF) -> bytes:
    """The item repeats its data many times."""
    return heif(_frame(brand), brand=brand, items=(Item(extents=count),))


def large_extents(size: int, brand: bytes = _AVIF) -> bytes:
    """An item of 65,535 times the file."""
    return heif(_frame(brand) + bytes(size), brand=brand, items=(Item(extents=65_535),))


def overlapping_items(count: int, brand: bytes = _AVIF) -> bytes:
    """All items are a large part of the file."""
    return heif(_frame(brand) + bytes(20_000_000), brand=brand, items=(Item(),) * count)


def properties(count: int, brand: bytes = _AVIF) -> bytes:
    repeated = _size(_SIDE) * count
    return heif(_frame(brand), brand=brand, properties=repeated)


def associations(count: int, brand: bytes = _AVIF) -> bytes:
    """Each item has the same property 255 times."""
    item = Item(properties=(1, 2, 3, *[3] * 252))
    return heif(_frame(brand), brand=brand, items=(item,) * count)


def references(count: int, brand: bytes = _AVIF) -> bytes:
    reference = box(b"thmb", struct.pack(">HHH", 2, 1, 1))
    boxes = box(b"iref", reference * count, _VERSION_0)
    return heif(_frame(brand), brand=brand, items=(Item(),) * 2, boxes=boxes)


def item_that_is_made_of_itself(count: int, brand: bytes = _AVIF) -> bytes:
    """A grid of itself."""
    return _grid(2, 2 * _SIDE, brand, tile=1, num_tiles=count)


def grid_of_tiles(columns: int, brand: bytes = _AVIF) -> bytes:
    """A grid in which all tiles are the same item."""
    side = min(_SIDE * columns, 65_535)
    return _grid(columns, side, brand, tile=2, num_tiles=columns * columns)


def grid_that_claims(side: int, brand: bytes = _AVIF) -> bytes:
    """A grid of one tile that claims many pixels."""
    return _grid(1, side, brand, tile=2, num_tiles=1)


def _grid(columns: int, side: int, brand: bytes, *, tile: int, num_tiles: int) -> bytes:
    """Returns a file of a grid (item 1) and a picture (item 2); all tiles are item `tile`."""
    # Version, flags (numbers of four bytes), rows - 1, columns - 1, width, height.
    grid = struct.pack(">BBBBII", 0, 1, columns - 1, columns - 1, side, side)
    content = struct.pack(">HH", 1, num_tiles) + struct.pack(">H", tile) * num_tiles
    items = (
        Item(_GRID, properties=(1, 3), size=len(grid)),
        Item(properties=(4, 2, 3), start=len(grid)),
    )
    return heif(
        grid + _frame(brand),
        side,
        brand,
        items=items,
        boxes=box(b"iref", box(b"dimg", content), _VERSION_0),
        properties=_size(_SIDE),
    )


def chain_of_grids(count: int, brand: bytes = _AVIF) -> bytes:
    """Each grid has twice the next one: a billion tiles after thirty."""
    references = []
    for number in range(1, count + 1):
        content = struct.pack(">HHHH", number, 2, number + 1, number + 1)
        references.append(box(b"dimg", content))
    grid = struct.pack(">BBBBHH", 0, 0, 0, 1, 2 * _SIDE, _SIDE)
    grids = (Item(_GRID, properties=(1, 3), size=len(grid)),) * count
    boxes = box(b"iref", b"".join(references), _VERSION_0)
    items = (*grids, Item(start=len(grid)))
    return heif(grid + _frame(brand), brand=brand, items=items, boxes=boxes)


def exif(count: int, brand: bytes = _AVIF) -> bytes:
    """Items of EXIF that describe the picture."""
    numbers = range(2, count + 2)
    references = [box(b"cdsc", struct.pack(">HHH", number, 1, 1)) for number in numbers]
    boxes = box(b"iref", b"".join(references), _VERSION_0)
    described = (Item(), *[Item(_EXIF, properties=())] * count)
    return heif(_frame(brand), brand=brand, items=described, boxes=boxes)


def sample_claims(count: int, brand: bytes = _AVIF) -> bytes:
    """An image sequence with a table that claims many samples."""
    sizes = box(b"stsz", struct.pack(">II", 1, count), _VERSION_0)
    times = box(b"stts", struct.pack(">III", 1, count, 1), _VERSION_0)
    chunks = box(b"stco", struct.pack(">II", 1, 8), _VERSION_0)
    map_of_chunks = box(b"stsc", struct.pack(">IIII", 1, 1, count, 1), _VERSION_0)
    table = box(b"stbl", sizes + times + chunks + map_of_chunks)
    media = box(b"mdia", box(b"minf", table))
    track = box(b"tkhd", bytes(72) + struct.pack(">II", 64 << 16, 64 << 16), _VERSION_0)
    movie = box(b"moov", box(b"trak", track + media))
    brand = b"avis" if brand == _AVIF else b"msf1"
    return heif(_frame(brand), brand=brand, top=movie)


def _table(brand: bytes) -> dict[str, tuple[Callable[[int], bytes], tuple[int, ...]]]:
    # fmt: off
    rows: dict[str, tuple[Callable[..., bytes], tuple[int, ...]]] = {
        "claims of the frame": (frame_claims, (64, 8_000, 65_500)),
        "claims of the box": (box_claims, (1, 8_000, 65_500)),
        "digits of a size": (digits, (8, 1_000_000, 30_000_000)),
        "empty units": (empty_units, (10, 15_000_000)),
        "sequence headers": (sequence_headers, (2, 3_000_000)),
        "frames": (frames, (2, 200_000)),
        "nested boxes": (nested_boxes, (10, 1_000, 3_000_000)),
        "nested boxes at the top": (nested_top_boxes, (10, 1_000, 3_000_000)),
        "free boxes": (free_boxes, (10, 3_700_000)),
        "free boxes in meta": (free_boxes_in_meta, (10, 3_700_000)),
        "sizes of a box": (box_sizes, (0, 7, 2**32 - 1)),
        "large sizes of a box": (large_box_sizes, (0, 2**63, 2**64 - 1)),
        "brands": (brands, (10, 7_000_000)),
        "items": (items, (2, 1_000, 65_535)),
        "extents": (extents, (2, 65_535)),
        "large extents": (large_extents, (1_000, 1_000_000, 29_000_000)),
        "overlapping items": (overlapping_items, (2, 60_000)),
        "properties": (properties, (2, 1_400_000)),
        "associations": (associations, (1, 65_535)),
        "references": (references, (2, 2_000_000)),
        "an item that is made of itself": (item_that_is_made_of_itself, (4, 60_000)),
        "a grid of equal tiles": (grid_of_tiles, (2, 100, 255)),
        "claims of a grid": (grid_that_claims, (64, 8_000, 2**32 - 1)),
        "a chain of grids": (chain_of_grids, (2, 30)),
        "EXIF": (exif, (1, 60_000)),
        "claimed samples": (sample_claims, (2, 1_000_000, 2**32 - 1)),
    }
    # fmt: on
    found: dict[str, tuple[Callable[[int], bytes], tuple[int, ...]]] = {}
    for name, (make, magnitudes) in rows.items():
        found[name] = (functools.partial(make, brand=brand), magnitudes)
    return found


TABLE = _table(_AVIF)
TABLE_OF_HEIC = _table(_HEIC)
