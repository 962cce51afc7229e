"""The training benchmark: what its shares mean, and that it runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import train


def test_shares_are_what_is_lost_to_waiting() -> None:
    speeds = {train.SYNTHETIC: 100.0, train.REAL: 80.0, train.ONE_CORE: 60.0, train.TWO_RANKS: 90.0}

    assert train.shares(speeds) == pytest.approx({"input": 0.2, "communication": 0.25})
    assert train.shares({train.SYNTHETIC: 9.0, train.REAL: 10.0}) == {"input": 0.0}


@pytest.mark.tf
@pytest.mark.slow
def test_a_tiny_benchmark_runs(tf: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    small = ("--batch-size", "4", "--image-size", "16", "--steps", "8", "--images", "40")
    train.main([*small, "--rounds", "1", "--one-rank", "--scratch", str(tmp_path)])

    printed = capfd.readouterr().out
    result = json.loads(printed[printed.index('{\n "model"') :])
    assert all(speed > 0 for speed in result["images_per_s"].values())
    assert 0 <= result["shares"]["input"] < 1
