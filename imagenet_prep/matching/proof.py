"""Verifies candidate pairs: aligns the first image with the second, and compares the two.

matching.c fits scale and shift of each axis, and gain and offset of grey levels. Two images are
duplicates if their common part is nearly equal and one frame is within the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from imagenet_prep.codec import likeness
from imagenet_prep.matching import kernels

if TYPE_CHECKING:
    import numpy.typing as npt

    Means = npt.NDArray[np.uint16]
    Flags = npt.NDArray[np.bool_]
    Scores = npt.NDArray[np.float32]

# Minimum correlations of two images: of their common part, and of its finest details.
LEAST_WHOLE = 0.9
LEAST_FINE = 0.6
# An image with a side below 64 pixels has no such details. Its 64 x 64 cells are merged to 32 x 32,
# and the minimum correlation is higher.
_LEAST_PIXELS = 64
LEAST_FINE_OF_TINY = 0.8
# Looser limits for the first comparison, which uses small pictures.
LIKELY_WHOLE = 0.85
LIKELY_FINE = 0.45
LIKELY_OUTSIDE = 0.04
# Limits of the contrast of one image relative to the second.
LEAST_GAIN = 0.5
MOST_GAIN = 1.8
# Minimum ratio of a side of the smaller frame to a side of the larger frame, and the share of a
# side by which the smaller frame may extend beyond the larger.
LEAST_SCALE = 0.87
MOST_OUTSIDE = 0.03


def scores(
    left: npt.NDArray[Any],
    right: npt.NDArray[Any],
    mirrored: bool,
    divisor: int,
    simd: int | None = None,
) -> Scores:
    """Returns [n, 8]: scale and shift of x, scale and shift of y, gain, offset, two correlations.

    `left` and `right` are [n, side, side], with 16, 32 or 64 samples per side and `divisor` units
    per grey level. If `mirrored`, the left images are flipped first. `simd` is a level of simd.h;
    all levels give the same result.
    """
    left, right = (np.ascontiguousarray(images, np.uint16) for images in (left, right))
    result = np.empty((len(left), 8), np.float32)
    kernels.library().matching_prove(
        left.ctypes.data,
        right.ctypes.data,
        mirrored,
        len(left),
        left.shape[-1],
        divisor,
        result.ctypes.data,
        kernels.best() if simd is None else simd,
    )
    return result


def proven(left: Means, right: Means, mirrored: bool, least_side: int) -> bool:
    """Returns whether two images are duplicates, given their `likeness.means`."""
    divisor, fine = likeness.SIXTEENTHS, LEAST_FINE
    if least_side < _LEAST_PIXELS:
        left = _halved(left)
        right = _halved(right)
        divisor = 4 * divisor
        fine = LEAST_FINE_OF_TINY
    measured = scores(left[None], right[None], mirrored, divisor)
    return bool(_are_one(measured, LEAST_WHOLE, fine, MOST_OUTSIDE)[0])


def likely(left: npt.NDArray[np.uint8], right: npt.NDArray[np.uint8], mirrored: bool) -> Flags:
    """Returns whether each pair of small pictures is similar enough for a full comparison."""
    return _are_one(scores(left, right, mirrored, 1), LIKELY_WHOLE, LIKELY_FINE, LIKELY_OUTSIDE)


def _halved(means: Means) -> Means:
    side = len(means) // 2
    return np.asarray(means.reshape(side, 2, side, 2).sum(axis=(1, 3), dtype=np.uint16))


def _are_one(measured: Scores, whole: float, fine: float, outside: float) -> Flags:
    # The C code returns the squares of the correlations, with the correlations' signs.
    alike = (measured[:, 6] >= whole**2) & (measured[:, 7] >= fine**2)
    alike &= (measured[:, 4] >= LEAST_GAIN) & (measured[:, 4] <= MOST_GAIN)
    scales, shifts = measured[:, (0, 2)], measured[:, (1, 3)]
    with np.errstate(divide="ignore", invalid="ignore"):
        within = np.abs(shifts) + scales <= 1 + 2 * outside
        around = np.abs(shifts / scales) + 1 / scales <= 1 + 2 * outside
        ratio = np.minimum(scales, 1 / scales)
    framed = within.all(axis=1) | around.all(axis=1)
    return np.asarray(alike & framed & (ratio >= LEAST_SCALE).all(axis=1))
