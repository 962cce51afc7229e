"""The exact search: all pairs of hashes that differ in few bits, found without comparing all.

Each picture has two hashes: of all of it, and of the window inside its frame. Two pictures are
candidates where the whole of one is near the whole of the other, or near the window of the other,
which a crop is; each also in its mirror image. The first 64 bits, the lowest frequencies, find
pairs; all 256 bits confirm them. Memory is what the hashes take and a buffer of pairs.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from imagenet_prep.matching import in_file, kernels

if TYPE_CHECKING:
    import numpy.typing as npt

WORDS = 4  # of 64 bits, a hash
# Bits that may differ, of the first 64 and of all 256. A crop moves every edge in the picture.
WHOLE_RADII, WINDOW_RADII = (7, 50), (11, 75)
_BANDS = 4
_ROOM = 1 << 18  # pairs that a worker holds
_RANGES = 256  # parts of a band that workers take one by one


class Radii(NamedTuple):
    """How many bits may differ."""

    key: int
    all: int


class Candidates(NamedTuple):
    """Pairs that may be one picture: `left` as it is, or mirrored, and `right`."""

    left: npt.NDArray[np.uint32]
    right: npt.NDArray[np.uint32]
    mirrored: npt.NDArray[np.bool_]


class Side:
    """The hashes of one form of some pictures, as a join takes them.

    Attributes:
      ids: the pictures that are judged.
      bits: [n, 4] of all pictures, by id; may lie in a file.
    """

    def __init__(self, ids: npt.NDArray[np.uint32], bits: npt.NDArray[np.uint64]) -> None:
        self.ids, self.bits = ids, bits
        self.keys = np.ascontiguousarray(bits[:, 0][ids])

    def sorted_by(self, band: int) -> tuple[kernels.Sorted, tuple[npt.NDArray[np.generic], ...]]:
        """Returns the hashes sorted by a band, and the memory that must stay."""
        keys, ids = np.empty_like(self.keys), np.empty_like(self.ids)
        start = np.empty(kernels.BUCKETS + 1, np.int64)
        kernels.library().matching_sort(
            *(self.keys.ctypes.data, self.ids.ctypes.data, len(self.keys), band),
            *(keys.ctypes.data, ids.ctypes.data, start.ctypes.data),
        )
        return kernels.Sorted(keys.ctypes.data, ids.ctypes.data, start.ctypes.data), (
            keys,
            ids,
            start,
        )


class Search(NamedTuple):
    """One join: pairs of a picture on the left and one on the right.

    Attributes:
      left, right: the hashes; one object where pairs within one list are wanted.
      radii: how many bits may differ.
      mirror: the bits of a mirrored picture that are turned round, as four numbers; None: as is.
    """

    left: Side
    right: Side
    radii: Radii
    mirror: npt.NDArray[np.uint64] | None

    def candidates(
        self, pool: futures.Executor, workers: int, tick: Callable[[], None] = lambda: None
    ) -> Iterator[Candidates]:
        """Yields all pairs, each once and in some order.

        Args:
          pool: whose threads join.
          workers: how many.
          tick: is called from time to time.
        """
        same = self.left is self.right
        turned = 0 if self.mirror is None else int(self.mirror[0])
        for band in range(_BANDS):
            left, memory = self.left.sorted_by(band)
            right, more = (left, memory) if same else self.right.sorted_by(band)
            largest = int(np.diff(more[2]).max(initial=0))
            ranges = iter(np.linspace(0, kernels.BUCKETS, _RANGES + 1, dtype=np.int64).tolist())
            parts = _Parts(ranges)
            joins = [
                _Join(
                    kernels.Join(
                        *(left, right, same, band, self.radii.key, self.radii.key // _BANDS),
                        *(turned, 0, None, 0),
                    ),
                    parts,
                    max(_ROOM, largest),
                )
                for _ in range(workers)
            ]
            running = {pool.submit(join.go_on): join for join in joins}
            while running:
                done, _ = futures.wait(running, return_when=futures.FIRST_COMPLETED)
                for each in done:
                    join = running.pop(each)
                    pairs = each.result()
                    tick()
                    if pairs is None:
                        continue
                    found = self._confirmed(pairs)
                    running[pool.submit(join.go_on)] = join
                    if len(found.left):
                        yield found

    def _confirmed(self, pairs: npt.NDArray[np.uint32]) -> Candidates:
        """Returns those pairs of which all bits are near."""
        left, right = pairs[:, 0], pairs[:, 1]
        differing = self.left.bits[left] ^ self.right.bits[right]
        if self.mirror is not None:
            differing ^= self.mirror
        near = np.bitwise_count(differing).sum(axis=1) <= self.radii.all
        for side in (self.left, self.right):
            in_file.forget(side.bits)
        left, right = left[near], right[near]
        return Candidates(left, right, np.full(len(left), self.mirror is not None))


class _Parts:
    """Ranges of buckets, which workers take one by one."""

    def __init__(self, bounds: Iterator[int]) -> None:
        self._lock, self._bounds, self._last = threading.Lock(), bounds, next(bounds)

    def take(self) -> tuple[int, int] | None:
        """Returns the next range."""
        with self._lock:
            end = next(self._bounds, None)
            if end is None:
                return None
            begin, self._last = self._last, end
            return begin, end


class _Join:
    """A worker's part of a join."""

    def __init__(self, job: kernels.Join, parts: _Parts, room: int) -> None:
        self._job, self._parts = job, parts
        self._pairs = np.empty((room, 2), np.uint32)
        self._job.pairs, self._job.room, self._job.end = self._pairs.ctypes.data, room, -1
        self._place = kernels.Place(0, 0, 0)

    def go_on(self) -> npt.NDArray[np.uint32] | None:
        """Returns the next pairs, or None where all parts are done."""
        if self._place.bucket >= self._job.end:
            if (part := self._parts.take()) is None:
                return None
            self._place = kernels.Place(part[0], 0, 0)
            self._job.end = part[1]
        found = kernels.library().matching_join(
            ctypes.byref(self._job), ctypes.byref(self._place), kernels.best()
        )
        return self._pairs[:found]
