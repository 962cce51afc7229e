"""Computes perceptual hashes, which are similar for similar images.

An image of any aspect ratio is divided into 64 x 64 cells, and a DCT is applied to their mean luma.
The hash contains the signs of the DCT's 256 lowest frequencies. likeness.c uses only integers, so
the results are the same on every processor.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

from imagenet_prep.codec import cage, opening, planes
from imagenet_prep.dataset.jpeg import MAX_PIXELS

if TYPE_CHECKING:
    import numpy.typing as npt

CELLS = 64
FREQUENCIES = 256
WINDOW = 60
SIXTEENTHS = 16
_HIGHEST = 20
_UNIT = 2048
# `likeness_hash` in likeness.h: 256 bits, lowest frequencies first; the number of frequencies with
# an amplitude of at least a quarter of a grey level; the number of cells that differ by at least
# one grey level from the mean of their 3 x 3 neighbourhood.
HASH = np.dtype([("bits", "<u8", FREQUENCIES // 64), ("strong", "<i4"), ("rough", "<i4")])


def means(data: bytes, simd: str = "best") -> npt.NDArray[np.uint16]:
    """Returns the mean luma of an image in [64, 64] cells, in sixteenths of a grey level.

    `simd` is a key of planes.SIMD; all keys give the same results.
    """
    try:
        return _means(data, simd)
    except cage.OutsideError:
        pass
    _, cells = cage.run("means", bool, data)
    return cage.array(cells, np.uint16, (CELLS, CELLS))


def _means(data: bytes, simd: str) -> npt.NDArray[np.uint16]:
    found = planes.allowed_here(simd).means(data, MAX_PIXELS)
    if found is not None:
        return found
    with opening.opened(data) as image:
        luma = opening.pixels(image, lambda band: opening.rgb(band).convert("L"))
    return means_of_pixels(luma, simd)


def means_of_pixels(luma: npt.NDArray[np.uint8], simd: str = "best") -> npt.NDArray[np.uint16]:
    """Returns `means` of an image, given its luma [height, width]."""
    height, width = luma.shape
    padded = np.zeros((height, -(-width // 32) * 32), np.uint8)
    padded[:, :width] = luma
    sums = np.empty(padded.shape[1], np.uint32)
    found = np.empty((CELLS, CELLS), np.uint16)
    planes.kernel().likeness_means(
        planes.best(simd),
        ctypes.c_void_p(padded.ctypes.data),
        ctypes.c_ssize_t(padded.strides[0]),
        width,
        height,
        ctypes.c_void_p(sums.ctypes.data),
        ctypes.c_void_p(found.ctypes.data),
    )
    return found


def hashes(cells: npt.NDArray[np.uint16], simd: str = "best") -> npt.NDArray[Any]:
    """Returns two `HASH` values for the `means` of an image: of all and of the central cells."""
    found = np.empty(2, HASH)
    cells = np.ascontiguousarray(cells)
    planes.kernel().likeness_hashes(
        _bases(),
        planes.best(simd),
        *(ctypes.c_void_p(each.ctypes.data) for each in (cells, found)),
    )
    return found


@functools.lru_cache(maxsize=1)
def frequencies() -> list[tuple[int, int]]:
    """Returns the (horizontal, vertical) frequency of each hash bit, lowest first."""
    every = [*itertools.product(range(_HIGHEST), range(_HIGHEST))]
    every.remove((0, 0))  # the mean
    every.sort(key=lambda each: (each[0] ** 2 + each[1] ** 2, abs(each[0] - each[1]), each[0]))
    return every[:FREQUENCIES]


@functools.lru_cache(maxsize=1)
def mirror() -> npt.NDArray[np.uint64]:
    """Returns a mask [4] of the hash bits that mirroring inverts (odd horizontal frequencies)."""
    odd = [u % 2 for u, _ in frequencies()]
    return np.packbits(odd, bitorder="little").view("<u8")


@functools.lru_cache(maxsize=1)
def _bases() -> bytes:
    """Returns two `basis` structures of likeness.c: for all cells, and for the central ones."""
    bits = bytes(u for u, _ in frequencies()) + bytes(v for _, v in frequencies())
    made = b""
    for size in (CELLS, WINDOW):
        angles = np.pi / (2 * size) * np.outer(np.arange(_HIGHEST), 2 * np.arange(size) + 1)
        cosines = np.zeros((_HIGHEST, CELLS), np.int32)
        cosines[:, :size] = np.rint(_UNIT * np.cos(angles))
        made += cosines.tobytes() + bits
    return made
