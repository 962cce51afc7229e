"""Compares two data sets of the same images, on records with equal keys."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from PIL import Image
from skimage.metrics import structural_similarity

from imagenet_prep.core.errors import DataDamagedError, StoreError
from imagenet_prep.dataset import example, naming, schema, tfrecord
from imagenet_prep.dataset.example import ImageExample
from imagenet_prep.dataset.manifest import Shard
from imagenet_prep.reporting import pictures
from imagenet_prep.reporting.facts import Facts

# Enough for a median PSNR exact to a tenth of a dB, in half a minute.
_PAIRS = 200
_WORST = 20
# The keys come from this many shards of the first set. They are searched for in this many bytes of
# the second set, first in shards of the same names: sets of one plan have the same images there.
_KEY_SHARDS = 2
_SEARCHED_BYTES = 4 << 30
# Width and height in pixels, and WebP quality, of the pictures of the worst.
_SIDE, _QUALITY = 256, 80
# SSIM takes 300 bytes of memory a pixel, so it looks at the middle, at most this wide and high.
_SSIM = 1024


@dataclass
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
    pairs = _pairs(one, other, seed)
    for key, (first, second) in pairs.items():
        comparison.equal += first.encoded == second.encoded
        match = _match(key, first, second)
        if match is not None:
            comparison.matches.append(match)
    comparison.matches.sort(key=lambda match: (match.ssim, match.key))
    for match in comparison.matches[:_WORST]:
        if match.psnr is not None:
            match.pictures = _pictures(*pairs[match.key])
    return comparison


def _pairs(one: Facts, other: Facts, seed: int) -> dict[str, tuple[ImageExample, ImageExample]]:
    """Returns images that are in both sets, by key."""
    chosen = random.Random(seed).sample(one.shards, min(_KEY_SHARDS, len(one.shards)))
    # Validation names are unique by themselves, so a key needs no split.
    wanted = {key: image for shard in chosen for key, image in _images(one, shard, seed, _PAIRS)}
    found: dict[str, tuple[ImageExample, ImageExample]] = {}
    searched = 0
    names = {shard.name for shard in chosen}
    for shard in sorted(other.shards, key=lambda shard: shard.name not in names):
        if not wanted or len(found) >= _PAIRS or searched > _SEARCHED_BYTES:
            break
        searched += shard.num_bytes
        for key, image in _images(other, shard, seed, None):
            if (first := wanted.pop(key, None)) is not None:
                found[key] = (first, image)
    return dict(itertools.islice(found.items(), _PAIRS))


def _pictures(one: ImageExample, other: ImageExample) -> tuple[str, str]:
    """Returns the middle of both images at the smaller size, as data URIs."""
    decoded = _at_one_size(one, other)
    assert decoded is not None
    first, second = (pictures.data_uri(pictures.middle(d, _SIDE, _SIDE), _QUALITY) for d in decoded)
    return first, second


def _match(key: str, one: ImageExample, other: ImageExample) -> Match | None:
    """Returns how two images differ; None if one cannot be decoded."""
    decoded = _at_one_size(one, other)
    if decoded is None:
        return None
    first, second = (np.asarray(pictures.middle(picture, _SSIM, _SSIM)) for picture in decoded)
    smallest = min(first.shape[:2])
    # SSIM's window of 7 pixels has to fit.
    ssim = 1.0
    if smallest >= 7:
        ssim = float(structural_similarity(first, second, channel_axis=2))  # type: ignore[no-untyped-call]
    return Match(
        key,
        ((one.width, one.height), (other.width, other.height)),
        (len(one.encoded), len(other.encoded)),
        pictures.psnr(*decoded),
        ssim,
    )


def _at_one_size(one: ImageExample, other: ImageExample) -> tuple[Image.Image, Image.Image] | None:
    """Returns both images at the smaller size of the two; None if one cannot be decoded."""
    first, second = pictures.decode(one.encoded), pictures.decode(other.encoded)
    if first is None or second is None:
        return None
    size = min(first.size, second.size, key=lambda size: size[0] * size[1])
    return pictures.shrunk(first, size), pictures.shrunk(second, size)


def _images(
    facts: Facts, shard: Shard, seed: int, most: int | None
) -> Iterator[tuple[str, ImageExample]]:
    """Yields (key, example) of a shard's records; of about `most`, evenly spread."""
    parsed = naming.parse_shard_name(shard.name)
    is_unique = parsed is not None and parsed.split == schema.VALIDATION
    try:
        with facts.store.opened(shard.name) as stream:
            records = tfrecord.read_records(stream, shard.name)
            if most is not None:
                step = max(1, shard.examples // most)
                records = itertools.islice(records, seed % step, None, step)
            for record in records:
                image = example.decode(record.payload, facts.manifest.lacks)
                key = image.filename if is_unique else f"{image.wnid}/{image.filename}"
                yield key, image
    except (DataDamagedError, StoreError, OSError) as error:
        facts.problems.append(str(error))
