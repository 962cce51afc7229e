"""Images that claim gigabytes, or take minutes, are refused before they are decoded."""

from __future__ import annotations

import io

import pytest
from PIL import Image

from imagenet_prep.codec import transform as codec
from imagenet_prep.codec.policy import Policy
from imagenet_prep.core.errors import BadImageError
from imagenet_prep.dataset import jpeg, member
from imagenet_prep.reporting import sample
from tests.kit.bounds import limited_memory
from tests.kit.hostile import images

MANY = jpeg.MAX_SCANS + 1
POLICIES = [Policy(None), Policy(32), Policy(None, check="header"), Policy(32, stretch=True)]
BOMBS = {
    "scans": (images.progressive_jpeg(MANY), "too_many_scans"),
    "scans-not-interleaved": (images.many_scans_without_interleaving(MANY), "too_many_scans"),
    "scans-behind-garbage": (images.scans_behind_garbage(MANY), "too_many_scans"),
    "jpeg": (images.jpeg_that_claims(), "too_many_pixels"),
    "progressive-jpeg": (images.jpeg_that_claims(progressive=True), "too_many_pixels"),
    "png": (images.png_that_claims(), "too_many_pixels"),
}


@pytest.mark.parametrize("name", BOMBS)
@pytest.mark.parametrize("policy", POLICIES, ids=["keep", "shrink", "header", "stretch"])
def test_codec_refuses_bombs(name: str, policy: Policy) -> None:
    data, reason = BOMBS[name]
    with limited_memory(128 << 20), pytest.raises(BadImageError) as caught:
        codec.transform(data, policy)
    assert caught.value.reason == reason


@pytest.mark.parametrize("name", [name for name in BOMBS if "scans" in name or "jpeg" in name])
def test_verify_and_adopt_refuse_bombs(name: str) -> None:
    data, reason = BOMBS[name]
    everything = {"any_size": True, "any_colorspace": True}
    for look in (lambda: codec.prove_stored(data, 64, 64, **everything), lambda: codec.keep(data)):
        with limited_memory(128 << 20), pytest.raises(BadImageError) as caught:
            look()
        assert caught.value.reason == reason


@pytest.mark.parametrize("name", BOMBS)
@pytest.mark.parametrize("smallest", [None, 52])
def test_reports_show_no_bombs(name: str, smallest: int | None) -> None:
    with limited_memory(128 << 20):
        assert sample.decode(BOMBS[name][0], smallest) is None


def test_file_too_large_for_an_image_is_refused() -> None:
    with pytest.raises(BadImageError) as caught:
        codec.transform(bytes(member.MAX_IMAGE_BYTES + 1), Policy())
    assert caught.value.reason == "too_many_bytes"


def test_transparent_pixels_take_less_than_five_copies() -> None:
    side = 3000
    data = images.transparent_png(side)
    with limited_memory(5 * 4 * side * side):
        prepared = codec.transform(data, Policy(64))
    assert (prepared.height, prepared.width) == (64, 64)


@pytest.mark.parametrize("name", ["BMP", "GIF", "JPEG", "PNG", "TIFF", "WEBP", "AVIF"])
def test_every_format_has_the_limit_of_pixels(name: str) -> None:
    buffer = io.BytesIO()
    Image.new("RGB", (80, 60), "red").save(buffer, name)
    with pytest.raises(BadImageError) as caught:
        codec.transform(buffer.getvalue(), Policy(None, max_pixels=4799))
    assert caught.value.reason == "too_many_pixels"

    made = codec.transform(buffer.getvalue(), Policy(None, max_pixels=4800))
    assert (made.width, made.height) == (80, 60)
