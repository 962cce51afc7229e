"""Finds groups of duplicates, chooses the images to keep, and writes the result files.

`DuplicateSearch` finds duplicates by bytes, by pixels, and by appearance.

`Union` collects images in groups of duplicates. `divide` chooses the images to keep, in the order
of `rank`, so that each excluded image has a duplicate that is kept.

`publish` writes the result files of `duplicates`: pairs.csv, the page, and the excluded keys by
split.
"""

from __future__ import annotations

import csv
import functools
import io
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from imagenet_prep.codec import decoding, likeness
from imagenet_prep.core.errors import BadImageError, DataDamagedError
from imagenet_prep.dataset import schema
from imagenet_prep.dataset.keys import with_split
from imagenet_prep.matching import search
from imagenet_prep.matching.search import WHOLE_RADII, WINDOW_RADII, Pairs, Search, Side
from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.storage.local_file import new_file, removed_on_failure, storage_errors

if TYPE_CHECKING:
    import numpy.typing as npt

    from imagenet_prep.matching.pictures import Pictures

    Numbers = npt.NDArray[np.uint32]
    Flags = npt.NDArray[np.bool_]


def divide(connected: Sequence[GroupImage], found: DuplicateSearch) -> list[Group]:
    """Divides images, which chains of proven pairs connect, into groups of proven duplicates.

    In the order of `rank`, an image is kept unless it is proven against an image that is already
    kept. So each excluded image has a kept duplicate, and no two kept images are duplicates.
    """
    members = {member.number: member for member in sorted(connected, key=rank)}
    kept_of = _covered(members, found)
    elsewhere = _elsewhere(members, found)
    members_of: dict[int, list[GroupImage]] = {kept: [] for kept in kept_of.values()}
    for number, member in members.items():
        other = kept_of.get(number, elsewhere.get(number))
        changes: dict[str, Any] = {"kept": number not in kept_of}
        if number in elsewhere:
            changes["elsewhere"] = members[elsewhere[number]].line
        if number not in members_of and other is not None:
            changes["kind"] = found.kind(number, other)
            changes["distance"] = int(found.distances(number, np.array([other], np.uint32))[0])
            changes["proven_against"] = members[other].line
            # Its duplicate may be excluded itself, in favour of a kept image.
            home = kept_of.get(other, other)
            members_of.setdefault(home, []).append(member._replace(**changes))
        members[number] = member._replace(**changes)
    groups: list[Group] = []
    for kept, others in members_of.items():
        nearest = min((member.kind for member in others), key=KINDS.index)
        groups.append([members[kept]._replace(kind=nearest), *others])
    return groups


def _covered(members: Mapping[int, GroupImage], found: DuplicateSearch) -> dict[int, int]:
    """Returns the kept duplicate of each excluded image; `members` are in the order of `rank`."""
    kept: dict[str, list[int]] = {}
    kept_of: dict[int, int] = {}
    for number, member in members.items():
        # First compare with the kept images of the most preferred split.
        tries = (found.nearest(number, of_split) for of_split in kept.values())
        other = next((each for each in tries if each is not None), None)
        if other is None:
            kept.setdefault(member.split, []).append(number)
        else:
            kept_of[number] = other
    return kept_of


def _elsewhere(members: Mapping[int, GroupImage], found: DuplicateSearch) -> dict[int, int]:
    """Returns, for each image with a duplicate in a different split, the nearest of these."""
    elsewhere: dict[int, int] = {}
    for split in {member.split for member in members.values()}:
        others = [number for number, member in members.items() if member.split != split]
        for number, member in members.items():
            if others and member.split == split:
                other = found.nearest(number, others)
                if other is not None:
                    elsewhere[number] = other
    return elsewhere


SAME_BYTES = "same bytes"
SAME_PIXELS = "same pixels"
NEARLY = "nearly the same"
KINDS = (SAME_BYTES, SAME_PIXELS, NEARLY)
# Prefix of split names of the dataset given by --against.
AGAINST = "against:"
# Evaluation splits first: a model must not be trained on an image that tests it.
_FIRST = (schema.TEST, schema.VALIDATION, schema.HOLDOUT, schema.TRAIN)


class Union:
    """Disjoint sets of images (union-find): each image points to the first of its group."""

    def __init__(self, num: int) -> None:
        self._first = np.arange(num, dtype=np.uint32)

    def first(self, numbers: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
        """Returns, for each of these images, the first image of its group."""
        first = self._first[numbers]
        # Follow the chains of all images together, then shorten them.
        while not np.array_equal(further := self._first[first], first):
            first = further
        self._first[numbers] = first
        return first

    def joined(self) -> npt.NDArray[np.uint32]:
        """Returns, for every image, the first image of its group."""
        return self.first(np.arange(len(self._first), dtype=np.uint32))

    def join(self, left: int, right: int) -> None:
        """Merges the groups of two images."""
        one, other = self.first(np.array([left, right], np.uint32)).tolist()
        # The smaller number leads, so the groups do not depend on the order of the pairs.
        self._first[max(one, other)] = min(one, other)

    def groups(self) -> list[npt.NDArray[np.uint32]]:
        """Returns the groups of two or more images, sorted by first image; each group is sorted."""
        every = self.joined()
        order = np.argsort(every, kind="stable").astype(np.uint32)
        parts = np.split(order, np.flatnonzero(np.diff(every[order])) + 1)
        return [part for part in parts if len(part) > 1]


class GroupImage(NamedTuple):
    """An image of a group, as in a line of `pairs.csv`."""

    number: int
    split: str  # against:NAME for splits of the second dataset
    key: str
    class_index: int
    wnid: str  # class ID, comparable between two datasets
    kind: str = NEARLY  # relation to `proven_against`; without it, to the nearest of the group
    distance: int = 0  # differing bits of 256
    kept: bool = True
    # Duplicates of the image, as SPLIT:KEY; "" for none.
    proven_against: str = ""  # the kept image; of a kept image that is not the first, `elsewhere`
    elsewhere: str = ""  # an image of a different split or dataset

    @property
    def line(self) -> str:
        """The line of a list that names the image."""
        return with_split(self.split, self.key)


Group = Sequence[GroupImage]
"""Duplicates: a kept image, then the images that are proven against it, sorted by `rank`.

A kept image whose only duplicates are excluded images of other splits is in the group of one of
them.
"""


def rank(member: GroupImage) -> tuple[bool, int, bytes]:
    """Returns the sort key of an image; images with smaller keys are kept first."""
    split = member.split.removeprefix(AGAINST)
    return split == member.split, _FIRST.index(split), member.key.encode()


def contradicts(group: Group) -> bool:
    """Returns whether the images of a group have different labels."""
    return len({member.wnid for member in group}) > 1


def crosses(group: Group) -> bool:
    """Returns whether an image of a group has a duplicate in a different split or dataset."""
    return any(member.elsewhere for member in group)


def counts(groups: Sequence[Group]) -> dict[tuple[str, str, str], list[int]]:
    """Counts pairs of a kept and an excluded image, and those with different labels.

    The keys are the two splits and the kind.
    """
    numbers: dict[tuple[str, str, str], list[int]] = {}
    for first, *others in groups:
        for member in others:
            if member.kept:
                continue
            pair = numbers.setdefault((first.split, member.split, member.kind), [0, 0])
            pair[0] += 1
            pair[1] += member.wnid != first.wnid
    return dict(sorted(numbers.items(), key=lambda item: (item[0][:2], KINDS.index(item[0][2]))))


PAIRS = "pairs.csv"
PAGE = "duplicates.html"
HEADER = (
    "group",
    "split",
    "key",
    "class_index",
    "kind",
    "distance",
    "kept",
    "proven_against",
    "elsewhere",
)


def publish(
    out: LocalStore,
    groups: Sequence[Group],
    excluded: Mapping[str, Sequence[str]],
    page: str | None,
) -> None:
    """Writes pairs.csv, the keys to exclude and the page; removes the files of earlier runs."""
    content = {
        f"exclude-{split}.txt": "".join(f"{key}\n" for key in keys).encode()
        for split, keys in excluded.items()
    }
    if page is not None:
        content[PAGE] = page.encode("utf-8", "replace")
    content[PAIRS] = pairs(groups)
    with out.lock():
        temporaries: list[Path] = [out.temporary() for _ in content]
        with removed_on_failure(*temporaries):
            for path, data in zip(temporaries, content.values(), strict=True):
                with storage_errors("write", path), new_file(path) as file:
                    file.write(data)
            out.remove(PAIRS, PAGE, *(f"exclude-{split}.txt" for split in schema.SPLITS))
            for path, name in zip(temporaries, content, strict=True):
                out.publish(path, name)


def pairs(groups: Sequence[Group]) -> bytes:
    """Returns the content of `pairs.csv` (RFC 4180), with one line for each image of each group."""
    text = io.StringIO()
    lines = csv.writer(text)
    lines.writerow(HEADER)
    for number, group in enumerate(groups, start=1):
        for member in group:
            kept = "yes" if member.kept else "no"
            columns = (member.split, member.key, member.class_index, member.kind, member.distance)
            lines.writerow((number, *columns, kept, member.proven_against, member.elsewhere))
    return text.getvalue().encode()


def excluded(groups: Sequence[Group], split: str) -> list[str]:
    """Returns a sorted list of the images of a split that are not kept."""
    members = itertools.chain.from_iterable(groups)
    return sorted(each.line for each in members if each.split == split and not each.kept)


_KEPT_MEANS = 4096  # 32 MB
_LOOKS_AT_ONCE = 1 << 14
_PROOFS_AT_ONCE = 1 << 8
# Limit of the cost per image. A comparison that finds no duplicate costs 1 with small pictures and
# 10 with images. Without a limit, a malicious dataset could force comparisons of all pairs.
_MOST_COST = 500
_PROOF_COST = 10


class DuplicateSearch:
    """Finds duplicates; with `across`, only duplicates between two datasets."""

    def __init__(self, pictures: Pictures, *, across: bool, workers: int) -> None:
        self._pictures, self._across, self._workers = pictures, across, workers
        self._other = pictures.other
        self._means = functools.lru_cache(_KEPT_MEANS)(
            lambda number: self._read(number, likeness.means)
        )
        self._lock = threading.Lock()
        self.problems: set[str] = set()  # sentences about images damaged after they were hashed
        num = len(pictures)
        self._cost = np.zeros(num, np.int64)
        self.by_bytes = Union(num)
        self.by_pixels = Union(num)
        self.by_sight = Union(num)

    def find(self, tick: Callable[[str], None]) -> None:
        """Finds all duplicates; calls `tick` regularly with the name of the current step."""
        tick("same bytes")
        for run in filter(self._is_wanted, equal_bytes(self._pictures.known.sha256)):
            self._join(run, self.by_bytes, self.by_pixels, self.by_sight)
        tick("same pixels")
        for run in filter(self._is_wanted, self._equal_pixels()):
            self._join(run, self.by_pixels, self.by_sight)
        with futures.ThreadPoolExecutor(self._workers) as pool:
            searches = self._searches()
            for number, search in enumerate(searches, start=1):
                say = functools.partial(tick, f"search {number} of {len(searches)}")
                for pairs in search.candidates(pool, self._workers, say, self._is_open):
                    self._prove(pool, pairs, search.mirror is not None)

    def kind(self, one: int, other: int) -> str:
        """Returns the kind of two duplicates: same bytes, same pixels, or nearly the same."""
        both = np.array([one, other], np.uint32)
        for union, kind in ((self.by_bytes, SAME_BYTES), (self.by_pixels, SAME_PIXELS)):
            if len({*union.first(both).tolist()}) == 1:
                return kind
        return NEARLY

    def distances(self, number: int, others: Numbers) -> npt.NDArray[np.int64]:
        """Returns the smallest Hamming distances between hashes of an image and of others.

        Mirrored hashes are compared too. The distance is 0 if the pixels are equal.
        """
        whole, window = self._pictures.whole, self._pictures.window
        differing = []
        for mine, theirs in ((whole, whole), (whole, window), (window, whole)):
            bits = mine[number] ^ theirs[others]
            differing += [bits, bits ^ likeness.mirror()]
        distances = [np.bitwise_count(bits).sum(axis=1, dtype=np.int64) for bits in differing]
        first = self.by_pixels.first(np.append(others, np.uint32(number)))
        return np.where(first[:-1] == first[-1], 0, np.min(distances, axis=0))

    def nearest(self, number: int, others: Sequence[int]) -> int | None:
        """Returns the nearest of `others` that is proven to be a duplicate of an image, or None.

        Of equal distances, the first of `others` is compared first.
        """
        numbers = np.array(others, np.uint32)
        if self._across:
            numbers = numbers[self._other[numbers] != self._other[number]]
        distance = self.distances(number, numbers)
        order = np.argsort(distance, kind="stable")
        order = order[distance[order] <= WINDOW_RADII.all]
        for failures, other in enumerate(map(int, numbers[order])):
            if failures * _PROOF_COST >= _MOST_COST:
                self._cost[number] = _MOST_COST
                break
            if self.kind(number, other) != NEARLY or self._is_proven(number, other):
                return other
        return None

    def _is_proven(self, one: int, other: int) -> bool:
        if not self._pictures.judged[[one, other]].any():
            return False
        pair = self._oriented(np.array([one], np.uint32), np.array([other], np.uint32))
        return any(self._proven(*pair, mirrored)[0] for mirrored in (False, True))

    def _oriented(self, left: Numbers, right: Numbers) -> Pairs:
        """Orders the images of each pair by content, since a comparison is not quite symmetric."""
        digests = self._pictures.known.sha256.view(np.uint64)[:, 0]
        is_swapped = digests[left] > digests[right]
        return np.where(is_swapped, right, left), np.where(is_swapped, left, right)

    def _is_wanted(self, run: Numbers) -> bool:
        """Returns whether to report a group; `across` requires images of both datasets."""
        return not self._across or len({*self._other[run].tolist()}) == 2

    def _join(self, run: Numbers, *unions: Union) -> None:
        for number in run[1:].tolist():
            for union in unions:
                union.join(int(run[0]), number)

    def _equal_pixels(self) -> Iterator[Numbers]:
        """Yields groups of images with different bytes and equal pixels."""
        wanted = self._first_of(self.by_bytes) & self._pictures.sound
        numbers = np.flatnonzero(wanted).astype(np.uint32)
        for run in _runs(self._pictures.means[numbers, None]):
            same = numbers[run]
            if self._is_wanted(same):
                yield from _split(same, [self._pixels(number) for number in same.tolist()])

    def _first_of(self, union: Union) -> Flags:
        """Marks the first image of each known group; with `across`, marks all images."""
        first = union.joined()
        return np.asarray((first == np.arange(len(first))) | self._across)

    def _pixels(self, number: int) -> object:
        try:
            return self._read(number, decoding.digest)
        except DataDamagedError as error:
            self.problems.add(str(error))
            return number  # a unique value

    def _read(self, number: int, look: Callable[[bytes], Any]) -> Any:
        """Returns the result of `look` for an image; raises DataDamagedError if decoding fails."""
        data = self._pictures.read(number)
        try:
            return look(data)
        except BadImageError as error:
            piece, at = self._pictures.place(number)
            raise DataDamagedError(f"{piece.where}: record {at}: {error}") from error

    def _searches(self) -> list[Search]:
        whole, window = self._pictures.whole, self._pictures.window
        wanted = self._pictures.may_be_judged & self._first_of(self.by_pixels)
        ours = theirs = np.flatnonzero(wanted & ~self._other).astype(np.uint32)
        left = right = Side(ours, whole)
        if self._across:
            theirs = np.flatnonzero(wanted & self._other).astype(np.uint32)
            right = Side(theirs, whole)
        joins = [(left, right, WHOLE_RADII), (left, Side(theirs, window), WINDOW_RADII)]
        if self._across:
            joins.append((Side(ours, window), right, WINDOW_RADII))
        searches = []
        for join in joins:
            searches += [Search(*join, None), Search(*join, likeness.mirror())]
        return searches

    def _prove(self, pool: futures.Executor, pairs: Pairs, mirrored: bool) -> None:
        for looks in _blocks(self._oriented(*pairs), _LOOKS_AT_ONCE):
            likely = self._tried(pool, looks, mirrored, self._likely, 1)
            for block in _blocks(likely, _PROOFS_AT_ONCE):
                proven = self._tried(pool, block, mirrored, self._proven, _PROOF_COST)
                for pair in zip(*(side.tolist() for side in proven), strict=True):
                    self.by_sight.join(*pair)

    def _is_open(self, left: Numbers, right: Numbers) -> Flags:
        judged = self._pictures.judged
        is_open = self.by_sight.first(left) != self.by_sight.first(right)
        is_open &= judged[left] | judged[right]
        is_open &= np.maximum(self._cost[left], self._cost[right]) < _MOST_COST
        return np.asarray(is_open)

    @property
    def crowded(self) -> Flags:
        """Whether each image has reached the cost limit and is no longer compared."""
        return self._cost >= _MOST_COST

    def _tried(
        self,
        pool: futures.Executor,
        pairs: Pairs,
        mirrored: bool,
        attempt: Callable[[Numbers, Numbers, bool], Flags],
        cost: int,
    ) -> Pairs:
        """Compares open pairs; returns those that match, and adds `cost` to the others' images."""
        is_open = self._is_open(*pairs)
        parts = np.array_split(np.flatnonzero(is_open), self._workers)
        jobs = [pool.submit(attempt, pairs[0][part], pairs[1][part], mirrored) for part in parts]
        succeeded = np.zeros(len(is_open), bool)
        succeeded[is_open] = np.concatenate([job.result() for job in jobs])
        for side in pairs:
            np.add.at(self._cost, side[is_open & ~succeeded], cost)
        return pairs[0][succeeded], pairs[1][succeeded]

    def _likely(self, left: Numbers, right: Numbers, mirrored: bool) -> Flags:
        with self._lock:
            small = self._pictures.small(left), self._pictures.small(right)
        return search.likely(*small, mirrored)

    def _proven(self, left: Numbers, right: Numbers, mirrored: bool) -> Flags:
        known = self._pictures.known
        proven = np.zeros(len(left), bool)
        for number, pair in enumerate(zip(left.tolist(), right.tolist(), strict=True)):
            least = int(min(known.width[[*pair]].min(), known.height[[*pair]].min()))
            try:
                means = self._means(pair[0]), self._means(pair[1])
            except DataDamagedError as error:
                with self._lock:
                    self.problems.add(str(error))
                continue
            proven[number] = search.proven(*means, mirrored, least)
        return proven


def equal_bytes(digests: npt.NDArray[np.uint8]) -> Iterator[Numbers]:
    """Yields groups of images with equal digests; `digests` is [n, 32]."""
    words = digests.view(np.uint64)
    for run in _runs(words[:, :1]):
        # Forged digests can have equal first words and still differ.
        yield from (run[same] for same in _runs(words[run]))


def _runs(values: npt.NDArray[np.uint64]) -> Iterator[Numbers]:
    """Yields the positions of each row that occurs more than once in `values` [n, words]."""
    order = np.lexsort(values.T)
    same = (values[order[1:]] == values[order[:-1]]).all(axis=1)
    edges = np.flatnonzero(np.diff(np.concatenate([[0], same.view(np.int8), [0]])))
    for begin, end in edges.reshape(-1, 2).tolist():
        yield order[begin : end + 1].astype(np.uint32)


def _blocks(pairs: Pairs, size: int) -> Iterator[Pairs]:
    for start in range(0, len(pairs[0]), size):
        yield pairs[0][start : start + size], pairs[1][start : start + size]


def _split(numbers: Numbers, values: list[object]) -> Iterator[Numbers]:
    groups: dict[object, list[int]] = {}
    for number, value in zip(numbers.tolist(), values, strict=True):
        groups.setdefault(value, []).append(number)
    yield from (np.array(group, np.uint32) for group in groups.values() if len(group) > 1)
