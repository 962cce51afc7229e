"""AVIF and HEIC: pixels and orientation are those of other programs."""

from __future__ import annotations

import io
import itertools
import random
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from imagenet_prep.codec import opening, transform
from imagenet_prep.codec.policy import Policy
from imagenet_prep.core.errors import BadImageError
from imagenet_prep.dataset import formats
from tests.kit.bounds import limited_memory
from tests.kit.hostile.bombs.heif import heif


@pytest.fixture(scope="module")
def pillow_heif() -> ModuleType:
    found = pytest.importorskip("pillow_heif", reason="pillow-heif is not installed")
    found.register_heif_opener(thumbnails=False, decode_threads=1)
    return found


@pytest.fixture(params=["AVIF", pytest.param("HEIF", marks=pytest.mark.extras)])
def kind(request: pytest.FixtureRequest) -> str:
    if request.param == "HEIF":
        request.getfixturevalue("pillow_heif")
    return str(request.param)


def shades(mode: str = "RGB") -> Image.Image:
    """Returns 96 x 64 pixels with four different corners."""
    rows = np.linspace(0, 160, 64)[:, None, None] + np.linspace(0, 60, 96)[None, :, None]
    pixels = (rows + np.array([0, 30, 15])).astype(np.uint8)
    return Image.fromarray(pixels).convert(mode)


def saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def made(data: bytes, **policy: Any) -> tuple[np.ndarray[Any, Any], Any]:
    prepared = transform.transform(data, Policy(480, **policy))
    transform.prove_stored(prepared.encoded, prepared.height, prepared.width)
    return np.asarray(Image.open(io.BytesIO(prepared.encoded))).astype(int), prepared


def kinds(kind: str) -> dict[str, tuple[bytes, Image.Image]]:
    """Returns files, each with its expected image."""
    clear = shades()
    clear.putalpha(Image.linear_gradient("L").resize(clear.size))
    white = Image.new("RGBA", clear.size, "white")
    animated = {"save_all": True, "append_images": [shades().rotate(180)]}
    grey = shades("L")
    return {
        "plain": (saved(shades(), kind), shades()),
        "alpha": (saved(clear, kind), Image.alpha_composite(white, clear).convert("RGB")),
        "several": (saved(shades(), kind, **animated), shades()),
        "grey": (saved(grey, kind), grey.convert("RGB")),
    }


def test_decoded_pixels_equal_the_saved_image(kind: str) -> None:
    for name, (data, picture) in kinds(kind).items():
        pixels, prepared = made(data)
        assert prepared.repair == kind.lower(), name
        assert abs(pixels - np.asarray(picture)).mean() < 3, name


@pytest.mark.parametrize("value", range(1, 9))
def test_photograph_is_turned_once(kind: str, value: int) -> None:
    """By the boxes irot and imir, whatever the EXIF says."""
    exif = Image.Exif()
    exif[0x0112] = value
    expected = saved(shades(), "PNG", exif=exif.tobytes())
    pixels, _ = made(saved(shades(), kind, exif=exif.tobytes()), orientation="apply")
    with Image.open(io.BytesIO(expected)) as opened:
        turned = np.asarray(ImageOps.exif_transpose(opened))
    assert pixels.shape == turned.shape
    assert abs(pixels - turned).mean() < 3


@pytest.mark.extras
def test_heic_with_ten_bits_or_premultiplied_alpha_works(pillow_heif: ModuleType) -> None:
    deep = np.asarray(shades()).astype(np.uint16) << 8
    alpha = np.concatenate([np.asarray(shades()), np.full((64, 96, 1), 255, np.uint8)], 2)
    for mode, pixels in (("RGB;16", deep), ("RGBa", alpha)):
        buffer = io.BytesIO()
        pillow_heif.from_bytes(mode, (96, 64), pixels.tobytes()).save(buffer, quality=90)
        assert abs(made(buffer.getvalue())[0] - np.asarray(shades())).mean() < 3


def mutated(files: list[bytes], seed: int) -> Iterator[bytes]:
    rng = random.Random(seed)
    while True:
        data = bytearray(rng.choice(files))
        for _ in range(rng.choice([1, 2, 8])):
            at = rng.randrange(min(len(data), rng.choice([len(data), 400])))
            data[at : at + rng.choice([1, 1, 4])] = rng.randbytes(rng.choice([1, 1, 4]))
        yield bytes(data[: rng.randrange(len(data))] if rng.random() < 0.1 else data)


def test_damaged_files_are_refused_with_little_memory(kind: str) -> None:
    files = [data for data, _ in kinds(kind).values()]
    refused = 0
    with limited_memory(128 << 20):
        for data in itertools.islice(mutated(files, 5), 300):
            try:
                transform.transform(data, Policy(32))
            except BadImageError:
                refused += 1
    assert 50 < refused < 300


def test_heic_without_the_extra_names_the_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(formats, "is_readable", lambda name: name == "AVIF")
    opening.allow_heic.cache_clear()
    data = heif(b"", 9, b"heic")
    with pytest.raises(BadImageError, match=r"unknown_format.*is HEIC.*imagenet-prep\[heif\]"):
        transform.transform(data, Policy(32))
    opening.allow_heic.cache_clear()
