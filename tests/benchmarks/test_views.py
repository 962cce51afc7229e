"""A small run of the benchmark of options of readers. No time is asserted."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import views


@pytest.mark.long
def test_all_rows_are_measured(tmp_path: Path) -> None:
    rates = views.run(tmp_path, 80, 2)

    assert list(rates) == [*views.ROWS]
    assert min(map(min, rates.values())) > 0
    assert views.render(rates).count("\n") == len(rates) + 1
