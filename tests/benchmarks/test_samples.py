"""A small run of the benchmark of tables, so that it keeps working. No time is asserted."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import samples
from imagenet_prep import diff


@pytest.mark.long
def test_questions_about_tables_of_samples_are_timed(tmp_path: Path) -> None:
    results = samples.run(300, 4, tmp_path)

    assert [result.name for result in results] == list(samples.QUESTIONS)
    assert samples.render(results).count("\n") >= len(results)
    found = diff.diff(diff.DiffConfig(str(tmp_path / "a"), str(tmp_path / "layout")))
    assert (found["only_in_b"], found["other_bytes"], found["equal"]) == (1, 0, False)
    found = diff.diff(diff.DiffConfig(str(tmp_path / "a"), str(tmp_path / "look")))
    assert found["other_bytes"] == 300
