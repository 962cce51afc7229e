"""Means of cells and hashes: their definition, and equal numbers of all vector code."""

from __future__ import annotations

import hashlib
import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps

from imagenet_prep.codec import likeness, planes
from imagenet_prep.core.errors import BadImageError
from tests.kit.codec import corpus, jpegs
from tests.kit.lengths import examples

CELLS = likeness.CELLS
BEST = planes.best("best")
KINDS = [name for name, number in planes.SIMD.items() if number in (0, BEST)]


def expected_means(luma: np.ndarray) -> np.ndarray:
    """Returns the means by the definition, with Python's integers."""
    height, width = luma.shape
    shares = []
    for size in (height, width):
        edges = np.arange(CELLS + 1) * size  # in units of 1 / CELLS of a sample
        samples = np.arange(size) * CELLS
        low = np.maximum(edges[:-1, None], samples[None])
        high = np.minimum(edges[1:, None], samples[None] + CELLS)
        shares.append(np.maximum(high - low, 0))
    sums = shares[0] @ luma.astype(np.int64) @ shares[1].T
    area = height * width
    return (32 * sums + area) // (2 * area)


def expected_bits(cells: np.ndarray) -> tuple[list[int], np.ndarray]:
    """Returns the hash of cells, by the definition, and all of its sums."""
    size = len(cells)
    places = np.arange(size)
    cosines = np.rint(
        2048 * np.cos(np.pi * np.arange(20)[:, None] * (2 * places + 1) / (2 * size))
    ).astype(np.int64)
    every = cosines @ (cells.astype(np.int64) - 2048) @ cosines.T
    sums = np.array([every[v, u] for u, v in likeness.frequencies()])
    bits = (sums > 0).astype(np.uint64).reshape(4, 64)
    return [int((word << np.arange(64, dtype=np.uint64)).sum()) for word in bits], sums


@pytest.mark.parametrize("simd", KINDS)
@examples(40)
@given(seed=st.integers(0, 2**32), width=st.integers(1, 400), height=st.integers(1, 300))
def test_means_follow_the_definition(simd: str, seed: int, width: int, height: int) -> None:
    luma = np.random.default_rng(seed).integers(0, 256, (height, width)).astype(np.uint8)
    assert likeness.means_of_pixels(luma, simd).tolist() == expected_means(luma).tolist()


def test_means_of_the_largest_values_fit() -> None:
    luma = np.full((40, 65500), 255, np.uint8)
    assert set(likeness.means_of_pixels(luma).ravel().tolist()) == {255 * 16}


@pytest.mark.parametrize("simd", KINDS)
@examples(40)
@given(seed=st.integers(0, 2**32), most=st.sampled_from([1, 40, 4080]))
def test_hashes_follow_the_definition(simd: str, seed: int, most: int) -> None:
    cells = np.random.default_rng(seed).integers(0, most + 1, (CELLS, CELLS)).astype(np.uint16)

    found = likeness.hashes(cells, simd)

    assert found["bits"].tolist() == [
        expected_bits(cells)[0],
        expected_bits(cells[2:-2, 2:-2])[0],
    ]
    _, sums = expected_bits(cells)
    parts = np.array([4 if u and v else 2 for u, v in likeness.frequencies()])
    amplitudes = parts * np.abs(sums) / (16 * 2048**2 * CELLS**2)
    assert found["strong"][0] == int((amplitudes >= 0.25).sum())
    nine = np.lib.stride_tricks.sliding_window_view(cells.astype(int), (3, 3)).sum(axis=(2, 3))
    assert found["rough"][0] == int((np.abs(9 * cells[1:-1, 1:-1].astype(int) - nine) >= 144).sum())


def test_hash_of_a_mirrored_image_differs_by_constant() -> None:
    rng = np.random.default_rng(1)
    cells = rng.integers(0, 4081, (CELLS, CELLS)).astype(np.uint16)
    one = likeness.hashes(cells)
    other = likeness.hashes(cells[:, ::-1])
    for a, b in zip(one["bits"], other["bits"], strict=True):
        assert (a ^ b).tolist() == likeness.mirror().tolist()


def test_hashes_never_change_between_versions() -> None:
    """Stored rows of a different version, or of a different processor, are compared with ours."""
    places = np.arange(CELLS * CELLS, dtype=np.int64)
    cells = (places * places % 4079).reshape(CELLS, CELLS).astype(np.uint16)
    found = likeness.hashes(cells)
    numbers = (*found["bits"].tolist(), int(found["strong"][0]), int(found["rough"][0]))
    said = repr(numbers).encode()
    assert hashlib.sha256(said).hexdigest()[:16] == "eab2a1d512c36ad6"


@pytest.mark.parametrize("simd", KINDS)
def test_jpeg_is_decoded_completely(simd: str) -> None:
    for data in corpus.photographs(4):
        luma = jpegs.grey(data)
        assert likeness.means(data, simd).tolist() == expected_means(luma).tolist()


def test_file_declined_by_our_decoder_has_equal_means(monkeypatch: pytest.MonkeyPatch) -> None:
    data = corpus.photographs(1)[0]
    ours = likeness.means(data)
    monkeypatch.setenv(planes.JPEG_VARIABLE, "libjpeg")
    planes.forget()
    try:
        assert likeness.means(data).tolist() == ours.tolist()
    finally:
        planes.forget()


@pytest.mark.parametrize(
    ("kind", "mode"),
    [("JPEG", "CMYK"), ("PNG", "RGB"), ("PNG", "RGBA"), ("GIF", "P"), ("PNG", "L")],
)
def test_other_file_formats_have_nearly_equal_means(kind: str, mode: str) -> None:
    data = corpus.photographs(1)[0]
    picture = Image.open(io.BytesIO(data))
    buffer = io.BytesIO()
    picture.convert(mode).save(buffer, kind, quality=95)
    apart = np.abs(likeness.means(buffer.getvalue()).astype(int) - likeness.means(data)).mean()
    assert apart / likeness.SIXTEENTHS < 4


def png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


@pytest.mark.parametrize("mode", ["I;16", "RGB", "L"])
def test_means_are_those_of_the_shown_image(mode: str) -> None:
    """16-bit samples are scaled to 8 bits, and transparent pixels are shown on white."""
    grey = Image.open(io.BytesIO(corpus.photographs(1)[0])).convert("L")
    shown = grey
    stored = Image.fromarray(np.asarray(grey).astype(np.uint16) * 257)
    if mode != "I;16":
        alpha = Image.linear_gradient("L").resize(grey.size).point(lambda value: value // 128 * 255)
        shown = Image.composite(grey, Image.new("L", grey.size, 255), alpha)
        stored = grey.convert(mode)
        stored.putalpha(alpha)

    means = likeness.means(png(stored))

    assert np.abs(means.astype(int) - likeness.means(png(shown))).max() <= likeness.SIXTEENTHS


@pytest.mark.parametrize("data", [b"", b"\xff\xd8\xff\xe0 nothing", b"GIF89a"])
def test_file_that_is_no_image_is_refused(data: bytes) -> None:
    with pytest.raises(BadImageError):
        likeness.means(data)


@pytest.mark.parametrize("stop", [None, -2000])
def test_jpeg_without_all_pixels_is_refused(stop: int | None) -> None:
    """The data is truncated, or lacks bytes in its middle, which Pillow would ignore."""
    data = corpus.photographs(1)[0]
    rest = b"" if stop is None else data[stop:]
    with pytest.raises(BadImageError):
        likeness.means(data[: len(data) // 2] + rest)


def test_image_of_one_pixel_has_means() -> None:
    buffer = io.BytesIO()
    ImageOps.grayscale(Image.new("RGB", (1, 1), (90, 90, 90))).save(buffer, "JPEG")
    assert set(likeness.means(buffer.getvalue()).ravel().tolist()) == {90 * 16}
