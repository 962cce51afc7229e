"""Exact search for all pairs of hashes that differ in few bits, without comparing all pairs.

Each image has two hashes: one of the full image, and one of its central window. Two images are
candidates if their full hashes are near, or if the full hash of one (perhaps a crop) is near the
window hash of the other. Hashes of mirrored images are compared too. The search for pairs uses the
first 64 bits, the lowest frequencies; then all 256 bits are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent import futures
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from imagenet_prep.matching import hashes, kernels

if TYPE_CHECKING:
    import numpy.typing as npt

    Numbers = npt.NDArray[np.uint32]

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
        hashes.forget(bits)

    def sorted_by(self, band: int) -> Sorted:
        """Returns the hashes sorted by a band, one of the four 16-bit parts of their first word."""
        values = self.keys.view("<u2")[band::_BANDS]
        order = np.argsort(values, kind="stable")
        start = np.zeros(kernels.BUCKETS + 1, np.int64)
        np.cumsum(np.bincount(values, minlength=kernels.BUCKETS), out=start[1:])
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
        bounds = np.linspace(0, kernels.BUCKETS, self._num_ranges + 1, dtype=np.int64)
        for at in range(worker, self._num_ranges, workers):
            place[:] = (bounds[at], 0, 0)
            job[_END] = bounds[at + 1]
            while place[0] < bounds[at + 1]:
                count = kernels.library().matching_join(
                    job.ctypes.data, place.ctypes.data, kernels.best()
                )
                yield pairs[:count], place[0] >= bounds[at + 1]

    def _confirmed(self, left: Numbers, right: Numbers) -> Pairs:
        differing = hashes.rows_of(self.left.bits, left) ^ hashes.rows_of(self.right.bits, right)
        if self.mirror is not None:
            differing ^= self.mirror
        distance = np.bitwise_count(differing).sum(axis=1)
        order = np.argsort(distance, kind="stable")
        near = order[: int((distance <= self.radii.all).sum())]
        return left[near], right[near]
