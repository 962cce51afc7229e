"""Memory during decoding, and turns for images that need much of it."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from PIL import Image

from imagenet_prep.codec import opening, planes
from imagenet_prep.codec import transform as codec
from imagenet_prep.codec.policy import PLANES, PORTABLE, Policy
from imagenet_prep.core import limits
from imagenet_prep.core.errors import BadImageError
from imagenet_prep.dataset import jpeg
from tests.kit.bounds import limited_memory
from tests.kit.limits import Limits

SIDE = 2000
# Of the libraries themselves, and for rows and strips in transit.
REST = 24 << 20


def saved(mode: str, format_name: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    picture = Image.new(mode, (SIDE, SIDE))
    picture.putpixel((5, 5), picture.getpixel((5, 5)) if mode == "P" else 1)
    picture.save(buffer, format_name, **options)
    return buffer.getvalue()


OTHERS: dict[str, Callable[[], bytes]] = {
    "webp": lambda: saved("RGB", "WEBP"),
    "lossless webp": lambda: saved("RGBA", "WEBP", lossless=True, method=0),
    "animated webp": lambda: saved(
        "RGB", "WEBP", save_all=True, append_images=[Image.new("RGB", (SIDE, SIDE), "red")]
    ),
    "avif": lambda: saved("RGB", "AVIF", speed=10),
    "animated avif": lambda: saved(
        "RGB", "AVIF", speed=10, save_all=True, append_images=[Image.new("RGB", (SIDE, SIDE))]
    ),
    "animated gif": lambda: saved(
        "P", "GIF", save_all=True, append_images=[Image.new("P", (SIDE, SIDE), 3)]
    ),
    "png": lambda: saved("RGBA", "PNG"),
    "png of 16 bits": lambda: saved("I;16", "PNG"),
    "bmp": lambda: saved("RGB", "BMP"),
    "tiff": lambda: saved("CMYK", "TIFF", compression="tiff_lzw"),
    "tiff of 16 bits": lambda: saved("I;16", "TIFF", compression="tiff_adobe_deflate"),
}
JPEGS: dict[str, Callable[[], bytes]] = {
    "jpeg": lambda: saved("RGB", "JPEG", subsampling=0),
    "progressive jpeg": lambda: saved("RGB", "JPEG", subsampling=0, progressive=True),
    "progressive cmyk": lambda: saved("CMYK", "JPEG", progressive=True),
    "progressive grey": lambda: saved("L", "JPEG", progressive=True),
}


@pytest.mark.parametrize("name", OTHERS)
def test_images_opened_by_pillow_stay_within_the_estimate(name: str) -> None:
    data = OTHERS[name]()
    with Image.open(io.BytesIO(data)) as opened:
        estimate = opening.of_opened(opened, None)
    assert estimate <= 12 * SIDE * SIDE

    with limited_memory(estimate + REST):
        prepared = codec.transform(data, Policy(64))
    assert (prepared.height, prepared.width) == (64, 64)


@pytest.mark.parametrize("codec_name", [PLANES, PORTABLE])
@pytest.mark.parametrize("short_side", [None, 64])
@pytest.mark.parametrize("name", JPEGS)
def test_jpegs_stay_within_the_estimate(
    name: str, short_side: int | None, codec_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = JPEGS[name]()
    planes.forget()
    estimates = []

    @contextlib.contextmanager
    def noted(estimate: int) -> Iterator[None]:
        estimates.append(estimate)
        with limited_memory(estimate + REST):
            yield

    monkeypatch.setattr(opening, "room", noted)
    codec.transform(data, Policy(short_side, codec=codec_name))
    assert len(estimates) == 1


def test_ordinary_photograph_takes_no_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "turn", None)
    for frame, decoded in (
        (jpeg.JpegFrame(375, 500, 0), 375 * 500),
        (jpeg.JpegFrame(3000, 4000, 0), 12_000_000),
        (jpeg.JpegFrame(6000, 8000, 0), 64 * 480 * 480),
    ):
        with opening.room(opening.of_jpeg(frame, decoded)):
            pass


@pytest.mark.parametrize("name", ["webp", "progressive jpeg"])
def test_heavy_image_takes_a_turn_and_frees_memory(
    name: str, taken: list[bool], limits: Limits
) -> None:
    data = (OTHERS | JPEGS)[name]()
    codec.transform(data, Policy(64))
    assert not taken
    limits(light_image_bytes=8 << 20)
    large = planes.workspace()
    codec.transform(data, Policy(64))
    assert taken
    assert planes.workspace() is not large


@pytest.mark.parametrize("mode", ["RGB", "RGBA"])
@pytest.mark.parametrize("options", [{}, {"lossless": True}, {"save_all": True}])
def test_webp_equals_the_image_of_pillow(mode: str, options: dict[str, Any]) -> None:
    rng = np.random.default_rng(1)
    shape = (60, 80, len(mode))
    first, second = (Image.fromarray(rng.integers(0, 256, shape, np.uint8)) for _ in range(2))
    if options.get("save_all"):
        options = {**options, "append_images": [second]}
    buffer = io.BytesIO()
    first.save(buffer, "WEBP", **options)
    with Image.open(buffer) as opened:
        pixels = opened.convert("RGBA")
    ground = Image.new("RGBA", pixels.size, "white")
    expected = np.asarray(Image.alpha_composite(ground, pixels).convert("RGB"))

    with Image.open(buffer) as again:
        assert np.array_equal(opening.pixels(again), expected)


def test_damaged_webp_is_undecodable() -> None:
    data = saved("RGB", "WEBP", lossless=True, method=0)
    with pytest.raises(BadImageError) as caught:
        codec.transform(data[:40] + bytes(len(data) - 40), Policy(64))
    assert caught.value.reason in ("undecodable", "unknown_format")


@pytest.mark.long
@pytest.mark.parametrize("format_name", ["JPEG", "PNG", "WEBP"])
def test_photograph_of_60_megapixels_is_accepted(format_name: str) -> None:
    buffer = io.BytesIO()
    Image.new("RGB", (9500, 6300), "teal").save(buffer, format_name)

    prepared = codec.transform(buffer.getvalue(), Policy())
    assert (prepared.height, prepared.width) == (480, 724)
