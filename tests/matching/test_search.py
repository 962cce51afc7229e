"""The search finds exactly the pairs that a comparison of all hashes finds."""

from __future__ import annotations

from concurrent import futures
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagenet_prep.codec import likeness
from imagenet_prep.matching import search
from imagenet_prep.matching.search import Radii, Search, Side, rows_of
from tests.kit.lengths import examples
from tests.kit.limits import Limits

MIRROR = likeness.mirror()
KINDS = [n for n in (search.PLAIN, search.AVX2, search.AVX512) if n <= search.best()]


def hashes(rng: np.random.Generator, num: int, near: int) -> np.ndarray:
    """Returns hashes, many of which differ in few bits, also mirrored."""
    found = rng.integers(0, 2**64, (num, 4), dtype=np.uint64)
    for at in range(1, num, 2):
        other = found[rng.integers(0, at)].copy()
        if rng.random() < 0.3:
            other ^= MIRROR
        for _ in range(rng.integers(0, near)):
            other[rng.integers(0, 4)] ^= np.uint64(1) << np.uint64(rng.integers(0, 64))
        found[at] = other
    return found


def brute(left: Side, right: Side, radii: Radii, mirror: np.ndarray | None) -> set[tuple[int, int]]:
    found = set()
    turned = np.uint64(0) if mirror is None else mirror
    for one in left.ids.tolist():
        counts = np.bitwise_count(left.bits[one] ^ right.bits[right.ids] ^ turned)
        near = (counts[:, 0] <= radii.key) & (counts.sum(axis=1) <= radii.all)
        found |= {(one, other) for other in right.ids[near].tolist() if one != other}
    if left is right:
        found = {(min(pair), max(pair)) for pair in found}
    return found


def joined(job: Search, workers: int) -> list[tuple[int, int]]:
    found = []
    with futures.ThreadPoolExecutor(workers) as pool:
        for left, right in job.candidates(pool, workers):
            pairs = zip(left.tolist(), right.tolist(), strict=True)
            found += [pair if job.left is not job.right else tuple(sorted(pair)) for pair in pairs]
    return found


@pytest.mark.parametrize("simd", KINDS)
@examples(12)
@given(seed=st.integers(0, 2**32), num=st.integers(0, 120), mirrored=st.booleans())
def test_the_search_finds_exactly_all_close_pairs(
    simd: int, seed: int, num: int, mirrored: bool
) -> None:
    rng = np.random.default_rng(seed)
    bits = hashes(rng, num, 30)
    mirror = MIRROR if mirrored else None
    ids = np.flatnonzero(rng.random(num) < 0.9).astype(np.uint32)
    whole = Side(ids, bits)
    window = Side(ids, hashes(rng, num, 30))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "best", lambda: simd)
        for left, right in ((whole, whole), (whole, window), (window, whole)):
            for radii in (search.WHOLE_RADII, search.WINDOW_RADII, Radii(15, 40), Radii(3, 3)):
                found = joined(Search(left, right, radii, mirror), workers=2)
                assert len(found) == len(set(found))
                assert set(found) == brute(left, right, radii, mirror)


@pytest.mark.parametrize("simd", KINDS)
def test_pairs_beyond_the_buffer_are_not_lost(
    simd: int, monkeypatch: pytest.MonkeyPatch, limits: Limits
) -> None:
    """A thousand equal hashes make half a million pairs; the buffer has room for a thousand."""
    limits(search_room=8)
    monkeypatch.setattr(search, "best", lambda: simd)
    num = 1000
    bits = np.full((num, 4), 0x0123456789ABCDEF, np.uint64)
    side = Side(np.arange(num, dtype=np.uint32), bits)

    found = joined(Search(side, side, Radii(7, 50), None), workers=3)

    assert len(found) == len(set(found)) == num * (num - 1) // 2


def test_rows_read_from_files_equal_the_arrays(tmp_path: Path) -> None:
    array = np.arange(400, dtype=np.uint64).reshape(100, 4)
    array.tofile(tmp_path / "bits")
    stored = np.memmap(tmp_path / "bits", np.uint64, "r", shape=array.shape)
    ids = np.array([99, 0, 7, 7], np.uint32)

    assert rows_of(stored, ids).tolist() == array[ids].tolist()
    assert rows_of(array, ids).tolist() == array[ids].tolist()
    assert rows_of(stored, ids[:0]).shape == (0, 4)
