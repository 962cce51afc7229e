"""Selects the images of a report, and makes their thumbnails.

`draw` selects examples of all classes. `incidents` selects quarantined or repaired images.

`thumbnail` and `data_uri` return small pictures as data URIs. `psnr` returns the PSNR of two
pictures.
"""

from __future__ import annotations

import base64
import bisect
import io
import itertools
import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from PIL import Image, ImageOps

from imagenet_prep.codec import decoding
from imagenet_prep.core.errors import BadImageError, DataDamagedError, StoreError
from imagenet_prep.dataset import example, record_files, schema
from imagenet_prep.dataset.example import ImageExample
from imagenet_prep.dataset.member import QUARANTINED, Incident, Origin
from imagenet_prep.reporting.facts import MAX_SHOWN_BYTES, DatasetFacts, index_of
from imagenet_prep.storage.remote import prefetch

if TYPE_CHECKING:
    import numpy.typing as npt

    Pixels = npt.NDArray[np.uint8]


_LANCZOS = Image.Resampling.LANCZOS
# Side in pixels and WebP quality of pictures in lists.
_SIDE = 176
_QUALITY = 72
_BAND_PIXELS = 1 << 20


def decode(data: bytes, smallest: int | None = None) -> Image.Image | None:
    """Returns an RGB image, even if the data is truncated; None if the data cannot be decoded.

    A JPEG may be decoded at a reduced size, with sides of at least `smallest` pixels.
    """
    try:
        pixels = decoding.pixels(data, smallest=smallest, damaged=True, truncated=True)
        return Image.fromarray(pixels)
    except BadImageError:
        return None


def thumbnail(data: bytes, side: int = _SIDE, quality: int = _QUALITY) -> str | None:
    """Returns the square centre of an image as a data URI; None if it cannot be decoded."""
    image = decode(data, 2 * side)
    return data_uri(ImageOps.fit(image, (side, side), _LANCZOS), quality) if image else None


def data_uri(image: Image.Image, quality: int) -> str:
    """Returns an image as a WebP data URI."""
    buffer = io.BytesIO()
    image.save(buffer, "WEBP", quality=quality, method=4)
    return "data:image/webp;base64," + base64.b64encode(buffer.getvalue()).decode()


def shrunk(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    """Returns an image resized to (width, height) with Lanczos."""
    return image if image.size == size else image.resize(size, _LANCZOS)


def middle(image: Image.Image, width: int, height: int) -> Image.Image:
    """Returns the centre of an image, at most `width` x `height` pixels."""
    width = min(width, image.width)
    height = min(height, image.height)
    left = (image.width - width) // 2
    top = (image.height - height) // 2
    return image.crop((left, top, left + width, top + height))


def psnr(one: Image.Image, other: Image.Image) -> float | None:
    """Returns the PSNR in dB of two RGB images of the same size; None if they are equal."""
    total = 0
    rows = max(1, _BAND_PIXELS // one.width)
    for top in range(0, one.height, rows):
        box = (0, top, one.width, min(top + rows, one.height))
        bands = (np.asarray(picture.crop(box)).astype(np.int32) for picture in (one, other))
        total += int(((next(bands) - next(bands)) ** 2).sum(dtype=np.int64))
    error = total / (3 * one.width * one.height)
    return None if error == 0 else float(10 * np.log10(255.0**2 / error))


# One image per class of ImageNet takes about half of the 5 MB that a report may have.
_MAX_TILES = 1000
_MAX_PER_CLASS = 24
# Unreadable records after which the selection ends, because each can take long.
_MAX_DAMAGED = 100
# After 8000 draws from 1000 equally likely classes, 0.3 classes on average have no image.
_DRAWS = 8000
# Side in pixels and WebP quality of thumbnails; up to _MAX_LARGE thumbnails are large.
_LARGE = (176, 72)
_SMALL = (88, 48)
_MAX_LARGE = 240
# Maximum bytes of all thumbnails, and of all pairs of source and stored image.
_TILE_BYTES = 2_600_000
_PAIR_BYTES = 650_000
_PAIRS = 16
# Width and height in pixels of the part of a stored image that is compared with its source.
_PAIR_SIDE = 288
_INCIDENTS_PER_REASON = 12
_INCIDENT = (104, 52)


class ShownRecord(NamedTuple):
    """A record, its line in the index ("" if there is none), and its origin if known."""

    shard: str
    number: int
    line: str
    origin: Origin | None = None

    @property
    def where(self) -> str:
        """The name of the record in messages."""
        return f"{self.shard}: record {self.number}"


@dataclass
class Tile:
    """An image of the report, with its thumbnail."""

    record: ShownRecord
    class_index: int
    image: ImageExample  # without the encoded bytes
    num_bytes: int  # size of the encoded bytes
    picture: str  # data URI
    psnr: float | None = None  # in dB, if the image was resized and its source is available
    before: str | None = None  # data URI of the centre of the source image, if it is shown
    after: str | None = None  # data URI of the same part of the stored image


# The name of a shard, and the numbers and origins of some of its records.
_Group = tuple[str, list[tuple[int, Origin | None]]]


@dataclass
class ShownIncident:
    """A quarantined or repaired image, and its picture if the source can be decoded."""

    line: Incident
    wnid: str
    words: str
    picture: str | None


def draw(facts: DatasetFacts, seed: int) -> list[Tile]:
    """Returns random images of as many classes as possible; the seed makes them reproducible.

    The first images of all classes come before any second image. Problems are added to `facts`.
    """
    quota = _quota(facts)
    num = min(sum(quota.values()), _MAX_TILES)
    side, quality = _LARGE if num <= _MAX_LARGE else _SMALL
    tiles: list[Tile] = []
    used = 0
    most_problems = len(facts.problems) + _MAX_DAMAGED
    index_of_wnid = {wnid: index for index, (wnid, _) in enumerate(facts.classes)}

    def is_wanted(record: ShownRecord) -> bool:
        # The class is only known before reading if the record has an origin.
        index = index_of_wnid.get(record.origin.key.partition("/")[0]) if record.origin else None
        return index is None or bool(quota.get(index))

    wanted = filter(is_wanted, _records(facts, seed))
    for record, reading in prefetch(partial(read, facts), wanted):
        if len(tiles) >= num or used >= _TILE_BYTES or len(facts.problems) >= most_problems:
            break
        try:
            stored = reading.result()
        except DataDamagedError as error:
            facts.problems.append(str(error))
            continue
        class_index = stored.stored_label - facts.manifest.label_offset
        if quota.get(class_index, 0) <= 0:
            continue
        try:
            decoding.require_openable(stored.encoded)
        except BadImageError as error:
            facts.problems.append(f"{record.where}: {error}")
            continue
        picture = thumbnail(stored.encoded, side, quality)
        if picture is None:
            facts.problems.append(f"{record.where}: the image cannot be decoded")
            continue
        used += len(picture)
        quota[class_index] -= 1
        num_bytes = len(stored.encoded)
        stored = stored._replace(encoded=b"")
        tiles.append(Tile(record, class_index, stored, num_bytes, picture))
    _compare_with_source(facts, tiles)
    tiles.sort(key=lambda tile: (tile.class_index, tile.record[:2]))
    turns: defaultdict[int, Iterator[int]] = defaultdict(itertools.count)
    return sorted(tiles, key=lambda tile: (next(turns[tile.class_index]), tile.class_index))


def _quota(facts: DatasetFacts) -> dict[int, int]:
    per_class = facts.examples_per_class
    quota = min(_MAX_PER_CLASS, max(1, _MAX_TILES // max(len(per_class), 1)))
    return {index: min(quota, count) for index, count in per_class.items()}


def incidents(facts: DatasetFacts) -> list[ShownIncident]:
    """Returns up to 12 images for each reason; quarantined images come first."""
    counts: Counter[tuple[str, str]] = Counter()
    shown = []
    for line in sorted(facts.incidents, key=lambda line: not line.action.endswith(QUARANTINED)):
        counts[line.action, line.reason] += 1
        if counts[line.action, line.reason] <= _INCIDENTS_PER_REASON:
            data = None
            if not line.is_of_input:  # its archive is a source of the input
                data = facts.source_bytes(line.archive, line.offset, line.size)
            picture = thumbnail(data, *_INCIDENT) if data else None
            shown.append(ShownIncident(line, *facts.class_name(line.class_index), picture))
    return shown


def _records(facts: DatasetFacts, seed: int) -> Iterator[ShownRecord]:
    groups = _groups(facts, seed)

    def lines_of(group: _Group) -> dict[int, str]:
        shard, numbers = group
        return index_of(facts, shard, {number for number, _ in numbers})

    for (shard, numbers), reading in prefetch(lines_of, groups):
        try:
            lines = reading.result()
        except DataDamagedError as error:
            facts.problems.append(str(error))
            continue
        for number, origin in numbers:
            yield ShownRecord(shard, number, lines.get(number, ""), origin)


def _groups(facts: DatasetFacts, seed: int) -> Iterator[_Group]:
    """Yields shards with sampled records, in random order; records of known origin come first."""
    chance = random.Random(seed)
    known: dict[str, dict[int, Origin | None]] = {
        task.shard: {origin.record: origin for origin in task.origins}
        for task in facts.tasks
        if task.shard and task.origins
    }
    shards = facts.shards
    starts = [0, *itertools.accumulate(shard.examples for shard in shards)]
    drawn: dict[str, dict[int, Origin | None]] = {}
    for position in chance.sample(range(starts[-1]), min(_DRAWS, starts[-1])):
        number = bisect.bisect_right(starts, position) - 1
        name = shards[number].name
        record = position - starts[number]
        if record not in known.get(name, {}):
            drawn.setdefault(name, {})[record] = None
    for by_shard in (known, drawn):
        order = sorted(by_shard)
        chance.shuffle(order)
        for name in order:
            records = sorted(by_shard[name].items(), key=lambda record: record[0])
            chance.shuffle(records)
            yield name, records


def read(facts: DatasetFacts, record: ShownRecord) -> ImageExample:
    """Returns the image and fields of a record; raises DataDamagedError if that fails."""
    try:
        offset, size = record_files.index_numbers(record.line)
        if size < record_files.FRAMING_BYTES:
            raise ValueError(f"the index claims {size:,} bytes, too few for a record")
        if size > MAX_SHOWN_BYTES:
            raise ValueError(f"it has {size:,} bytes, expected at most {MAX_SHOWN_BYTES:,}")
        frame = facts.store.read(record.shard, offset, size)
        lacks = facts.manifest.lacks
        image = example.decode(record_files.unframe(frame, size), lacks)
        wrong_size = schema.HEIGHT in lacks or schema.WIDTH in lacks
        return example.with_true_size(image) if wrong_size else image
    except (StoreError, OverflowError, ValueError) as error:
        raise DataDamagedError(f"{record.where}: cannot be read: {error}") from error
    except DataDamagedError as error:
        raise DataDamagedError(f"{record.where}: {error}") from error


def _compare_with_source(facts: DatasetFacts, tiles: list[Tile]) -> None:
    """Adds PSNR to tiles of resized images; adds source and stored pictures to the first tiles."""
    used = pairs = 0

    def both(tile_origin: tuple[Tile, Origin]) -> tuple[bytes | None, bytes]:
        tile, origin = tile_origin
        data = facts.source_bytes(origin.archive, origin.offset, origin.size)
        return data, b"" if data is None else read(facts, tile.record).encoded

    resized = []
    for tile in tiles:
        origin = tile.record.origin
        size = (tile.image.height, tile.image.width)
        if origin and (origin.height, origin.width) != size:
            resized.append((tile, origin))
    for (tile, origin), reading in prefetch(both, resized):
        data, encoded = reading.result()
        source = decode(data) if data else None
        if source is None or source.size != (origin.width, origin.height):
            continue
        stored = decode(encoded)
        if stored is None or stored.size != (tile.image.width, tile.image.height):
            continue
        tile.psnr = psnr(shrunk(source, stored.size), stored)
        if pairs < _PAIRS and used < _PAIR_BYTES:
            after = middle(stored, _PAIR_SIDE, _PAIR_SIDE)
            # The same part of the source, at most at twice the resolution of the stored image.
            factor = source.width / stored.width
            sides = (round(after.width * factor), round(after.height * factor))
            part = middle(source, *sides)
            if factor > 2:
                part = shrunk(part, (2 * after.width, 2 * after.height))
            tile.before = data_uri(part, 80)
            tile.after = data_uri(after, 90)
            used += len(tile.before) + len(tile.after)
            pairs += 1
