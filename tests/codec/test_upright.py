"""`upright` turns an image by its EXIF orientation, and leaves all others unchanged."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image, ImageOps

from imagenet_prep.codec import decoding
from imagenet_prep.codec.transform import upright
from imagenet_prep.core.errors import BadImageError
from tests.kit.photographs import BROKEN, exif, photograph, pixels, tagged


def saved(form: str, orientation: int) -> bytes:
    buffer = io.BytesIO()
    block = Image.Exif()
    block[0x0112] = orientation
    pixels(60, 80).save(buffer, form, exif=block, quality=95)
    return buffer.getvalue()


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "AVIF"])
@pytest.mark.parametrize("orientation", range(2, 9))
def test_tagged_image_is_turned(form: str, orientation: int) -> None:
    data = saved(form, orientation)
    found = decoding.pixels(upright(data))
    expected = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data)).convert("RGB")))
    assert found.shape == expected.shape
    assert np.abs(found.astype(int) - expected).mean() < 6


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "AVIF", "GIF", "BMP"])
def test_upright_image_is_unchanged(form: str) -> None:
    data = saved(form, 1)
    assert upright(data) == data


@pytest.mark.parametrize("block", [*BROKEN.values(), exif(1), exif(9)])
def test_invalid_orientation_changes_nothing(block: bytes) -> None:
    jpeg = photograph(30, 40)
    head = b"\xff\xe1" + (len(block) + 2).to_bytes(2, "big")
    data = jpeg[:2] + head + block + jpeg[2:]
    assert decoding.size(upright(data)) == (40, 30)


def test_unusable_image_is_refused() -> None:
    with pytest.raises(BadImageError):
        upright(tagged(photograph(30, 40), 6)[:60])
