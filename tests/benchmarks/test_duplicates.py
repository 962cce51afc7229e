"""Small runs of the benchmark of duplicates, so that it keeps working. No time is asserted."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import duplicate_peers, duplicates
from tests.kit.codec import corpus

pytestmark = pytest.mark.long


@pytest.fixture
def photographs(tmp_path: Path) -> Path:
    for number, data in enumerate(corpus.photographs(4)):
        (tmp_path / f"{number}.jpg").write_bytes(data)
    return tmp_path


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    duplicates.main(words)
    return capsys.readouterr().out


def test_planted_variants_are_found(photographs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--photographs", str(photographs), "--half", "both", "--workers", "1")

    found = said(capsys, "recall", *flags)

    assert "4 photographs of both; 0.00% are not judged" in found
    for kind in ("re-encoded, q50", "resized, 0.5", "grey", "CMYK", "mirrored"):
        assert f"| {kind} | 1.0000 | 0 of 4 missed |" in found


def test_peers_find_planted_variants_too(
    photographs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    duplicate_peers.compare(sorted(photographs.iterdir()), None, workers=1)

    row = capsys.readouterr().out.splitlines()[-1].split("|")
    assert row[1].strip() == "imagenet-prep"
    assert float(row[-3]) == 1  # no false pair
    assert int(row[-2]) >= 4


def test_joins_and_tables_find_all_planted_pairs(capsys: pytest.CaptureFixture[str]) -> None:
    assert "candidates; 0 of " in said(capsys, "search", "--num", "50000")
    assert "all planted and no other: True" in said(capsys, "exact", "--num", "20000")
