"""Verifies duplicate candidates: aligns one image with the other and compares the residual.

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

# Minimum correlations of two images: for the common part, and for its finest details.
LEAST_WHOLE, LEAST_FINE = 0.9, 0.6
# An image with fewer pixels than cells has no such details, so half of the cells are compared with
# a higher threshold.
_LEAST_PIXELS, LEAST_FINE_OF_TINY = 64, 0.8
# Looser thresholds for the first comparison, of small pictures.
LIKELY_WHOLE, LIKELY_FINE, LIKELY_OUTSIDE = 0.85, 0.45, 0.04
# Contrast of one image relative to the other.
LEAST_GAIN, MOST_GAIN = 0.5, 1.8
# Minimum side ratio of the smaller frame to the larger one, and how far it may extend beyond.
LEAST_SCALE, MOST_OUTSIDE = 0.87, 0.03


def scores(
    left: npt.NDArray[Any],
    right: npt.NDArray[Any],
    mirrored: bool,
    divisor: int,
    simd: int | None = None,
) -> Scores:
    """Returns [n, 8]: scale and shift across, and down; gain, offset; both correlations.

    The images are [n, side, side], with 16, 32 or 64 samples per side and `divisor` units per grey
    level; `mirrored` flips the left ones first. `simd`, as in simd.h, does not change the result.
    """
    left, right = (np.ascontiguousarray(images, np.uint16) for images in (left, right))
    result = np.empty((len(left), 8), np.float32)
    kernels.library().matching_prove(
        *(left.ctypes.data, right.ctypes.data, mirrored, len(left), left.shape[-1]),
        *(divisor, result.ctypes.data, kernels.best() if simd is None else simd),
    )
    return result


def proven(left: Means, right: Means, mirrored: bool, least_side: int) -> bool:
    """Returns whether two images with these [64, 64] means, in sixteenths, are duplicates."""
    divisor, fine = likeness.SIXTEENTHS, LEAST_FINE
    if least_side < _LEAST_PIXELS:
        left, right, divisor, fine = _halved(left), _halved(right), 4 * divisor, LEAST_FINE_OF_TINY
    measured = scores(left[None], right[None], mirrored, divisor)
    return bool(_are_one(measured, LEAST_WHOLE, fine, MOST_OUTSIDE)[0])


def likely(left: npt.NDArray[np.uint8], right: npt.NDArray[np.uint8], mirrored: bool) -> Flags:
    """Returns the pairs of small pictures that need a full comparison."""
    return _are_one(scores(left, right, mirrored, 1), LIKELY_WHOLE, LIKELY_FINE, LIKELY_OUTSIDE)


def _halved(means: Means) -> Means:
    side = len(means) // 2
    return np.asarray(means.reshape(side, 2, side, 2).sum(axis=(1, 3), dtype=np.uint16))


def _are_one(measured: Scores, whole: float, fine: float, outside: float) -> Flags:
    # The C code returns squared correlations with their sign.
    alike = (measured[:, 6] >= whole**2) & (measured[:, 7] >= fine**2)
    alike &= (measured[:, 4] >= LEAST_GAIN) & (measured[:, 4] <= MOST_GAIN)
    scales, shifts = measured[:, (0, 2)], measured[:, (1, 3)]
    with np.errstate(divide="ignore", invalid="ignore"):
        within = np.abs(shifts) + scales <= 1 + 2 * outside
        around = np.abs(shifts / scales) + 1 / scales <= 1 + 2 * outside
        ratio = np.minimum(scales, 1 / scales)
    framed = within.all(axis=1) | around.all(axis=1)
    return np.asarray(alike & framed & (ratio >= LEAST_SCALE).all(axis=1))
