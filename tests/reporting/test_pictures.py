"""Thumbnails of any input: truncated files, junk, and images that are too large to decode."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from imagenet_prep.reporting import sample

NOISE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (300, 400, 3), np.uint8))


def encoded(image: Image.Image, kind: str = "JPEG") -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind)
    return buffer.getvalue()


def test_half_an_image_is_decoded() -> None:
    data = encoded(NOISE)
    shown = sample.decode(data[: len(data) // 2])

    assert shown is not None
    assert shown.size == (400, 300)


@pytest.mark.parametrize(
    "data",
    [b"", b"\xff\xd8\xff", b"<svg/>", b"\x89PNG\r\n\x1a\n" + b"\0" * 99, b"BM" + b"\xff" * 60],
)
def test_junk_is_not_decoded(data: bytes) -> None:
    assert sample.decode(data) is None
    assert sample.thumbnail(data) is None


def test_images_larger_than_memory_are_not_decoded() -> None:
    huge = encoded(Image.new("1", (20_000, 20_000)), "PNG")

    assert len(huge) < 1_000_000
    assert sample.decode(huge) is None


@pytest.mark.parametrize("mode", ["L", "CMYK", "RGB"])
def test_every_colour_space_becomes_a_small_square(mode: str) -> None:
    uri = sample.thumbnail(encoded(NOISE.convert(mode)), 40, 50)

    assert uri is not None
    assert uri.startswith("data:image/webp;base64,")
    assert len(uri) < 4000


def test_the_middle_is_cropped_within_the_image() -> None:
    assert sample.middle(NOISE, 100, 1000).size == (100, 300)
    assert np.array_equal(
        np.asarray(sample.middle(NOISE, 2, 2)), np.asarray(NOISE)[149:151, 199:201]
    )
