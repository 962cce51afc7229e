"""A small run of the benchmark of square crops, so that it keeps working. No time is asserted."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import square


@pytest.mark.long
def test_all_rows_are_measured(tmp_path: Path) -> None:
    rates = square.run(tmp_path, 80, 64, 2)

    assert list(rates) == [square.OURS, square.PILLOW, square.BILINEAR]
    assert min(map(min, rates.values())) > 0
    assert square.render(rates).count("\n") == len(rates) + 1
