"""Axes of equal size keep their samples, and cached filters change no pixel."""

from __future__ import annotations

import numpy as np
import pytest

from imagenet_prep.codec import planes
from tests.kit.codec import corpus, jpegs
from tests.kit.codec.native import workspaces

KERNELS = (planes.BICUBIC, planes.LINEAR, planes.NEIGHBOURS, planes.KEYS)


def photograph(height: int, width: int, sampling: str) -> bytes:
    (data,) = corpus.photographs(1)
    pixels = np.ascontiguousarray(jpegs.decode(data)[:height, :width])
    return jpegs.encode(pixels, 90, sampling)


def resized(
    data: bytes,
    shape: tuple[int, int],
    kernel: int,
    within: planes.Workspace,
    *,
    window: tuple[int, int, int, int] | None = None,
    mirrored: bool = False,
) -> np.ndarray:
    found = np.zeros((*shape, 3), np.uint8)
    look = planes.Look(*shape, planes.BYTES, kernel)
    assert look.decode(data, window, found, mirrored=mirrored, within=within)
    return found


@pytest.mark.parametrize("size", [(64, 128), (150, 71), (37, 200), (1, 1)], ids=str)
@pytest.mark.parametrize("kernel", KERNELS)
def test_equal_size_keeps_all_samples(size: tuple[int, int], kernel: int) -> None:
    data = photograph(*size, "444")
    for workspace in workspaces():
        for mirrored in (False, True):
            found = resized(data, size, kernel, workspace, mirrored=mirrored)
            expected = jpegs.decode(data)
            assert np.array_equal(found, expected[:, ::-1] if mirrored else expected)


@pytest.mark.parametrize("sampling", ["420", "422", "440", "444"])
@pytest.mark.parametrize(
    "shape", [(151, 40), (151, 180), (60, 131), (190, 131), (151, 131), (76, 66)], ids=str
)
def test_mirroring_changes_no_sample(shape: tuple[int, int], sampling: str) -> None:
    """A mirrored width is always filtered, an equal one that is not mirrored never is.

    For the last shape, there are as many samples of chroma as pixels, but they are shifted.
    """
    data = photograph(151, 131, sampling)
    for workspace in workspaces():
        for kernel in KERNELS:
            upright = resized(data, shape, kernel, workspace)
            mirrored = resized(data, shape, kernel, workspace, mirrored=True)
            assert np.array_equal(upright, mirrored[:, ::-1])


def test_an_equal_height_keeps_each_row() -> None:
    """If all columns are equal, a filter of the width changes nothing."""
    column = np.random.default_rng(0).integers(0, 256, (150, 1, 3), np.uint8)
    data = jpegs.encode(np.ascontiguousarray(np.repeat(column, 96, 1)), 100, "444")
    expected = jpegs.decode(data)[:, :1]
    for workspace in workspaces():
        for kernel in KERNELS:
            for width in (24, 48, 200):
                found = resized(data, (150, width), kernel, workspace)
                assert np.array_equal(found, np.repeat(expected, width, 1))


def test_an_equal_width_keeps_each_column() -> None:
    row = np.random.default_rng(0).integers(0, 256, (1, 150, 3), np.uint8)
    data = jpegs.encode(np.ascontiguousarray(np.repeat(row, 96, 0)), 100, "444")
    expected = jpegs.decode(data)[:1]
    for workspace in workspaces():
        for kernel in KERNELS:
            for height in (24, 48, 200):
                found = resized(data, (height, 150), kernel, workspace)
                assert np.array_equal(found, np.repeat(expected, height, 0))


@pytest.mark.parametrize(("longest", "count"), [(40, 1_500), (40_000, 60)])
def test_filters_of_earlier_images_change_no_pixel(longest: int, count: int) -> None:
    """Filters of many sizes, or of large results, exceed the cache."""
    data = photograph(150, 200, "420")
    rng = np.random.default_rng(longest)
    used = planes.Workspace(planes.require(), "best")
    for number in range(count):
        height, width = (int(rng.integers(9, side + 1)) for side in (150, 200))
        top = int(rng.integers(150 - height + 1))
        left = int(rng.integers(200 - width + 1))
        shape = (int(rng.integers(1, 41)), int(rng.integers(longest // 2, longest + 1)))
        if number % 2:
            shape = shape[::-1]
        kernel = int(rng.choice(KERNELS))
        window = (top, left, height, width)
        found = resized(data, shape, kernel, used, window=window)
        if number % 20 == 19 or longest > 1_000:
            fresh = planes.Workspace(planes.require(), "best")
            assert np.array_equal(found, resized(data, shape, kernel, fresh, window=window))


def test_pixels_are_not_written_outside_the_array() -> None:
    data = photograph(90, 130, "420")
    rng = np.random.default_rng(0)
    for workspace in workspaces():
        for _ in range(60):
            height, width = (int(rng.integers(1, side + 1)) for side in (90, 130))
            guarded = np.full(3 * height * width + 200, 77, np.uint8)
            pixels = guarded[100:-100].reshape(height, width, 3)
            look = planes.Look(height, width, planes.BYTES, int(rng.choice(KERNELS[1:3])))
            window = (90 - height, 130 - width, height, width)
            # Without resizing, and with.
            assert look.decode(data, window, pixels, within=workspace)
            assert look.decode(data, (0, 0, 90, 130), pixels, within=workspace)
            assert np.ptp(np.concatenate([guarded[:100], guarded[-100:]])) == 0
