"""The search joins each kind of duplicate, and compares each image a bounded number of times."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from imagenet_prep.codec import likeness
from imagenet_prep.dataset.samples import Sample
from imagenet_prep.matching import search
from imagenet_prep.matching.find import NEARLY, SAME_BYTES, SAME_PIXELS, DuplicateSearch
from imagenet_prep.matching.pictures import Pictures, PieceColumns
from tests.kit.codec import jpegs, mutations
from tests.kit.limits import Limits

PIXELS = mutations.photograph()
ORIGINAL = jpegs.encode(PIXELS, 90, "420")
RE_ENCODED = jpegs.encode(PIXELS, 80, "444")
MIRRORED = jpegs.encode(np.ascontiguousarray(PIXELS[:, ::-1]), 80, "444")
UNLIKE = jpegs.encode(np.ascontiguousarray(PIXELS[::-1]), 90, "420")
ENOUGH = search.LEAST_STRONG
LESS = int(search.LESS * search.LEAST_STRONG)


@dataclass(frozen=True)
class Piece:
    """Images in memory."""

    files: list[bytes]
    other: bool
    split: str = "train"
    where: str = "set/train-00000-of-00001"

    def samples(self) -> Iterator[Sample]:
        return iter(())

    def read(self, number: int) -> bytes:
        return self.files[number]


def rows_of(files: Sequence[bytes]) -> np.ndarray:
    """Returns the true rows of these images."""
    return np.concatenate([np.frombuffer(search.of(data), search.ROW) for data in files])


def blank_rows(num: int) -> np.ndarray:
    """Returns rows of sound images with enough detail and equal hashes."""
    rows = np.zeros(num, search.ROW)
    rows["sound"] = 1
    rows["strong"] = 256
    rows["rough"] = 4096
    rows["means"] = np.arange(num)
    return rows


def searched(
    folder: Path,
    files: Sequence[bytes],
    theirs: Sequence[bytes] = (),
    rows: np.ndarray | None = None,
    sides: Sequence[tuple[int, int]] = (),
) -> DuplicateSearch:
    """Returns a search of one dataset, or of two if there are `theirs`."""
    every = [*files, *theirs]
    rows = rows_of(every) if rows is None else rows
    digests = [np.frombuffer(hashlib.sha256(data).digest(), np.uint8) for data in every]
    pieces: list[Any] = []
    tables = []
    paths = []
    start = 0
    for number, part in enumerate((files, theirs)):
        chosen = slice(start, start + len(part))
        start += len(part)
        if not part:
            continue
        width, height = np.array([*sides][chosen] or [(160, 120)] * len(part), np.int64).T
        sha256 = np.stack(digests[chosen])
        tables.append(PieceColumns(np.zeros(len(part), np.int64), width, height, sha256))
        pieces.append(Piece([*part], other=number == 1))
        paths.append(folder / f"rows-{number}")
        rows[chosen].tofile(paths[-1])
    pictures = Pictures(pieces, tables, paths, folder)
    return DuplicateSearch(pictures, across=bool(theirs), workers=1)


def groups(found: DuplicateSearch) -> list[list[int]]:
    found.find(lambda _: None)
    assert not found.problems
    return [group.tolist() for group in found.by_sight.groups()]


@pytest.mark.parametrize(
    ("files", "theirs", "expected"),
    [
        ([ORIGINAL, ORIGINAL], [], [[0, 1]]),
        ([ORIGINAL, ORIGINAL + b"behind"], [], [[0, 1]]),
        ([ORIGINAL, RE_ENCODED], [], [[0, 1]]),
        ([ORIGINAL, MIRRORED], [], [[0, 1]]),
        ([MIRRORED, UNLIKE, RE_ENCODED, ORIGINAL, ORIGINAL], [], [[0, 2, 3, 4]]),
        ([ORIGINAL], [ORIGINAL], [[0, 1]]),
        ([ORIGINAL], [ORIGINAL + b"behind"], [[0, 1]]),
        ([ORIGINAL], [RE_ENCODED], [[0, 1]]),
        ([ORIGINAL], [MIRRORED], [[0, 1]]),
        # Duplicates within one of two datasets are not searched.
        ([ORIGINAL, ORIGINAL], [UNLIKE], []),
        ([ORIGINAL, ORIGINAL + b"behind"], [UNLIKE], []),
        ([ORIGINAL, RE_ENCODED], [UNLIKE], []),
        ([UNLIKE], [ORIGINAL, RE_ENCODED], []),
    ],
)
def test_every_kind_of_duplicate_is_joined(
    tmp_path: Path, files: list[bytes], theirs: list[bytes], expected: list[list[int]]
) -> None:
    assert groups(searched(tmp_path, files, theirs)) == expected


def test_equal_rows_of_datasets_are_no_pixels(tmp_path: Path) -> None:
    """A different image of the second dataset has the same digest of its means."""
    files = [ORIGINAL, ORIGINAL + b"behind", UNLIKE]
    rows = rows_of(files)
    rows["means"] = 7
    found = searched(tmp_path, files[:2], files[2:], rows)

    assert groups(found) == []
    assert found.by_pixels.groups() == []


def hashes(seed: int) -> np.ndarray:
    """Returns a random hash, which is far from all others."""
    return np.random.default_rng(seed).integers(0, 1 << 63, 4, np.uint64) * np.uint64(2)


def related(left: str, right: str, flips: Any) -> np.ndarray:
    """Returns blank rows of which only these two hashes are near: they differ in `flips`."""
    rows = blank_rows(2)
    for number, (of, name) in enumerate(
        (of, name) for of in (0, 1) for name in ("whole", "window")
    ):
        rows[name][of] = hashes(number)
    rows[right][1] = rows[left][0] ^ flips
    return rows


RELATIONS = [("whole", "whole"), ("whole", "window"), ("window", "whole")]


@pytest.mark.parametrize(("left", "right"), RELATIONS)
@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize("across", [False, True])
def test_each_pair_of_hashes_is_searched(
    tmp_path: Path, left: str, right: str, mirrored: bool, across: bool
) -> None:
    files = [ORIGINAL, MIRRORED if mirrored else RE_ENCODED]
    near = related(left, right, likeness.mirror() if mirrored else np.uint64(0))
    rows = rows_of(files)
    for name in ("whole", "window"):
        rows[name] = near[name]
    own = 1 if across else 2

    assert groups(searched(tmp_path, files[:own], files[own:], rows)) == [[0, 1]]


def flips_of(num: int) -> np.ndarray:
    """Returns a mask with `num` bits."""
    bits = np.zeros(256, np.uint8)
    bits[:num] = 1
    return np.packbits(bits, bitorder="little").view("<u8")


@pytest.mark.parametrize(("left", "right"), RELATIONS)
@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize("bits", [0, 51, 75, 76])
def test_only_near_images_are_compared(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    left: str,
    right: str,
    mirrored: bool,
    bits: int,
) -> None:
    flips = flips_of(bits)
    if mirrored:
        flips = flips ^ likeness.mirror()
    found = searched(tmp_path, [b"a", b"b"], rows=related(left, right, flips))
    compared: list[Any] = []
    monkeypatch.setattr(found, "_is_proven", lambda *pair: compared.append(pair))

    assert found.distances(0, np.array([1], np.uint32)).tolist() == [bits]
    found.nearest(0, [1])
    assert compared == ([(0, 1)] if bits <= 75 else [])


def test_equal_pixels_have_no_distance(tmp_path: Path) -> None:
    found = searched(tmp_path, [b"a", b"b", b"c"], rows=related_far(3))
    found.by_pixels.join(0, 1)

    distances = found.distances(0, np.array([1, 2], np.uint32))
    assert distances[0] == 0
    assert distances[1] > 75


def related_far(num: int) -> np.ndarray:
    """Returns blank rows of which all hashes are far from each other."""
    rows = blank_rows(num)
    for number in range(num):
        rows["whole"][number] = hashes(2 * number)
        rows["window"][number] = hashes(2 * number + 1)
    return rows


@pytest.mark.parametrize("kind", [SAME_BYTES, SAME_PIXELS])
def test_flat_images_may_be_equal(tmp_path: Path, kind: str) -> None:
    """Images without detail are not compared, but their bytes or pixels are known to be equal."""
    rows = blank_rows(2)
    rows["strong"] = 0
    found = searched(tmp_path, [b"a", b"b"], rows=rows)
    assert found.nearest(0, [1]) is None
    found.by_pixels.join(0, 1)
    if kind == SAME_BYTES:
        found.by_bytes.join(0, 1)

    assert found.kind(0, 1) == kind
    assert found.nearest(0, [1]) == 1


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_mirrored_image_is_nearest(tmp_path: Path, order: tuple[int, int]) -> None:
    one, other = order
    found = searched(tmp_path, [ORIGINAL, MIRRORED])
    assert found.nearest(one, [other]) == other
    assert found.kind(one, other) == NEARLY


def test_pair_is_compared_in_one_direction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A comparison is not quite symmetric, and the numbers of images depend on the shards."""
    found = searched(tmp_path, [ORIGINAL, UNLIKE], rows=blank_rows(2))
    compared = set()

    def proven(left: np.ndarray, right: np.ndarray, mirrored: bool) -> np.ndarray:
        compared.add((left.tolist()[0], right.tolist()[0], mirrored))
        return np.array([False])

    monkeypatch.setattr(found, "_proven", proven)
    assert found.nearest(0, [1]) is None
    assert found.nearest(1, [0]) is None
    assert len(compared) == 2
    assert {mirrored for *_, mirrored in compared} == {False, True}


@pytest.mark.parametrize(
    ("sides", "least"),
    [
        ([(100, 80), (90, 70)], 70),
        ([(100, 80), (50, 70)], 50),
        ([(60, 80), (90, 70)], 60),
        ([(100, 55), (90, 70)], 55),
        ([(100, 80), (90, 40)], 40),
    ],
)
def test_shortest_side_decides_on_details(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sides: list[tuple[int, int]],
    least: int,
) -> None:
    found = searched(tmp_path, [ORIGINAL, RE_ENCODED], sides=sides)
    asked: list[int] = []

    def proven(*words: Any) -> bool:
        asked.append(words[-1])
        return True

    monkeypatch.setattr(search, "proven", proven)
    assert found.nearest(0, [1]) == 1
    assert asked == [least]


def test_unsound_rows_are_not_decoded(tmp_path: Path) -> None:
    """Images that could not be hashed have empty rows, which are all equal."""
    rows = np.zeros(2, search.ROW)
    assert groups(searched(tmp_path, [b"garbage", b"other garbage"], rows=rows)) == []


def test_images_damaged_since_are_not_equal(tmp_path: Path) -> None:
    rows = blank_rows(2)
    rows["means"] = 7
    found = searched(tmp_path, [b"garbage", b"other garbage"], rows=rows)
    found.find(lambda _: None)

    assert len(found.problems) == 2
    assert found.kind(0, 1) == NEARLY


@pytest.mark.parametrize(
    ("strong", "expected"),
    [
        ((ENOUGH, LESS), [[0, 1]]),
        ((LESS, ENOUGH), [[0, 1]]),
        ((ENOUGH, LESS - 1), []),
        ((LESS, LESS), []),
    ],
)
def test_search_needs_detail_in_one_image(
    tmp_path: Path, strong: tuple[int, int], expected: list[list[int]]
) -> None:
    files = [ORIGINAL, RE_ENCODED]
    rows = rows_of(files)
    rows["strong"] = strong
    assert groups(searched(tmp_path, files, rows=rows)) == expected


def test_only_failed_comparisons_have_a_cost(tmp_path: Path, limits: Limits) -> None:
    limits(proof_budget=10, proof_cost=4)
    files = [ORIGINAL, RE_ENCODED, UNLIKE]
    rows = rows_of(files)
    for name in ("whole", "window", "small"):
        rows[name][2] = rows[name][0]
    found = searched(tmp_path, files, rows=rows)

    assert groups(found) == [[0, 1]]
    assert found._cost[2] >= 4
    alone = searched(tmp_path, files[:2], rows=rows[:2])
    assert groups(alone) == [[0, 1]]
    assert not alone._cost.any()


@pytest.mark.parametrize(
    ("cost", "expected"),
    [([0, 0], True), ([9, 9], True), ([10, 0], False), ([0, 10], False), ([11, 11], False)],
)
def test_crowded_image_closes_its_pairs(
    tmp_path: Path, limits: Limits, cost: list[int], expected: bool
) -> None:
    limits(proof_budget=10)
    found = searched(tmp_path, [b"a", b"b"], rows=blank_rows(2))
    found._cost[:] = cost
    zero, one = np.array([[0], [1]], np.uint32)

    assert found._is_open(zero, one).tolist() == [expected]
    assert found.crowded.tolist() == [number >= 10 for number in cost]
