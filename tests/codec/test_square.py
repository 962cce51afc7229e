"""The square crop of generators: the bytes of Pillow, with each kind of vector code and decoder."""

from __future__ import annotations

import ctypes
import gc
import hashlib
import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from imagenet_prep.codec import planes
from tests.kit.codec import corpus, jpegs
from tests.kit.codec.native import workspaces
from tests.kit.codec.square import pillows
from tests.kit.lengths import long_except

# Of the crops of eight photographs, as Pillow 12.3 makes them on x86-64.
PINNED = "b62122070736c1707e9e32f9864d1fb3"


def ours(data: bytes, side: int, *, mirrored: bool = False, **how: Any) -> Any:
    """Returns the codec's crop [side, side, 3], or None if it declines the file."""
    with Image.open(io.BytesIO(data)) as image:
        complete = (0, 0, image.height, image.width)
    found = np.zeros((side, side, 3), np.uint8)
    look = planes.Look(side, side, planes.BYTES, planes.SQUARE)
    return found if look.decode(data, complete, found, mirrored=mirrored, **how) else None


def made(rng: np.random.Generator) -> bytes:
    """Returns a JPEG of random size, content, quality, sampling, kind and restart markers."""
    height, width = (int(side) for side in np.exp(rng.uniform(np.log(3), np.log(700), 2)))
    noise = rng.integers(0, 256, (height // 3 + 1, width // 2 + 1, 3), np.uint8)
    pixels = noise.repeat(3, 0).repeat(2, 1)[:height, :width]
    if rng.random() < 0.5:
        pixels = np.asarray(Image.fromarray(noise).resize((width, height)))
    quality = int(rng.integers(20, 101))
    if rng.random() < 0.2:
        return jpegs.encode(np.ascontiguousarray(pixels), quality, "440")
    image = Image.fromarray(pixels)
    if rng.random() < 0.2:
        image = image.convert("L")
    file = io.BytesIO()
    how = {"progressive": True} if rng.random() < 0.2 else {"restart_marker_blocks": 7}
    sampling = int(rng.integers(3)) if image.mode == "RGB" else -1
    image.save(file, "JPEG", quality=quality, subsampling=sampling, **how)
    return file.getvalue()


@pytest.mark.parametrize("count", long_except([30], [30, 1_000]))
def test_random_files_give_the_bytes_of_pillow(count: int) -> None:
    rng = np.random.default_rng(count)
    every = workspaces()
    declined = 0
    for number in range(count):
        data = made(rng)
        side = int(rng.choice([1, 7, 64, 97, 256]))
        with Image.open(io.BytesIO(data)) as image:
            if max(image.size) > 40 * min(image.size):
                continue  # the pixels of Pillow's result would not fit
        expected = pillows(data, side)
        for workspace in every:
            found = ours(data, side, within=workspace)
            declined += found is None
            if found is not None:
                assert np.array_equal(found, expected), (number, workspace.message)
                again = ours(data, side, mirrored=True, within=workspace)
                assert np.array_equal(again, expected[:, ::-1])
    assert declined < count * len(every) / 4


@pytest.mark.parametrize(
    "size", [(7, 620), (3, 343), (5, 501), (5, 500), (12, 1_200), (343, 3)], ids=str
)
@pytest.mark.parametrize("side", [1, 2, 3, 9, 40])
def test_very_high_images_are_resized_vertically_first(size: tuple[int, int], side: int) -> None:
    """Pillow does so if an image is more than 100 times as high as wide, and becomes lower."""
    width, height = size
    rng = np.random.default_rng(side)
    for _ in range(4):
        file = io.BytesIO()
        pixels = rng.integers(0, 256, (height, width, 3), np.uint8)
        Image.fromarray(pixels).save(file, "JPEG", quality=90, subsampling=0)
        expected = pillows(file.getvalue(), side)
        for workspace in workspaces():
            for mirrored in (False, True):
                found = ours(file.getvalue(), side, mirrored=mirrored, within=workspace)
                assert np.array_equal(found, expected[:, ::-1] if mirrored else expected)


@pytest.mark.parametrize("size", [(40, 96), (96, 30), (80, 96)], ids=str)
def test_window_with_one_unchanged_side_is_resized(size: tuple[int, int]) -> None:
    """Only one side of the result equals that of the window."""
    (data,) = corpus.photographs(1)
    with Image.open(io.BytesIO(data)) as image:
        part = image.convert("RGB").crop((30, 20, 30 + 96, 20 + 80))
    height, width = size
    found = np.zeros((height, width, 3), np.uint8)
    look = planes.Look(height, width, planes.BYTES, planes.LINEAR)

    assert look.decode(data, (20, 30, 80, 96), found)
    expected = np.asarray(part.resize((width, height), Image.Resampling.BILINEAR))
    assert np.abs(found.astype(int) - expected).mean() < 2


@pytest.mark.parametrize("count", long_except([40], [40, 1_000]))
def test_window_of_unchanged_size_has_pillows_pixels(count: int) -> None:
    rng = np.random.default_rng(count)
    every = workspaces()
    declined = 0
    for number in range(count):
        data = made(rng)
        with Image.open(io.BytesIO(data)) as image:
            whole = np.asarray(image.convert("RGB"))
        height, width = (int(rng.integers(1, side + 1)) for side in whole.shape[:2])
        top = int(rng.integers(whole.shape[0] - height + 1))
        left = int(rng.integers(whole.shape[1] - width + 1))
        expected = whole[top : top + height, left : left + width]
        kernel = int(rng.choice([planes.LINEAR, planes.NEIGHBOURS]))
        is_planar = bool(rng.integers(2))
        look = planes.Look(height, width, planes.BYTES, kernel, channels_first=is_planar)
        for workspace in every:
            for mirrored in (False, True):
                found = np.zeros((3, height, width) if is_planar else (height, width, 3), np.uint8)
                window = (top, left, height, width)
                if not look.decode(data, window, found, mirrored=mirrored, within=workspace):
                    declined += 1
                    continue
                shown = found.transpose(1, 2, 0) if is_planar else found
                assert np.array_equal(shown, expected[:, ::-1] if mirrored else expected), number
    assert declined < count * len(every) / 4


@pytest.mark.parametrize("side", [1, 40, 256])
def test_corpus_files_give_pillows_bytes_or_are_declined(side: int) -> None:
    declined = set()
    for name, data in corpus.files().items():
        with Image.open(io.BytesIO(data)) as image:
            mode = image.mode
        found = ours(data, side)
        if found is None:
            declined.add((name, mode))
        else:
            assert np.array_equal(found, pillows(data, side)), name
    assert len(declined) < len(corpus.files()) / 2


def test_bytes_are_pinned() -> None:
    """Those of Pillow as well, so that a new version with different bytes is noticed."""
    digest = {"ours": hashlib.sha256(), "pillow": hashlib.sha256()}
    for data in corpus.photographs(8):
        for side in (256, 512):
            digest["ours"].update(ours(data, side).tobytes())
            digest["pillow"].update(pillows(data, side).tobytes())

    assert {name: found.hexdigest()[:32] for name, found in digest.items()} == {
        "ours": PINNED,
        "pillow": PINNED,
    }


def test_channels_come_first_if_requested() -> None:
    (data,) = corpus.photographs(1)
    look = planes.Look(64, 64, planes.BYTES, planes.SQUARE, channels_first=True)
    height, width = jpegs.size(data)
    found = np.zeros((3, 64, 64), np.uint8)

    assert look.decode(data, (0, 0, height, width), found)
    assert np.array_equal(found.transpose(1, 2, 0), pillows(data, 64))


@pytest.mark.parametrize("change", [(0, 0, 1, 0), (0, 0, 0, -1), (1, 0, -1, 0), (0, 0, 0, 70_000)])
def test_partial_window_is_declined(change: tuple[int, ...]) -> None:
    (data,) = corpus.photographs(1)
    height, width = jpegs.size(data)
    window = np.add((0, 0, height, width), change).tolist()
    look = planes.Look(8, 8, planes.BYTES, planes.SQUARE)

    assert not look.decode(data, window, np.zeros((8, 8, 3), np.uint8))


def test_extremely_long_image_takes_little_memory() -> None:
    """Only pixels that reach the square are made: all of them would be 24 GB."""
    file = io.BytesIO()
    Image.new("RGB", (65_500, 8), (200, 30, 90)).save(file, "JPEG")

    found = ours(file.getvalue(), 1_000)

    assert found is not None
    assert np.ptp(found.reshape(-1, 3), axis=0).max() == 0


# At 3/4 of its size, the longer side has 106.5, 103.5 or 121.5 pixels: 106, 104 or 122.
@pytest.mark.parametrize("size", [(142, 128), (128, 142), (138, 128), (128, 138), (162, 128)])
def test_half_pixels_are_rounded_to_even_numbers(size: tuple[int, int]) -> None:
    rng = np.random.default_rng(size)
    pixels = rng.integers(0, 256, (size[1], size[0], 3), np.uint8)
    data = jpegs.encode(pixels, 90, "444")

    assert np.array_equal(ours(data, 96), pillows(data, 96))


class Allocated(ctypes.Structure):
    """`struct mallinfo2` of glibc."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    )


def test_a_workspace_frees_all_its_memory() -> None:
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallinfo2"):
        pytest.skip("only glibc counts allocated bytes")
    library.mallinfo2.restype = Allocated
    data = jpegs.encode(np.zeros((300, 400, 3), np.uint8), 90, "420")

    def used() -> int:
        for _ in range(20):
            assert (
                ours(data, 97, within=planes.Workspace(planes.require(), "plain", "own"))
                is not None
            )
        gc.collect()
        found = library.mallinfo2()
        return int(found.uordblks + found.hblkhd)

    used()
    first = used()
    assert used() - first < 40_000
