"""Compares the images of two datasets by their tables of samples, and some pairs by pixels."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from PIL import Image
from skimage.metrics import structural_similarity

from imagenet_prep.core.errors import DataDamagedError
from imagenet_prep.dataset.example import ImageExample
from imagenet_prep.dataset.samples import (
    ONLY_IN_A,
    ONLY_IN_B,
    OTHER_BYTES,
    OTHER_LABEL,
    Difference,
    StoredImage,
)
from imagenet_prep.reporting import sample
from imagenet_prep.reporting.facts import DatasetFacts, index_of
from imagenet_prep.storage.remote import prefetch

# 200 pairs take half a minute, and the error of the median PSNR is below 0.1 dB.
_PAIRS = 200
_WORST = 20
# Maximum number of pictures of missing images, and of images with different labels.
_SHOWN = 12
# Sides in pixels, and WebP quality, of the worst pairs and of all other pictures.
_SIDE = 256
_SMALL_SIDE = 104
_QUALITY = 80
# SSIM needs 300 bytes per pixel, so only the centre of an image is compared, up to this side.
_SSIM = 1024


@dataclass
class Match:
    """An image that two datasets store with different bytes."""

    key: str
    sizes: tuple[tuple[int, int], tuple[int, int]]  # (width, height) in each dataset
    num_bytes: tuple[int, int]  # size of the JPEG in each dataset
    psnr: float | None  # in dB, at the smaller of the two sizes; None if the pixels are equal
    ssim: float  # mean structural similarity at the smaller size, of the centre of large images
    pictures: tuple[str, str] | None = None  # data URIs, only for the worst matches


class ShownDifference(NamedTuple):
    """An image that is missing or has a different class, with its picture as a data URI."""

    difference: Difference
    picture: str | None


@dataclass
class Comparison:
    """The differences between two datasets."""

    facts: tuple[DatasetFacts, DatasetFacts]
    counts: Counter[str] = field(default_factory=Counter)  # images by kind
    same: int = 0  # number of images with the same label and bytes in both datasets
    matches: list[Match] = field(default_factory=list)  # images with different bytes, worst first
    missing: tuple[Sequence[ShownDifference], Sequence[ShownDifference]] = ((), ())
    relabelled: Sequence[ShownDifference] = ()  # examples of images with different classes

    def psnr_at(self, percent: float) -> float | None:
        """Returns a percentile of PSNR in dB; None if no match has a PSNR."""
        values = [match.psnr for match in self.matches if match.psnr is not None]
        return float(np.percentile(values, percent)) if values else None

    def ssim_at(self, percent: float) -> float:
        """Returns a percentile of SSIM."""
        return float(np.percentile([match.ssim for match in self.matches], percent))


def compare(
    one: DatasetFacts, other: DatasetFacts, differences: Iterable[Difference], seed: int
) -> Comparison:
    """Returns the differences between two datasets; adds unreadable images to their problems."""
    chance = random.Random(seed)
    comparison = Comparison((one, other), same=one.examples)
    sizes = {OTHER_BYTES: _PAIRS, ONLY_IN_A: _SHOWN, ONLY_IN_B: _SHOWN, OTHER_LABEL: _SHOWN}
    drawn: dict[str, list[Difference]] = {kind: [] for kind in sizes}
    for difference in differences:
        comparison.counts.update(difference.kinds)
        comparison.same -= difference.a is not None
        for kind in filter(sizes.get, difference.kinds):
            # Reservoir sampling, because the number of differences is not known in advance.
            if len(drawn[kind]) < sizes[kind]:
                drawn[kind].append(difference)
                continue
            position = chance.randrange(comparison.counts[kind])
            if position < sizes[kind]:
                drawn[kind][position] = difference
    comparison.missing = _shown(one, drawn[ONLY_IN_A]), _shown(other, drawn[ONLY_IN_B])
    comparison.relabelled = _shown(one, drawn[OTHER_LABEL])
    _match_all(comparison, drawn[OTHER_BYTES])
    return comparison


def _match_all(comparison: Comparison, differences: Sequence[Difference]) -> None:
    one, other = comparison.facts
    first = _images(one, [difference.a for difference in differences])
    second = _images(other, [difference.b for difference in differences])
    pairs = {
        key: (first[a], second[b]) for _, key, a, b in differences if a in first and b in second
    }
    for key, pair in pairs.items():
        match = _match(key, *pair)
        if match is not None:
            comparison.matches.append(match)
    comparison.matches.sort(key=lambda match: (match.ssim, match.key))
    for match in comparison.matches[:_WORST]:
        if match.psnr is not None:
            match.pictures = _pictures(*pairs[match.key])


def _shown(facts: DatasetFacts, differences: Sequence[Difference]) -> list[ShownDifference]:
    images = _images(facts, [difference.a or difference.b for difference in differences])
    shown = []
    for difference in sorted(differences, key=lambda difference: difference[:2]):
        image = images.get(difference.a or difference.b)
        picture = image and sample.thumbnail(image.encoded, _SMALL_SIDE, _QUALITY)
        shown.append(ShownDifference(difference, picture))
    return shown


def _images(
    facts: DatasetFacts, locations: Sequence[StoredImage | None]
) -> dict[StoredImage | None, ImageExample]:
    by_shard: dict[str, list[StoredImage]] = {}
    for location in filter(None, locations):
        by_shard.setdefault(location.shard, []).append(location)

    def read(locations: list[StoredImage]) -> list[ImageExample]:
        shard = locations[0].shard
        lines = index_of(facts, shard, {location.record for location in locations})
        return [
            sample.read(facts, sample.ShownRecord(shard, record, lines.get(record, "")))
            for *_, record in locations
        ]

    images: dict[StoredImage | None, ImageExample] = {}
    for locations, reading in prefetch(read, by_shard.values()):
        try:
            images.update(zip(locations, reading.result(), strict=True))
        except DataDamagedError as error:
            facts.problems.append(str(error))
    return images


def _pictures(one: ImageExample, other: ImageExample) -> tuple[str, str]:
    decoded = _at_one_size(one, other)
    assert decoded is not None
    first, second = (sample.data_uri(sample.middle(d, _SIDE, _SIDE), _QUALITY) for d in decoded)
    return first, second


def _match(key: str, one: ImageExample, other: ImageExample) -> Match | None:
    decoded = _at_one_size(one, other)
    if decoded is None:
        return None
    first, second = (np.asarray(sample.middle(picture, _SSIM, _SSIM)) for picture in decoded)
    smallest = min(first.shape[:2])
    # SSIM needs at least 7 x 7 pixels.
    ssim = 1.0
    if smallest >= 7:
        ssim = float(structural_similarity(first, second, channel_axis=2))  # type: ignore[no-untyped-call]
    return Match(
        key,
        ((one.width, one.height), (other.width, other.height)),
        (len(one.encoded), len(other.encoded)),
        sample.psnr(*decoded),
        ssim,
    )


def _at_one_size(one: ImageExample, other: ImageExample) -> tuple[Image.Image, Image.Image] | None:
    """Returns both images at the smaller of their sizes; None if one cannot be decoded."""
    first = sample.decode(one.encoded)
    second = sample.decode(other.encoded)
    if first is None or second is None:
        return None
    size = min(first.size, second.size, key=lambda size: size[0] * size[1])
    return sample.shrunk(first, size), sample.shrunk(second, size)
