"""--stretch: squares whatever the aspect; and JPEGs that are kept unchanged."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from imagenet_prep.codec.policy import Policy
from imagenet_prep.codec.transform import is_rgb, keep, prove_stored, transform
from imagenet_prep.core.errors import BadImageError
from tests.kit.codec import jpegs


def waves(height: int, width: int) -> np.ndarray:
    """Returns smooth pixels, so that errors of resampling are visible."""
    y, x = np.mgrid[0:height, 0:width]
    red = 127 + 100 * np.sin(4 * np.pi * x / width)
    green = 127 + 100 * np.cos(4 * np.pi * y / height)
    blue = np.full((height, width), 90.0)
    return np.stack([red, green, blue], axis=-1).astype(np.uint8)


def jpeg(pixels: np.ndarray, mode: str = "RGB") -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(buffer, "JPEG", quality=98, subsampling=0)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("height", "width"),
    [(300, 400), (400, 300), (64, 2000), (2000, 64), (40, 50), (1, 1), (96, 97)],
)
def test_stretched_images_are_close_to_lanczos(height: int, width: int) -> None:
    pixels = waves(height, width)
    image = transform(jpeg(pixels), Policy(96, 98, stretch=True))

    assert (image.height, image.width, image.resized) == (96, 96, True)
    found = jpegs.decode(image.encoded).astype(float)
    expected = np.asarray(
        Image.fromarray(pixels).resize((96, 96), Image.Resampling.LANCZOS), dtype=float
    )
    psnr = 10 * np.log10(255**2 / max(np.mean((found - expected) ** 2), 1e-9))
    assert psnr > 32


def test_square_of_right_size_passes_byte_for_byte() -> None:
    data = jpeg(waves(96, 96))

    assert transform(data, Policy(96, 50, stretch=True)).encoded is data


def test_noise_does_not_alias_along_the_longer_axis() -> None:
    """Each axis has its own factor: all 4000 columns must contribute to the remaining 64."""
    noise = np.random.default_rng(0).integers(0, 256, (64, 4000, 1), np.uint8).repeat(3, axis=2)
    image = transform(jpeg(noise), Policy(64, 98, stretch=True))

    spread = jpegs.grey(image.encoded).astype(float).std()
    assert spread < 20  # a mean of 62 columns has 74 / sqrt(62) = 9; a single column has 74


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_kept_jpeg_has_unchanged_bytes_and_true_size(mode: str) -> None:
    data = jpeg(waves(30, 50), mode)
    image = keep(data)

    assert image.encoded is data
    assert (image.height, image.width, image.resized, image.repair) == (30, 50, False, None)
    assert is_rgb(data) is (mode == "RGB")


@pytest.mark.parametrize("data", [b"", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff\xe0\x00"])
def test_file_that_is_no_jpeg_is_not_kept(data: bytes) -> None:
    with pytest.raises(BadImageError):
        keep(data)


def test_only_declared_exceptions_are_accepted() -> None:
    grey = jpeg(waves(30, 50), "L")

    prove_stored(grey, 30, 50, any_colorspace=True)
    prove_stored(jpeg(waves(30, 50)), 1, 1, any_size=True)
    for options in ({}, {"any_size": True}):
        with pytest.raises(BadImageError, match="wrong_colorspace"):
            prove_stored(grey, 30, 50, **options)
    with pytest.raises(BadImageError, match="wrong_size"):
        prove_stored(grey, 31, 50, any_colorspace=True)
    for everything in ({"any_size": True, "any_colorspace": True},):
        with pytest.raises(BadImageError):
            prove_stored(grey[: len(grey) // 2], 30, 50, **everything)
        with pytest.raises(BadImageError):
            prove_stored(b"\x89PNG\r\n\x1a\n", 30, 50, **everything)
