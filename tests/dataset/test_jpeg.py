"""JPEG headers: bombs are refused if they have too many pixels or scans."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from imagenet_prep.core.errors import BadImageError
from imagenet_prep.dataset import jpeg
from tests.kit.codec import jpegs
from tests.kit.hostile import images


def saved(**options: object) -> bytes:
    buffer = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (48, 64, 3), np.uint8)
    Image.fromarray(pixels).save(buffer, "JPEG", **options)
    return buffer.getvalue()


def reason(data: bytes, **options: int) -> str:
    with pytest.raises(BadImageError) as caught:
        jpeg.refuse_bombs(data, **options)
    return caught.value.reason


@pytest.mark.parametrize(
    "data",
    [
        saved(),
        saved(progressive=True),
        saved(restart_marker_blocks=1),
        saved(progressive=True, restart_marker_blocks=1),
        saved(exif=b"Exif\0\0" + saved(progressive=True)[:30_000] * 2),
        saved(comment=b"\xff\xda" * 500),
        saved(progressive=True, comment=b"\xff\xda" * 500),
        saved() + images.progressive_jpeg(150),
        saved(progressive=True) + b"\xff\xda" * 500,
        images.progressive_jpeg(jpeg.MAX_SCANS),
        images.many_scans_without_interleaving(jpeg.MAX_SCANS),
        b"",
        b"\xff\xd8\xff",
        saved(progressive=True)[:-300],
        b"\x89PNG" + b"\xff\xda" * 500,
    ],
    ids=range(15),
)
def test_files_of_cameras_and_programs_pass(data: bytes) -> None:
    jpeg.refuse_bombs(data)


def test_decoders_accept_these_bombs() -> None:
    many = jpeg.MAX_SCANS + 1
    for data in (images.progressive_jpeg(many), images.many_scans_without_interleaving(many)):
        assert jpegs.decode(data).shape == (64, 64, 3)


@pytest.mark.parametrize(
    "data",
    [
        images.progressive_jpeg(jpeg.MAX_SCANS + 1),
        images.progressive_jpeg(3000),
        images.many_scans_without_interleaving(jpeg.MAX_SCANS + 1),
        images.scans_behind_garbage(jpeg.MAX_SCANS + 1),
        images.scans_behind_an_end_in_a_comment(jpeg.MAX_SCANS + 1),
        images.jpeg_with_many_comments(1_000_000),
    ],
    ids=["one-too-many", "many", "not-interleaved", "garbage", "end-in-comment", "comments"],
)
def test_excessive_scans_are_refused(data: bytes) -> None:
    assert reason(data) == "too_many_scans"


@pytest.mark.parametrize("progressive", [False, True])
def test_header_that_claims_too_many_pixels_is_refused(progressive: bool) -> None:
    assert reason(images.jpeg_that_claims(progressive=progressive)) == "too_many_pixels"
    assert reason(saved(progressive=progressive), max_pixels=64 * 48 - 1) == "too_many_pixels"
    jpeg.refuse_bombs(saved(progressive=progressive), max_pixels=64 * 48)
