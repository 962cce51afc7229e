"""Which images a report shows: some of every class, and those that were left out or changed."""

from __future__ import annotations

import bisect
import io
import itertools
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from imagenet_prep.core.errors import DataDamagedError
from imagenet_prep.dataset import example, tfrecord
from imagenet_prep.dataset.measures import Origin
from imagenet_prep.dataset.member import QUARANTINED
from imagenet_prep.reporting import pictures
from imagenet_prep.reporting.facts import Facts, ahead, index_of, record_at

# One image of each class of ImageNet, 1.7 kB each, fills half of the 5 MB that a report may have.
_MAX_TILES = 1000
_MAX_PER_CLASS = 24
# This many draws leave 0.3 of 1000 equally likely classes without an image.
_DRAWS = 8000
# Side in pixels and WebP quality of thumbnails; large ones if there are at most _MAX_LARGE.
_LARGE, _SMALL, _MAX_LARGE = (176, 72), (88, 48), 240
# Bytes of data URIs that all tiles, and all pairs, may take.
_TILE_BYTES, _PAIR_BYTES = 2_600_000, 650_000
_PAIRS = 16
# Width and height in pixels of what a pair shows of the stored image.
_PAIR_SIDE = 288
_INCIDENTS_PER_REASON = 12
_INCIDENT = (104, 52)


@dataclass
class Tile:
    """One image of the sample.

    Attributes:
      shard, record, offset: where it lies.
      class_index, wnid, words, filename: what the record says it is.
      width, height, num_bytes: of the stored image.
      boxes: how many bounding boxes it has.
      picture: data URI.
      origin: of the source image, if a receipt tells it.
      psnr: dB against the source shrunk by Lanczos, if it was resized and the source is there.
      before, after: data URIs of the middle of the image, if there is room for them.
    """

    shard: str
    record: int
    offset: int
    class_index: int
    wnid: str
    words: str
    filename: str
    width: int
    height: int
    num_bytes: int
    boxes: int
    picture: str
    origin: Origin | None = None
    psnr: float | None = None
    before: str | None = None
    after: str | None = None


class _Candidate(NamedTuple):
    """A record that may be shown: its shard, the lines of its index, its number, its origin."""

    shard: str
    lines: list[str]
    record: int
    origin: Origin | None


# A shard, and some of its records with their origins.
_Group = tuple[str, list[tuple[int, Origin | None]]]


@dataclass
class Incident:
    """One image that was left out or changed.

    Attributes:
      line: of quarantine.jsonl.
      wnid, words: its class.
      picture: data URI of the source image, if that is there and can be decoded.
    """

    line: dict[str, Any]
    wnid: str
    words: str
    picture: str | None


def draw(facts: Facts, seed: int) -> list[Tile]:
    """Returns images of as many classes as possible, by class; the same for the same seed.

    Damage that is met on the way is added to the problems of `facts`.
    """
    left = _quota(facts)
    num = min(sum(left.values()), _MAX_TILES)
    side, quality = _LARGE if num <= _MAX_LARGE else _SMALL
    tiles: list[Tile] = []
    used = 0
    wanted = (each for each in _candidates(facts, seed) if _has_room(facts, each, left))
    for candidate, found in ahead(partial(_record, facts), wanted):
        if len(tiles) >= num or used >= _TILE_BYTES:
            break
        tile = _tile(facts, candidate, found, left, side, quality)
        if tile is not None:
            used += len(tile.picture)
            left[tile.class_index] -= 1
            tiles.append(tile)
    _compare_with_source(facts, tiles)
    return sorted(tiles, key=lambda tile: (tile.class_index, tile.shard, tile.record))


def _quota(facts: Facts) -> dict[int, int]:
    """Returns how many images of each class may be shown."""
    per_class: Counter[int] = Counter()
    for split in facts.manifest.splits.values():
        per_class.update({i: n for i, n in enumerate(split.examples_per_class) if n})
    quota = min(_MAX_PER_CLASS, max(1, _MAX_TILES // max(len(per_class), 1)))
    return {index: min(quota, count) for index, count in per_class.items()}


def _has_room(facts: Facts, candidate: _Candidate, left: dict[int, int]) -> bool:
    """Returns whether its class may lack images, as far as that is known without the record."""
    if candidate.origin is None:
        return True
    known = facts.index_of_wnid.get(candidate.origin.key.partition("/")[0])
    return known is None or bool(left.get(known))


def _record(
    facts: Facts, candidate: _Candidate
) -> tuple[_Candidate, example.ImageExample | DataDamagedError]:
    """Returns what a record holds, or what is wrong with it."""
    try:
        return candidate, _read(facts, candidate.shard, candidate.lines, candidate.record)
    except DataDamagedError as error:
        return candidate, error


def _tile(
    facts: Facts,
    candidate: _Candidate,
    found: example.ImageExample | DataDamagedError,
    left: dict[int, int],
    side: int,
    quality: int,
) -> Tile | None:
    """Returns the tile of one record; None if its class has enough, or if it is damaged."""
    shard, lines, record, origin = candidate
    if isinstance(found, DataDamagedError):
        facts.problems.append(str(found))
        return None
    class_index = found.stored_label - facts.manifest.label_offset
    if left.get(class_index, 0) <= 0:
        return None
    image = pictures.decode(found.encoded, 2 * side)
    if image is None:
        facts.problems.append(f"{shard}: record {record}: its image cannot be decoded")
        return None
    return Tile(
        shard=shard,
        record=record,
        offset=int(lines[record].split()[0]),
        class_index=class_index,
        wnid=found.wnid,
        words=found.text,
        filename=found.filename,
        width=found.width,
        height=found.height,
        num_bytes=len(found.encoded),
        boxes=len(found.boxes.xmin),
        picture=pictures.thumbnail(image, side, quality),
        origin=origin,
    )


def incidents(facts: Facts) -> list[Incident]:
    """Returns some images of each reason, those that were left out first."""
    shown: Counter[tuple[str, str]] = Counter()
    found = []
    lines = sorted(facts.incidents, key=lambda line: line["action"] != QUARANTINED)
    for line in lines:
        kind = (line["action"], line["reason"])
        if shown[kind] >= _INCIDENTS_PER_REASON:
            continue
        shown[kind] += 1
        data = facts.source_bytes(line["archive"], line["offset"], line["size"])
        image = pictures.decode(data, 2 * _INCIDENT[0]) if data else None
        picture = None if image is None else pictures.thumbnail(image, *_INCIDENT)
        found.append(Incident(line, *facts.class_name(line["class_index"]), picture))
    return found


def _candidates(facts: Facts, seed: int) -> Iterator[_Candidate]:
    """Yields records as `_groups` lists them, each with the index of its shard."""

    def indexed(group: _Group) -> tuple[_Group, list[str] | DataDamagedError]:
        try:
            return group, index_of(facts, group[0])
        except DataDamagedError as error:
            return group, error

    for (name, records), lines in ahead(indexed, _groups(facts, seed)):
        if isinstance(lines, DataDamagedError):
            facts.problems.append(str(lines))
            continue
        for record, origin in records:
            yield _Candidate(name, lines, record, origin)


def _groups(facts: Facts, seed: int) -> Iterator[_Group]:
    """Yields shards with records of theirs, both in a random order that the seed decides.

    Records whose origin is in a receipt come first. They are few in each shard, and older
    receipts name none; then any other record is as good.
    """
    chance = random.Random(seed)
    known: dict[str, dict[int, Origin | None]] = {}
    for name, origin in facts.origins:
        known.setdefault(name, {})[origin.record] = origin
    shards = facts.shards
    starts = [0, *itertools.accumulate(shard.examples for shard in shards)]
    drawn: dict[str, dict[int, Origin | None]] = {}
    for position in chance.sample(range(starts[-1]), min(_DRAWS, starts[-1])):
        number = bisect.bisect_right(starts, position) - 1
        name, record = shards[number].name, position - starts[number]
        if record not in known.get(name, {}):
            drawn.setdefault(name, {})[record] = None
    for by_shard in (known, drawn):
        order = sorted(by_shard)
        chance.shuffle(order)
        for name in order:
            records = sorted(by_shard[name].items(), key=lambda record: record[0])
            chance.shuffle(records)
            yield name, records


def _read(facts: Facts, shard: str, index: list[str], number: int) -> example.ImageExample:
    frame = record_at(facts, shard, index, number)
    try:
        (record,) = tfrecord.read_records(io.BytesIO(frame), shard)
        return example.decode(record.payload, facts.manifest.lacks)
    except ValueError as error:
        raise DataDamagedError(f"{shard}: record {number}: its index does not fit") from error
    except DataDamagedError as error:
        reason = str(error).partition(": record 0 at byte 0: ")[2] or str(error)
        raise DataDamagedError(f"{shard}: record {number}: {reason}") from error


def _compare_with_source(facts: Facts, tiles: list[Tile]) -> None:
    """Adds PSNR to resized tiles, and pairs of pictures to the first of them."""
    used = pairs = 0

    def both(tile_origin: tuple[Tile, Origin]) -> tuple[Tile, Origin, bytes | None, bytes]:
        tile, origin = tile_origin
        data = facts.source_bytes(origin.archive, origin.offset, origin.size)
        if data is None:
            return tile, origin, None, b""
        lines = index_of(facts, tile.shard)
        return tile, origin, data, _read(facts, tile.shard, lines, tile.record).encoded

    resized = (
        (tile, tile.origin)
        for tile in tiles
        if tile.origin and (tile.origin.height, tile.origin.width) != (tile.height, tile.width)
    )
    for tile, origin, data, encoded in ahead(both, resized):
        source = pictures.decode(data) if data else None
        if source is None or source.size != (origin.width, origin.height):
            continue
        stored = pictures.decode(encoded)
        if stored is None or stored.size != (tile.width, tile.height):
            continue
        tile.psnr = pictures.psnr(pictures.shrunk(source, stored.size), stored)
        if pairs < _PAIRS and used < _PAIR_BYTES:
            after = pictures.middle(stored, _PAIR_SIDE, _PAIR_SIDE)
            # The same part of the source in its own resolution, at most twice that of the stored.
            factor = source.width / stored.width
            part = pictures.middle(
                source, round(after.width * factor), round(after.height * factor)
            )
            if factor > 2:
                part = pictures.shrunk(part, (2 * after.width, 2 * after.height))
            tile.before = pictures.data_uri(part, 80)
            tile.after = pictures.data_uri(after, 90)
            used += len(tile.before) + len(tile.after)
            pairs += 1
