"""Searches for pairs of images with similar hashes, and verifies that they are duplicates.

`row` returns the row that is stored for each image: its hashes, and a small picture for quick
comparisons.

`Search` finds all pairs of hashes that differ in few bits, without comparing all pairs. The search
is exact. Each image has two hashes: one of the full image, and one of its central window. Two
images are candidates if their full hashes are near, or if the full hash of one (perhaps a crop) is
near the window hash of the other. Hashes of mirrored images are compared too. The search for pairs
uses the first 64 bits, the lowest frequencies; then all 256 bits are compared.

`scores` and `proven` verify a candidate pair: they align the first image with the second, and
compare the two. matching.c fits scale and shift of each axis, and gain and offset of grey levels.
Two images are duplicates if their common part is nearly equal and one frame is within the other.

`library` loads the compiled matching.c and declares the signatures of its functions.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import mmap
import os
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from imagenet_prep.codec import likeness
from imagenet_prep.core import imports

if TYPE_CHECKING:
    import numpy.typing as npt

    Numbers = npt.NDArray[np.uint32]
    Means = npt.NDArray[np.uint16]
    Flags = npt.NDArray[np.bool_]
    Scores = npt.NDArray[np.float32]


# as in simd.h
PLAIN = 0
AVX2 = 2
AVX512 = 4
BUCKETS = 1 << 16
_LIBRARY = Path(__file__).with_name("_matching.so")
_POINTER, _NUMBER, _SIZE = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
_FUNCTIONS = {
    "matching_best": (_NUMBER,),
    "matching_join": (_SIZE, _POINTER, _POINTER, _NUMBER),
    "matching_prove": (None, *[_POINTER] * 2, _NUMBER, _SIZE, *[_NUMBER] * 2, _POINTER, _NUMBER),
}


def library() -> ctypes.CDLL:
    """Returns the compiled library of matching.c."""
    return imports.load(_LIBRARY, **_FUNCTIONS)


@functools.lru_cache(maxsize=1)
def best() -> int:
    """Returns the best SIMD level of this processor."""
    return int(library().matching_best())


# Change this with `ROW` or the hashes: rows with a different definition are computed again.
DEFINITION = "likeness-1"
SMALL = 32  # samples per side of the small picture
ROW = np.dtype(
    [
        ("whole", "<u8", 4),
        ("window", "<u8", 4),
        ("means", "<u8"),  # a digest of the means, equal for images with equal pixels
        ("strong", "<u2"),
        ("rough", "<u2"),
        ("sound", "u1"),
        ("small", "u1", (SMALL, SMALL)),
    ]
)
# An image has enough detail if at least LEAST_STRONG of its frequencies have an amplitude of a
# quarter of a grey level, and at least LEAST_ROUGH of its cells differ from their surroundings by a
# grey level. Re-encoding removes detail, so one image of a pair must reach these numbers, and the
# second image only this share (LESS) of them.
LEAST_STRONG = 128
LEAST_ROUGH = 820
LESS = 0.75


def row(means: npt.NDArray[np.uint16]) -> npt.NDArray[Any]:
    """Returns the row of an image, given the result of `likeness.means`."""
    result = np.zeros((), ROW)
    measured = likeness.hashes(means)
    result["whole"], result["window"] = measured["bits"]
    result["strong"], result["rough"] = measured["strong"][0], measured["rough"][0]
    result["sound"] = 1
    digest = hashlib.blake2b(means.tobytes(), digest_size=8).digest()
    result["means"] = int.from_bytes(digest, "little")
    four = means.reshape(SMALL, 2, SMALL, 2).sum(axis=(1, 3), dtype=np.uint32)
    result["small"] = (four + 2 * likeness.SIXTEENTHS) // (4 * likeness.SIXTEENTHS)
    return result


def judged(rows: npt.NDArray[Any], share: float = 1) -> npt.NDArray[np.bool_]:
    """Returns whether each image has enough detail; the limits are multiplied by `share`."""
    enough = rows["strong"] >= share * LEAST_STRONG
    return np.asarray(enough & (rows["rough"] >= share * LEAST_ROUGH))


def of(data: bytes) -> bytes:
    """Returns the row of an image file; raises BadImageError if it cannot be decoded."""
    return row(likeness.means(data)).tobytes()


def forget(array: npt.NDArray[Any]) -> None:
    """Lets the kernel reclaim the pages of a memory-mapped array."""
    pages = getattr(array, "_mmap", None)
    if pages is not None:
        pages.madvise(mmap.MADV_DONTNEED)


def rows_of(array: npt.NDArray[np.uint64], ids: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint64]:
    """Returns the rows `ids` of an array; rows of a mapped file are read one by one."""
    # On kernels with large folios, each row read through the mapping would use 2 MB of memory.
    if not isinstance(array, np.memmap) or array.filename is None:
        return array[ids]
    rows = np.empty((len(ids), *array.shape[1:]), array.dtype)
    with open(array.filename, "rb", buffering=0) as file:
        for row, number in zip(rows, ids.tolist(), strict=True):
            os.preadv(file.fileno(), [row], number * array.strides[0])
    return rows


_BANDS = 4
_ROOM = 1 << 18  # pairs in the buffer of a worker
_RANGES = 256  # parts of a band, assigned to the workers; fewer for few images
# members of `join` in matching.c, and the index of its end
_MEMBERS = 14
_END = 11
_NONE = (np.empty((0, 2), np.uint32), True)
Pairs = tuple["Numbers", "Numbers"]


class Radii(NamedTuple):
    """The maximum numbers of differing bits: of the first 64 bits, and of all 256 bits."""

    key: int
    all: int


# The limits for windows are higher, since cropping moves every edge of an image.
WHOLE_RADII = Radii(7, 50)
WINDOW_RADII = Radii(11, 75)


class Side:
    """The full or the window hashes of the images `ids`; `bits` [n, 4] may be a mapped file."""

    def __init__(self, ids: Numbers, bits: npt.NDArray[np.uint64]) -> None:
        self.ids, self.bits = ids, bits
        self.keys = np.ascontiguousarray(bits[:, 0][ids])
        forget(bits)

    def sorted_by(self, band: int) -> Sorted:
        """Returns the hashes sorted by a band, one of the four 16-bit parts of their first word."""
        values = self.keys.view("<u2")[band::_BANDS]
        order = np.argsort(values, kind="stable")
        start = np.zeros(BUCKETS + 1, np.int64)
        np.cumsum(np.bincount(values, minlength=BUCKETS), out=start[1:])
        return Sorted(self.keys[order], self.ids[order], start)


class Sorted(NamedTuple):
    """Hashes sorted by a band; the range start[i]:start[i + 1] has the hashes with band value i."""

    keys: npt.NDArray[np.uint64]
    ids: Numbers
    start: npt.NDArray[np.int64]


class Search(NamedTuple):
    """A search for all near pairs of left and right hashes."""

    left: Side  # the same object as `right` for pairs within a list
    right: Side
    radii: Radii
    mirror: npt.NDArray[np.uint64] | None  # bits flipped in a mirrored image

    def candidates(
        self,
        pool: futures.Executor,
        workers: int,
        tick: Callable[[], None] = lambda: None,
        is_open: Callable[[Numbers, Numbers], Any] | None = None,
    ) -> Iterator[Pairs]:
        """Yields each near pair once, in a fixed order; `is_open` selects pairs to be confirmed."""
        for band in range(_BANDS):
            for block in self._of_band(band, pool, workers):
                tick()
                if not len(block):
                    continue
                left, right = block.T
                if is_open is not None:
                    left, right = block[is_open(left, right)].T
                pairs = self._confirmed(left, right)
                if len(pairs[0]):
                    yield pairs

    def _of_band(self, band: int, pool: futures.Executor, workers: int) -> Iterator[Numbers]:
        left = self.left.sorted_by(band)
        right = left if self.left is self.right else self.right.sorted_by(band)
        joins = [self._join(left, right, band, worker, workers) for worker in range(workers)]
        running = [pool.submit(next, join, _NONE) for join in joins]
        # Wait for the ranges in their order, so the order of pairs does not depend on the workers.
        for at in range(self._num_ranges):
            worker = at % workers
            is_last = False
            while not is_last:
                pairs, is_last = running[worker].result()
                yield pairs
                running[worker] = pool.submit(next, joins[worker], _NONE)

    @property
    def _num_ranges(self) -> int:
        return min(_RANGES, 1 + len(self.left.ids) // 16)

    def _join(
        self, left: Sorted, right: Sorted, band: int, worker: int, workers: int
    ) -> Iterator[tuple[Numbers, bool]]:
        """Yields (array of pairs, whether it is the last array of a range) for a worker's ranges.

        Each array is valid only until the next one is requested.
        """
        pairs = np.empty((max(_ROOM, int(np.diff(right.start).max())), 2), np.uint32)
        # Fill the structs `join` and `place` of matching.c.
        job = np.zeros(_MEMBERS, np.uint64)
        job[:6] = [array.ctypes.data for array in (*left, *right)]
        # If hashes differ in at most `key` bits, a band differs in at most a quarter of them.
        job[6:10] = left is right, band, self.radii.key, self.radii.key // _BANDS
        job[10] = 0 if self.mirror is None else self.mirror[0]
        job[12:] = pairs.ctypes.data, len(pairs)
        place = np.zeros(3, np.int64)
        bounds = np.linspace(0, BUCKETS, self._num_ranges + 1, dtype=np.int64)
        for at in range(worker, self._num_ranges, workers):
            place[:] = (bounds[at], 0, 0)
            job[_END] = bounds[at + 1]
            while place[0] < bounds[at + 1]:
                count = library().matching_join(job.ctypes.data, place.ctypes.data, best())
                yield pairs[:count], place[0] >= bounds[at + 1]

    def _confirmed(self, left: Numbers, right: Numbers) -> Pairs:
        differing = rows_of(self.left.bits, left) ^ rows_of(self.right.bits, right)
        if self.mirror is not None:
            differing ^= self.mirror
        distance = np.bitwise_count(differing).sum(axis=1)
        order = np.argsort(distance, kind="stable")
        near = order[: int((distance <= self.radii.all).sum())]
        return left[near], right[near]


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
    library().matching_prove(
        left.ctypes.data,
        right.ctypes.data,
        mirrored,
        len(left),
        left.shape[-1],
        divisor,
        result.ctypes.data,
        best() if simd is None else simd,
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
