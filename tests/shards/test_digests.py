"""SHA-256 of many pieces: equal results if the compiled code is missing."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from imagenet_prep.core import imports
from imagenet_prep.shards import writer
from tests.kit.installed import Installed


def expected(pieces: list[bytes]) -> list[str]:
    return [hashlib.sha256(piece).hexdigest() for piece in pieces]


# Around the ends of blocks, with and without room for the padding.
_sizes = st.sampled_from([0, 1, 54, 55, 56, 63, 64, 65, 119, 120, 127, 128, 129, 5000])


@given(st.lists(_sizes | st.integers(0, 3000), max_size=7), st.randoms(use_true_random=False))
@example([], None)
def test_each_piece_has_the_digest_of_hashlib(sizes: list[int], chance: object) -> None:
    pieces = [chance.randbytes(size) for size in sizes]  # type: ignore[attr-defined]
    assert writer.sha256(pieces) == expected(pieces)


def test_digests_are_the_same_if_library_is_missing(tmp_path: Path, installed: Installed) -> None:
    installed.library("shards.writer")
    assert writer.sha256([b"a", b"", b"c" * 999]) == expected([b"a", b"", b"c" * 999])


def test_digests_are_the_same_if_simd_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Older:
        def sha256(self, *_: object) -> int:
            return 0

    monkeypatch.setattr(imports, "find", lambda *_, **__: Older())
    assert writer.sha256([b"a", b"b"]) == expected([b"a", b"b"])
