"""Photographs, and the variants of them that the benchmark of duplicates plants."""

from __future__ import annotations

import hashlib
import io
import random
from collections.abc import Callable, Iterator
from pathlib import Path

from PIL import Image, ImageDraw, ImageEnhance, ImageFont, ImageOps
from PIL.Image import Image as Picture

from imagenet_prep.codec.policy import Policy
from imagenet_prep.codec.transform import transform

SHORT_SIDE = 256
_FILTERS = (Image.Resampling.BICUBIC, Image.Resampling.BILINEAR, Image.Resampling.LANCZOS)
Variant = Callable[[Picture, random.Random], bytes]


def photographs(folder: Path, half: str) -> Iterator[Path]:
    """Yields the photographs of a half."""
    for path in sorted(folder.rglob("*")):
        if path.suffix.lower() in (".jpg", ".jpeg", ".png"):
            odd = hashlib.sha256(path.read_bytes()).digest()[0] % 2
            if half == "both" or odd == (half == "report"):
                yield path


def stored(path: Path) -> bytes:
    """Returns a photograph as a dataset would store it."""
    return transform(path.read_bytes(), Policy(SHORT_SIDE)).encoded


def variant(path: Path, photograph: bytes, kind: str) -> bytes:
    """Returns a variant of a stored photograph; equal variants for equal names."""
    picture = Image.open(io.BytesIO(photograph)).convert("RGB")
    return VARIANTS[kind](picture, random.Random(f"{path.name} {kind}"))


def jpeg(picture: Picture, quality: int = 90, subsampling: int = 2) -> bytes:
    """Returns the JPEG of an image."""
    buffer = io.BytesIO()
    more = {} if picture.mode == "L" else {"subsampling": subsampling}
    picture.save(buffer, "JPEG", quality=quality, **more)
    return buffer.getvalue()


def cropped(picture: Picture, left: float, top: float, right: float, bottom: float) -> Picture:
    """Returns an image without these shares of its sides."""
    width, height = picture.size
    return picture.crop(
        (
            round(width * left),
            round(height * top),
            width - round(width * right),
            height - round(height * bottom),
        )
    )


def resized(scale: float, quality: int = 90) -> Variant:
    """Returns a variant of a different size."""

    def make(picture: Picture, rng: random.Random) -> bytes:
        size = (round(picture.width * scale), round(picture.height * scale))
        return jpeg(picture.resize(size, rng.choice(_FILTERS)), quality)

    return make


def crop(most: float, *, mirrored: bool = False, every: bool = False) -> Variant:
    """Returns a variant without up to this share of each side, or exactly that if `every`."""

    def make(picture: Picture, rng: random.Random) -> bytes:
        shares = [most if every else rng.uniform(0, most) for _ in range(4)]
        return jpeg(cropped(ImageOps.mirror(picture) if mirrored else picture, *shares))

    return make


def lettered(picture: Picture, rng: random.Random) -> bytes:
    """Returns an image with letters over it."""
    picture = picture.copy()
    draw = ImageDraw.Draw(picture, "RGBA")
    width, height = picture.size
    at = (width * rng.uniform(0.05, 0.4), height * rng.uniform(0.1, 0.85))
    font = ImageFont.load_default(size=max(10, height // 12))
    draw.text(at, "www.example.com", fill=(255, 255, 255, 160), font=font)
    return jpeg(picture)


def curved(gamma: float) -> Variant:
    """Returns a variant with a different gamma."""
    table = [round(255 * (i / 255) ** gamma) for i in range(256)] * 3
    return lambda picture, _: jpeg(picture.point(table))


# The first ones are promised; the document lists the others as not found.
VARIANTS: dict[str, Variant] = {
    "re-encoded, q50": lambda picture, _: jpeg(picture, 50),
    "re-encoded, q75": lambda picture, _: jpeg(picture, 75),
    "re-encoded, q95, 4:4:4": lambda picture, _: jpeg(picture, 95, 0),
    "resized, 0.5": resized(0.5),
    "resized, 0.7": resized(0.7),
    "resized, 1.5": resized(1.5),
    "resized, 2": resized(2.0),
    "grey": lambda picture, _: jpeg(picture.convert("L")),
    "CMYK": lambda picture, _: jpeg(picture.convert("CMYK")),
    "mirrored": lambda picture, _: jpeg(ImageOps.mirror(picture), 80),
    "cropped, <= 5 % a side": crop(0.05),
    "cropped, 5 % of all sides": crop(0.05, every=True),
    "mirrored, cropped <= 5 %": crop(0.05, mirrored=True),
    "resized 0.5, q50": resized(0.5, 50),
    "brighter, 1.3": lambda picture, _: jpeg(ImageEnhance.Brightness(picture).enhance(1.3)),
    "darker, 0.7": lambda picture, _: jpeg(ImageEnhance.Brightness(picture).enhance(0.7)),
    "gamma 0.6": curved(0.6),
    "cropped, <= 10 % a side": crop(0.1),
    "letters over it": lettered,
    "a border of 4 %": lambda picture, _: jpeg(
        ImageOps.expand(picture, round(min(picture.size) * 0.04))
    ),
    "a quarter turn": lambda picture, _: jpeg(picture.transpose(Image.Transpose.ROTATE_90)),
}
