"""Finds which pictures are one: by their bytes, by their pixels, and by what they show."""

from __future__ import annotations

import functools
import hashlib
import io
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from imagenet_prep.codec import likeness
from imagenet_prep.core.errors import BadImageError, DataDamagedError
from imagenet_prep.matching import proof, search
from imagenet_prep.matching.groups import NEARLY, SAME_BYTES, SAME_PIXELS, Union
from imagenet_prep.matching.search import Radii, Search, Side

if TYPE_CHECKING:
    import numpy.typing as npt

    from imagenet_prep.matching.pictures import Pictures
    from imagenet_prep.matching.search import Candidates

# Means that are kept of pictures that were decoded for a proof: 32 MB.
_KEPT_MEANS = 4096
_PROOFS_AT_ONCE = 1 << 14


class Found:
    """Who is one with whom.

    Attributes:
      by_bytes, by_pixels, by_sight: each holds the one before it.
      problems: sentences about images that were damaged after they were hashed.
    """

    def __init__(self, pictures: Pictures, *, across: bool, workers: int) -> None:
        """Begins; nothing is found yet.

        Args:
          pictures: all of them.
          across: find only what one set has of the other.
          workers: threads.
        """
        self._pictures, self._across, self._workers = pictures, across, workers
        self._other = pictures.of(lambda piece: piece.other)
        self._means: OrderedDict[int, npt.NDArray[np.uint16]] = OrderedDict()
        self._lock = threading.Lock()
        self.problems: set[str] = set()
        num = len(pictures)
        self.by_bytes, self.by_pixels, self.by_sight = Union(num), Union(num), Union(num)

    def find(self, tick: Callable[[str], None]) -> None:
        """Finds all.

        Args:
          tick: is called with what is done now, from time to time.
        """
        tick("same bytes")
        for run in equal_bytes(self._pictures.known.sha256):
            self._join(run, (self.by_bytes, self.by_pixels, self.by_sight))
        tick("same pixels")
        for run in self._equal_pixels():
            self._join(run, (self.by_pixels, self.by_sight))
        with futures.ThreadPoolExecutor(self._workers) as pool:
            for number, each in enumerate(searches := self._searches(), start=1):
                said = f"search {number} of {len(searches)}"
                say = functools.partial(tick, said)
                for candidates in each.candidates(pool, self._workers, say):
                    self._prove(pool, candidates)

    def kind(self, one: int, other: int) -> str:
        """Returns how two pictures of a group are the same."""
        both = np.array([one, other], np.uint32)
        for union, kind in ((self.by_bytes, SAME_BYTES), (self.by_pixels, SAME_PIXELS)):
            if len({*union.first(both).tolist()}) == 1:
                return kind
        return NEARLY

    def distance(self, one: int, other: int) -> int:
        """Returns in how many bits two pictures differ, in whichever form is nearest."""
        if self.kind(one, other) != NEARLY:
            return 0
        mirror, seen = np.array(likeness.mirror(), np.uint64), self._pictures
        forms = ((seen.whole, seen.whole), (seen.whole, seen.window), (seen.window, seen.whole))
        return min(
            int(np.bitwise_count(a[one] ^ b[other] ^ turned).sum())
            for a, b in forms
            for turned in (np.uint64(0), mirror)
        )

    def _join(self, run: npt.NDArray[np.uint32], unions: tuple[Union, ...]) -> None:
        if self._across and len({*self._other[run].tolist()}) < 2:
            return
        for number in run[1:].tolist():
            for union in unions:
                union.join(int(run[0]), number)

    def _equal_pixels(self) -> Iterator[npt.NDArray[np.uint32]]:
        """Yields the pictures of other bytes and equal pixels; each candidate is decoded once."""
        known = self._pictures.known
        numbers = np.flatnonzero(self._first_of(self.by_bytes) & self._pictures.sound)
        sizes = known.width[numbers].astype(np.uint64) << 32 | known.height[numbers].astype(
            np.uint64
        )
        for run in _runs(self._pictures.means[numbers]):
            for same in _split(numbers[run].astype(np.uint32), sizes[run].tolist()):
                if not self._across or len({*self._other[same].tolist()}) == 2:
                    yield from _split(same, [self._pixels(number) for number in same.tolist()])

    def _first_of(self, union: Union) -> npt.NDArray[np.bool_]:
        """Returns who is looked at for a group that is known; across sets, all are."""
        first = union.joined()
        return np.asarray((first == np.arange(len(first))) | self._across)

    def _pixels(self, number: int) -> bytes:
        """Returns a digest of the pixels of a picture, as libjpeg makes them."""
        try:
            data = io.BytesIO(self._pictures.read(number))
        except DataDamagedError as error:
            self._note(error)
            return number.to_bytes(8)  # equal to no other
        with warnings.catch_warnings(action="ignore"), Image.open(data) as opened:
            return hashlib.sha256(opened.convert("RGB").tobytes()).digest()

    def _searches(self) -> list[Search]:
        """Returns the joins that find all candidates."""
        mine = self._pictures
        wanted = mine.may_be_judged & self._first_of(self.by_pixels)
        mirror = np.array(likeness.mirror(), np.uint64)
        whole_radii, window_radii = Radii(*search.WHOLE_RADII), Radii(*search.WINDOW_RADII)
        pairs: list[tuple[Side, Side, Radii]] = []
        if self._across:
            ours, theirs = (
                np.flatnonzero(wanted & of).astype(np.uint32) for of in (~self._other, self._other)
            )
            left, right = Side(ours, mine.whole), Side(theirs, mine.whole)
            pairs.append((left, right, whole_radii))
            pairs.append((left, Side(theirs, mine.window), window_radii))
            pairs.append((Side(ours, mine.window), right, window_radii))
        else:
            numbers = np.flatnonzero(wanted).astype(np.uint32)
            whole = Side(numbers, mine.whole)
            pairs.append((whole, whole, whole_radii))
            pairs.append((whole, Side(numbers, mine.window), window_radii))
        return [Search(*each, turned) for each in pairs for turned in (None, mirror)]

    def _prove(self, pool: futures.Executor, candidates: Candidates) -> None:
        """Proves candidates that are not known to be one yet."""
        for at in range(0, len(candidates.left), _PROOFS_AT_ONCE):
            part = slice(at, at + _PROOFS_AT_ONCE)
            left, right = candidates.left[part], candidates.right[part]
            mirrored = candidates.mirrored[part]
            new = self.by_sight.first(left) != self.by_sight.first(right)
            new &= self._pictures.judged[left] | self._pictures.judged[right]
            left, right, mirrored = left[new], right[new], mirrored[new]
            parts = np.array_split(np.arange(len(left)), self._workers)
            jobs = [
                pool.submit(self._proven, left[each], right[each], mirrored[each]) for each in parts
            ]
            for each, job in zip(parts, jobs, strict=True):
                for one, other in zip(
                    left[each][job.result()], right[each][job.result()], strict=True
                ):
                    self.by_sight.join(int(one), int(other))

    def _proven(
        self,
        left: npt.NDArray[np.uint32],
        right: npt.NDArray[np.uint32],
        mirrored: npt.NDArray[np.bool_],
    ) -> npt.NDArray[np.bool_]:
        """Returns which candidates are one: first by small pictures, then by the images."""
        with self._lock:
            small = self._pictures.small(left), self._pictures.small(right)
        there = proof.likely(*small, mirrored)
        known = self._pictures.known
        sides = np.minimum(known.width, known.height)
        for at in np.flatnonzero(there).tolist():
            pair = (int(left[at]), int(right[at]))
            least = np.minimum(sides[pair[0]], sides[pair[1]])[None]
            try:
                one, other = (self._means_of(number)[None] for number in pair)
            except (DataDamagedError, BadImageError) as error:
                self._note(error)
                there[at] = False
                continue
            there[at] = proof.proven(one, other, mirrored[at : at + 1], least)[0]
        return there

    def _note(self, error: Exception) -> None:
        """Notes what was damaged after it was hashed."""
        with self._lock:
            self.problems.add(str(error))

    def _means_of(self, number: int) -> npt.NDArray[np.uint16]:
        with self._lock:
            if number in self._means:
                self._means.move_to_end(number)
                return self._means[number]
        means = likeness.means(self._pictures.read(number))
        with self._lock:
            self._means[number] = means
            if len(self._means) > _KEPT_MEANS:
                self._means.popitem(last=False)
        return means


def equal_bytes(digests: npt.NDArray[np.uint8]) -> Iterator[npt.NDArray[np.uint32]]:
    """Yields the pictures of equal sha256, of [n, 32]."""
    for run in _runs(digests[:, :8].copy().view(np.uint64)[:, 0]):
        yield from _split(run, [digests[number].tobytes() for number in run.tolist()])


def _runs(values: npt.NDArray[np.uint64]) -> Iterator[npt.NDArray[np.uint32]]:
    """Yields the places of each value that comes more than once."""
    order = np.argsort(values, kind="stable")
    same = values[order][1:] == values[order][:-1]
    edges = np.flatnonzero(np.diff(np.concatenate([[0], same.view(np.int8), [0]])))
    for begin, end in edges.reshape(-1, 2).tolist():
        yield order[begin : end + 1].astype(np.uint32)


def _split(
    numbers: npt.NDArray[np.uint32], values: list[object]
) -> Iterator[npt.NDArray[np.uint32]]:
    """Yields those of some pictures that have a value in common."""
    found: dict[object, list[int]] = {}
    for number, value in zip(numbers.tolist(), values, strict=True):
        found.setdefault(value, []).append(number)
    yield from (np.array(each, np.uint32) for each in found.values() if len(each) > 1)
