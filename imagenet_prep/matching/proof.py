"""The proof of a candidate: one picture is laid on the other, and what is left is compared.

Scale and shift of each axis, gain and offset of grey levels are fitted from coarse to fine, in
matching.c. Two pictures are one if what they share is nearly equal, also in its finest details, and
the frame of one lies within that of the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from imagenet_prep.codec import likeness
from imagenet_prep.matching import kernels

if TYPE_CHECKING:
    import numpy.typing as npt

# Correlations of a picture with the other: of all that both show, and of its finest details.
LEAST_WHOLE, LEAST_FINE = 0.9, 0.6
# A picture of fewer pixels than cells has no such details: then both are looked at by half as many
# cells, which say less, and must agree more.
_LEAST_PIXELS, LEAST_FINE_OF_TINY = 64, 0.8
# The first look, at small pictures, lets through more than the proof.
LIKELY_WHOLE, LIKELY_FINE, LIKELY_OUTSIDE = 0.85, 0.45, 0.04
# How much of the contrast of one the other may have: a darker one has less.
LEAST_GAIN, MOST_GAIN = 0.5, 1.8
# The smaller frame has at least this share of the larger one's sides, and may stick out this far.
LEAST_SCALE, MOST_OUTSIDE = 0.87, 0.03


def scores(
    left: npt.NDArray[Any],
    right: npt.NDArray[Any],
    mirrored: bool,
    divisor: int,
    simd: int | None = None,
) -> npt.NDArray[np.float32]:
    """Returns [n, 8]: scale and shift across, and down; gain, offset; both correlations.

    Args:
      left, right: [n, side, side] of pictures, of 16, 32 or 64 samples a side.
      mirrored: whether the left ones are turned round first.
      divisor: how many parts of a sample are a grey level.
      simd: vector code to use, as simd.h numbers it; all of them make the same numbers.
    """
    one, other = (np.ascontiguousarray(each, np.uint16) for each in (left, right))
    found = np.empty((len(one), 8), np.float32)
    kernels.library().matching_prove(
        *(one.ctypes.data, other.ctypes.data, mirrored, len(one), one.shape[-1]),
        *(divisor, found.ctypes.data, kernels.best() if simd is None else simd),
    )
    return found


def proven(
    left: npt.NDArray[np.uint16], right: npt.NDArray[np.uint16], mirrored: bool, least_side: int
) -> bool:
    """Returns whether two pictures are one.

    Args:
      left, right: [64, 64], their means in sixteenths.
      mirrored: whether the left one is turned round first.
      least_side: pixels of the shortest side of both.
    """
    divisor, fine = likeness.SIXTEENTHS, LEAST_FINE
    if least_side < _LEAST_PIXELS:
        left, right, divisor, fine = _halved(left), _halved(right), 4 * divisor, LEAST_FINE_OF_TINY
    found = scores(left[None], right[None], mirrored, divisor)
    return bool(_are_one(found, LEAST_WHOLE, fine, MOST_OUTSIDE)[0])


def likely(
    left: npt.NDArray[np.uint8], right: npt.NDArray[np.uint8], mirrored: bool
) -> npt.NDArray[np.bool_]:
    """Returns for which pairs of small pictures a proof is worth its while."""
    return _are_one(scores(left, right, mirrored, 1), LIKELY_WHOLE, LIKELY_FINE, LIKELY_OUTSIDE)


def _halved(means: npt.NDArray[np.uint16]) -> npt.NDArray[np.uint16]:
    """Returns the sums of four cells each."""
    side = len(means) // 2
    return np.asarray(means.reshape(side, 2, side, 2).sum(axis=(1, 3), dtype=np.uint16))


def _are_one(
    found: npt.NDArray[np.float32], whole: float, fine: float, outside: float
) -> npt.NDArray[np.bool_]:
    """Returns which `scores` are good enough."""
    # The C code leaves correlations squared, with their sign.
    alike = (found[:, 6] >= whole**2) & (found[:, 7] >= fine**2)
    alike &= (found[:, 4] >= LEAST_GAIN) & (found[:, 4] <= MOST_GAIN)
    scales, shifts = found[:, (0, 2)], found[:, (1, 3)]
    with np.errstate(divide="ignore", invalid="ignore"):
        within = np.abs(shifts) + scales <= 1 + 2 * outside
        around = np.abs(shifts / scales) + 1 / scales <= 1 + 2 * outside
        ratio = np.minimum(scales, 1 / scales)
    framed = within.all(axis=1) | around.all(axis=1)
    return np.asarray(alike & framed & (ratio >= LEAST_SCALE).all(axis=1))
