"""The benchmark of `export`, at a size too small to measure speed."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import export


@pytest.mark.long
def test_all_export_formats_are_timed(tmp_path: Path) -> None:
    seconds = export.run(100, 4_000, 1, tmp_path)

    assert list(seconds) == ["copy", "tfds", "files", "folder", "webdataset", "parquet"]
    assert all(len(times) == 1 for times in seconds.values())
    assert len(export.render(seconds, 100, 4_000).splitlines()) == 8
