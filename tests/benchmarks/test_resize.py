"""A small run of the resize benchmark, so that it keeps working. No time is asserted."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from benchmarks import resize


@pytest.mark.tf
@pytest.mark.long
def test_every_row_of_resize_makes_all_images(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if importlib.util.find_spec("tensorflow") is None:
        pytest.skip("TensorFlow is absent")
    monkeypatch.setattr(resize, "NUM_SHARDS", 3)
    figures = tmp_path / "figures.json"
    flags = ["--images", "24", "--size", "96", "72", "--short-side", "48", "--rounds", "1"]
    resize.main([*flags, "--scratch", str(tmp_path), "--json", str(figures)])
    printed = capsys.readouterr().out
    raw = json.loads(figures.read_text())["raw"]

    tutorial = {resize.TUTORIAL, resize.TUTORIAL_2}
    assert set(raw) == {resize.FLOOR, resize.OURS, resize.OURS_1, *tutorial}
    for name, rounds in raw.items():
        assert f"| {name} " in printed
        assert [row["images"] for row in rounds] == [24]
        assert all(row["clock_s"] > 0 for row in rounds)
        assert (rounds[0]["bytes_out"] == 0) == (name == resize.FLOOR)
