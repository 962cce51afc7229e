"""resize and adopt report that columns are not copied."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.kit import command
from tests.kit.columns import make_column
from tests.kit.dataset import Reference
from tests.kit.messages import says


def test_columns_are_not_copied_and_reported(reference: Reference, tmp_path: Path) -> None:
    root = Path(shutil.copytree(reference.out, tmp_path / "set"))
    make_column(root)
    flags = ("--input_dir", root, "--output_dir", tmp_path / "small", "--short_side", "24")
    resized = command.run("resize", *flags)
    assert resized.code == 0, resized
    assert says("columns-not-copied-since-belong", root).search(resized.err)
    assert not (tmp_path / "small" / "columns").exists()
    adopted = command.run("adopt", root, "--out", tmp_path / "adopted", "--dry-run")
    assert says("columns-not-copied-since-belong", root).search(adopted.err)
