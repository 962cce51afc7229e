"""Two data sets of the same images held against each other, on records with equal keys."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from PIL import Image
from skimage.metrics import structural_similarity

from imagenet_prep.core.errors import DataDamagedError
from imagenet_prep.dataset import example, naming, schema, tfrecord
from imagenet_prep.reporting import pictures
from imagenet_prep.reporting.facts import Facts

# Enough for a median PSNR to a tenth of a dB, in half a minute.
_PAIRS = 200
_WORST = 20
# Of the first set, so many shards give the keys; of the second, so many bytes are searched for
# them: its shards of the same names first, where sets of one plan have the same images.
_KEY_SHARDS = 2
_SEARCHED_BYTES = 4 << 30
# Width and height in pixels, and WebP quality, of the pictures of the worst.
_SIDE, _QUALITY = 256, 80
# Pixels a side that SSIM looks at, in the middle: it takes 300 bytes of memory for each.
_SSIM = 1024


@dataclass(frozen=True)
class Match:
    """One image in both sets.

    Attributes:
      key: of the image.
      sizes: (width, height) in both.
      num_bytes: of both JPEGs.
      psnr: dB at the smaller size, the larger one shrunk by Lanczos; None if equal.
      ssim: mean structural similarity there, at most 1; of large images the middle's.
      pictures: data URIs of both, for the worst only.
    """

    key: str
    sizes: tuple[tuple[int, int], tuple[int, int]]
    num_bytes: tuple[int, int]
    psnr: float | None
    ssim: float
    pictures: tuple[str, str] | None = None


@dataclass
class Comparison:
    """What was found of two data sets.

    Attributes:
      facts: of both.
      matches: worst first.
      equal: matches whose bytes are equal.
    """

    facts: tuple[Facts, Facts]
    matches: list[Match] = field(default_factory=list)
    equal: int = 0

    def psnr_at(self, percent: float) -> float | None:
        """Returns a percentile of PSNR in dB; None where no match has one."""
        values = [match.psnr for match in self.matches if match.psnr is not None]
        return float(np.percentile(values, percent)) if values else None

    def ssim_at(self, percent: float) -> float:
        """Returns a percentile of SSIM."""
        return float(np.percentile([match.ssim for match in self.matches], percent))


def compare(one: Facts, other: Facts, seed: int) -> Comparison:
    """Returns what distinguishes two data sets; damage is added to the problems of its facts."""
    comparison = Comparison((one, other))
    chance = random.Random(seed)
    chosen = chance.sample(one.shards, min(_KEY_SHARDS, len(one.shards)))
    # Validation names are unique by themselves, so a key needs no split.
    wanted = {
        key: image for shard in chosen for key, image in _images(one, shard.name, seed, _PAIRS)
    }
    found: list[tuple[str, example.ImageExample, example.ImageExample]] = []
    searched = 0
    names = {shard.name for shard in chosen}
    for shard in sorted(other.shards, key=lambda shard: shard.name not in names):
        if not wanted or len(found) >= _PAIRS or searched > _SEARCHED_BYTES:
            break
        searched += shard.num_bytes
        for key, image in _images(other, shard.name, seed, None):
            mine = wanted.pop(key, None)
            if mine is not None:
                found.append((key, mine, image))
    matches = []
    for key, mine, image in found[:_PAIRS]:
        comparison.equal += mine.encoded == image.encoded
        match = _match(key, mine, image)
        if match is not None:
            matches.append(match)
    order = sorted(matches, key=lambda match: (match.ssim, match.key))
    images = {key: (mine, image) for key, mine, image in found}
    for number, match in enumerate(order):
        if number < _WORST and match.psnr is not None:
            match = match_with_pictures(match, *images[match.key])
        comparison.matches.append(match)
    return comparison


def match_with_pictures(
    match: Match, mine: example.ImageExample, image: example.ImageExample
) -> Match:
    """Returns a match with the middle of both images at the smaller size."""
    decoded = _at_one_size(mine, image)
    assert decoded is not None
    uris = [pictures.data_uri(pictures.middle(d, _SIDE, _SIDE), _QUALITY) for d in decoded]
    return Match(
        match.key, match.sizes, match.num_bytes, match.psnr, match.ssim, (uris[0], uris[1])
    )


def _match(key: str, mine: example.ImageExample, image: example.ImageExample) -> Match | None:
    decoded = _at_one_size(mine, image)
    if decoded is None:
        return None
    one, other = (np.asarray(pictures.middle(picture, _SSIM, _SSIM)) for picture in decoded)
    smallest = min(one.shape[:2])
    # SSIM's window of 7 pixels has to fit.
    ssim = 1.0
    if smallest >= 7:
        ssim = float(structural_similarity(one, other, channel_axis=2))  # type: ignore[no-untyped-call]
    return Match(
        key,
        ((mine.width, mine.height), (image.width, image.height)),
        (len(mine.encoded), len(image.encoded)),
        pictures.psnr(*decoded),
        ssim,
    )


def _at_one_size(
    mine: example.ImageExample, image: example.ImageExample
) -> tuple[Image.Image, Image.Image] | None:
    one, other = pictures.decode(mine.encoded), pictures.decode(image.encoded)
    if one is None or other is None:
        return None
    size = min(one.size, other.size, key=lambda size: size[0] * size[1])
    return pictures.shrunk(one, size), pictures.shrunk(other, size)


def _images(
    facts: Facts, shard: str, seed: int, most: int | None
) -> Iterator[tuple[str, example.ImageExample]]:
    """Yields (key, example) of a shard's records; of about `most`, evenly spread."""
    parsed = naming.parse_shard_name(shard)
    is_train = parsed is not None and parsed.split == schema.TRAIN
    try:
        with open(facts.root / shard, "rb") as stream:
            records = tfrecord.read_records(stream, shard)
            if most is not None:
                examples = next(
                    s.examples
                    for split in facts.manifest.splits.values()
                    for s in split.shards
                    if s.name == shard
                )
                step = max(1, examples // most)
                records = itertools.islice(records, seed % step, None, step)
            for record in records:
                image = example.decode(record.payload, facts.manifest.lacks)
                key = f"{image.wnid}/{image.filename}" if is_train else image.filename
                yield key, image
    except (DataDamagedError, OSError) as error:
        facts.problems.append(str(error))
