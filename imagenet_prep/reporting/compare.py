"""The differences of two datasets as pictures, as their tables of samples report them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from PIL import Image
from skimage.metrics import structural_similarity

from imagenet_prep.core.errors import DataDamagedError
from imagenet_prep.dataset.difference import (
    ONLY_IN_A,
    ONLY_IN_B,
    OTHER_BYTES,
    OTHER_LABEL,
    Difference,
    Stored,
)
from imagenet_prep.dataset.example import ImageExample
from imagenet_prep.reporting import pictures, sample
from imagenet_prep.reporting.facts import Facts, index_of
from imagenet_prep.storage.ahead import ahead

# The median PSNR is exact to a tenth of a dB, in half a minute.
_PAIRS = 200
_WORST = 20
# Pictures of each kind of other difference.
_SHOWN = 12
# Width and height in pixels, and WebP quality, of the pictures of the worst, and of the others.
_SIDE, _QUALITY = 256, 80
_SMALL_SIDE = 104
# SSIM takes 300 bytes of memory per pixel, so it sees the middle, at most this wide and high.
_SSIM = 1024

Item = TypeVar("Item")


@dataclass
class Match:
    """One image in both datasets.

    Attributes:
      sizes: (width, height) in both.
      num_bytes: of both JPEGs.
      psnr: dB at the smaller size, the larger one shrunk by Lanczos; None if equal.
      ssim: mean structural similarity there, at most 1; for large images, of the middle.
      pictures: data URIs of both, for the worst only.
    """

    key: str
    sizes: tuple[tuple[int, int], tuple[int, int]]
    num_bytes: tuple[int, int]
    psnr: float | None
    ssim: float
    pictures: tuple[str, str] | None = None


class Shown(NamedTuple):
    """An image that is missing from one dataset, or has another class there; data URI or None."""

    difference: Difference
    picture: str | None


@dataclass
class Comparison:
    """The differences of two datasets.

    Attributes:
      counts: of images, by the words of `dataset.difference`.
      same: the number of images that are in both with the same label and bytes.
      matches: of images whose bytes differ, worst first.
      missing: some images that the second, and some that the first dataset lacks.
      relabelled: some whose class differs.
    """

    facts: tuple[Facts, Facts]
    counts: Counter[str] = field(default_factory=Counter)
    same: int = 0
    matches: list[Match] = field(default_factory=list)
    missing: tuple[Sequence[Shown], Sequence[Shown]] = ((), ())
    relabelled: Sequence[Shown] = ()

    def psnr_at(self, percent: float) -> float | None:
        """Returns a percentile of PSNR in dB; None if no match has one."""
        values = [match.psnr for match in self.matches if match.psnr is not None]
        return float(np.percentile(values, percent)) if values else None

    def ssim_at(self, percent: float) -> float:
        """Returns a percentile of SSIM."""
        return float(np.percentile([match.ssim for match in self.matches], percent))


class _Some(Generic[Item]):
    """A fair sample of a stream of unknown length."""

    def __init__(self, most: int, chance: random.Random) -> None:
        self.items: list[Item] = []
        self._most, self._chance, self._seen = most, chance, 0

    def add(self, item: Item) -> None:
        self._seen += 1
        if len(self.items) < self._most:
            self.items.append(item)
        elif (at := self._chance.randrange(self._seen)) < self._most:
            self.items[at] = item


def compare(one: Facts, other: Facts, differences: Iterable[Difference], seed: int) -> Comparison:
    """Returns the differences of datasets A and B; damage is added to the problems of its facts."""
    chance = random.Random(seed)
    comparison = Comparison((one, other), same=one.examples)
    kinds = {OTHER_BYTES: _PAIRS, ONLY_IN_A: _SHOWN, ONLY_IN_B: _SHOWN, OTHER_LABEL: _SHOWN}
    some = {kind: _Some[Difference](most, chance) for kind, most in kinds.items()}
    for difference in differences:
        found = difference.kinds
        comparison.counts.update(found)
        comparison.same -= difference.a is not None
        for kind in some.keys() & {*found}:
            some[kind].add(difference)
    comparison.missing = (
        _shown(one, some[ONLY_IN_A].items),
        _shown(other, some[ONLY_IN_B].items),
    )
    comparison.relabelled = _shown(one, some[OTHER_LABEL].items)
    _match_all(comparison, some[OTHER_BYTES].items)
    return comparison


def _match_all(comparison: Comparison, differences: Sequence[Difference]) -> None:
    one, other = comparison.facts
    first = _images(one, [each.a for each in differences if each.a])
    second = _images(other, [each.b for each in differences if each.b])
    pairs = {
        each.key: (first[each.a], second[each.b])
        for each in differences
        if each.a in first and each.b in second
    }
    for key, pair in pairs.items():
        if (match := _match(key, *pair)) is not None:
            comparison.matches.append(match)
    comparison.matches.sort(key=lambda match: (match.ssim, match.key))
    for match in comparison.matches[:_WORST]:
        if match.psnr is not None:
            match.pictures = _pictures(*pairs[match.key])


def _shown(facts: Facts, differences: Sequence[Difference]) -> list[Shown]:
    places = {each: each.a or each.b for each in differences}
    images = _images(facts, [place for place in places.values() if place])
    shown = []
    for difference in sorted(differences, key=lambda each: (each.split, each.key)):
        image, place = None, places[difference]
        if place in images:
            image = pictures.decode(images[place].encoded, 2 * _SMALL_SIDE)
        picture = pictures.thumbnail(image, _SMALL_SIDE, _QUALITY) if image else None
        shown.append(Shown(difference, picture))
    return shown


def _images(facts: Facts, places: Sequence[Stored]) -> dict[Stored | None, ImageExample]:
    """Returns the images at some places that can be read."""
    by_shard: dict[str, list[Stored]] = {}
    for place in places:
        by_shard.setdefault(place.shard, []).append(place)

    def read(of_shard: list[Stored]) -> list[ImageExample]:
        shard = of_shard[0].shard
        lines = index_of(facts, shard, {place.record for place in of_shard})
        return [
            sample.read(facts, sample.Record(shard, place.record, lines.get(place.record, "")))
            for place in of_shard
        ]

    found: dict[Stored | None, ImageExample] = {}
    for of_shard, reading in ahead(read, by_shard.values()):
        try:
            found.update(zip(of_shard, reading.result(), strict=True))
        except DataDamagedError as error:
            facts.problems.append(str(error))
    return found


def _pictures(one: ImageExample, other: ImageExample) -> tuple[str, str]:
    decoded = _at_one_size(one, other)
    assert decoded is not None
    first, second = (pictures.data_uri(pictures.middle(d, _SIDE, _SIDE), _QUALITY) for d in decoded)
    return first, second


def _match(key: str, one: ImageExample, other: ImageExample) -> Match | None:
    """Returns the comparison of two images; None if one cannot be decoded."""
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
    """Returns both images at the smaller of their sizes; None if one cannot be decoded."""
    first, second = pictures.decode(one.encoded), pictures.decode(other.encoded)
    if first is None or second is None:
        return None
    size = min(first.size, second.size, key=lambda size: size[0] * size[1])
    return pictures.shrunk(first, size), pictures.shrunk(second, size)
