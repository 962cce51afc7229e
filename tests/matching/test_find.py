"""Rows propose duplicates, but only the bytes of an image decide."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from imagenet_prep.dataset.samples import Sample
from imagenet_prep.matching import search
from imagenet_prep.matching.find import DuplicateSearch, equal_bytes
from imagenet_prep.matching.pictures import Pictures, PieceColumns
from tests.kit.bounds import limited_memory
from tests.kit.codec import mutations
from tests.kit.hostile import images
from tests.kit.limits import Limits


@dataclass(frozen=True)
class Piece:
    """Images in memory."""

    files: list[bytes]
    split: str = "train"
    other: bool = False
    where: str = "set/train-00000-of-00001"

    def samples(self) -> Iterator[Sample]:
        return iter(())

    def read(self, number: int) -> bytes:
        return self.files[number]


def planted(files: list[bytes], folder: Path, strong: Sequence[int] = ()) -> Pictures:
    """Returns images with rows that call all of them sound, with equal means.

    `strong` has the number of strong frequencies of each image; by default, there are enough.
    """
    num = len(files)
    rows = np.zeros(num, search.ROW)
    rows["means"] = 12345
    rows["sound"] = 1
    rows["strong"] = strong or 256
    rows["rough"] = 4096
    rows.tofile(folder / "rows")
    sides = np.full(num, 64, np.uint32)
    digests = np.random.default_rng(0).integers(0, 256, (num, 32), np.uint8)
    table = PieceColumns(np.zeros(num, np.uint32), sides, sides, digests)
    return Pictures([Piece(files)], [table], [folder / "rows"], folder)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (images.png_that_claims(13_000, 13_000), "too_many_pixels"),
        (images.gif_that_claims(), "too_many_pixels"),
        (b"garbage", "unknown_format"),
        (images.eps(), "unknown_format"),
    ],
    ids=["png", "gif", "garbage", "eps"],
)
def test_undecodable_images_with_planted_rows_are_named(
    data: bytes, reason: str, tmp_path: Path
) -> None:
    found = DuplicateSearch(planted([data, data + b"x"], tmp_path), across=False, workers=1)

    with limited_memory(96 << 20):
        found.find(lambda _: None)

    where = "set/train-00000-of-00001: record"
    assert len(found.problems) == 2
    assert all(f"{where} {n}: {reason}" in "".join(found.problems) for n in (0, 1))
    assert not found.by_sight.joined().any() or found.by_sight.joined().tolist() == [0, 1]


def test_only_equal_digests_are_equal_bytes() -> None:
    """Digests are forged here, so that many begin or end with the same words."""
    rng = np.random.default_rng(1)
    words = rng.integers(0, 2, (60, 4), np.uint64)
    expected: dict[bytes, list[int]] = {}
    for number, row in enumerate(words):
        expected.setdefault(row.tobytes(), []).append(number)

    groups = [group.tolist() for group in equal_bytes(words.view(np.uint8))]

    assert sorted(map(sorted, groups)) == sorted(g for g in expected.values() if len(g) > 1)


def test_nearest_compares_a_bounded_number_of_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: Limits
) -> None:
    limits(proof_budget=3, proof_cost=1)
    found = DuplicateSearch(planted([b"picture"] * 10, tmp_path), across=False, workers=1)
    compared = []
    monkeypatch.setattr(found, "_is_proven", lambda *pair: compared.append(pair))

    assert found.nearest(0, range(1, 10)) is None
    assert len(compared) == 3
    assert found.crowded.tolist() == [True] + [False] * 9


ENOUGH = search.LEAST_STRONG
LESS = int(search.LESS * search.LEAST_STRONG)


def test_re_encoded_image_needs_less_detail(tmp_path: Path) -> None:
    strong = [ENOUGH, ENOUGH - 1, LESS, LESS - 1]
    pictures = planted([b""] * 4, tmp_path, strong)

    assert pictures.judged.tolist() == [True, False, False, False]
    assert pictures.may_be_judged.tolist() == [True, True, True, False]


@pytest.mark.parametrize(
    ("strong", "nearest"),
    [((ENOUGH, LESS), 1), ((LESS, ENOUGH), 1), ((ENOUGH, ENOUGH), 1), ((LESS, LESS), None)],
)
def test_one_image_of_pair_has_enough_detail(
    tmp_path: Path, strong: tuple[int, int], nearest: int | None
) -> None:
    data = mutations.sources()["420"]
    found = DuplicateSearch(planted([data, data], tmp_path, strong), across=False, workers=1)

    assert found.nearest(0, [1]) == nearest


def test_planted_rows_of_different_images_are_not_joined(tmp_path: Path) -> None:
    sources = mutations.sources()
    files = [sources["420"], sources["444"], sources["420"] + b"behind"]
    found = DuplicateSearch(planted(files, tmp_path), across=False, workers=1)

    found.find(lambda _: None)

    assert not found.problems
    assert found.kind(0, 2) == "same pixels"
    assert found.by_pixels.joined().tolist() == [0, 1, 0]


def across(files: list[bytes], folder: Path) -> DuplicateSearch:
    """Returns a search of two datasets; only the last image belongs to the second one."""
    known = planted(files, folder).known
    for number, data in enumerate(files):
        known.sha256[number] = np.frombuffer(hashlib.sha256(data).digest(), np.uint8)
    table = PieceColumns._make(np.split(column, [-1])[0] for column in known)
    other_table = PieceColumns._make(np.split(column, [-1])[1] for column in known)
    rows = np.fromfile(folder / "rows", search.ROW)
    rows[:-1].tofile(folder / "ours")
    rows[-1:].tofile(folder / "theirs")
    pieces = [Piece(files[:-1]), Piece(files[-1:], other=True)]
    paths = [folder / "ours", folder / "theirs"]
    pictures = Pictures(pieces, [table, other_table], paths, folder)
    return DuplicateSearch(pictures, across=True, workers=1)


def test_across_datasets_duplicates_are_in_different_datasets(tmp_path: Path) -> None:
    data = mutations.sources()["420"]
    found = across([data, data + b"x", data + b"y"], tmp_path)
    found.find(lambda _: None)

    assert found.nearest(0, [1]) is None
    assert found.nearest(0, [1, 2]) == 2
    assert found.nearest(2, [0, 1]) == 0


def test_image_with_an_equal_copy_has_other_duplicates(tmp_path: Path) -> None:
    data = mutations.sources()["420"]
    found = across([data, data + b"x", data], tmp_path)
    found.find(lambda _: None)

    assert found.kind(0, 2) == "same bytes"
    assert found.kind(1, 2) == "same pixels"
