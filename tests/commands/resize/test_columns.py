"""resize and adopt say that columns are left behind."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.kit import command
from tests.kit.columns import make_column
from tests.kit.dataset import Reference


def test_columns_are_left_behind_with_a_word(reference: Reference, tmp_path: Path) -> None:
    root = Path(shutil.copytree(reference.out, tmp_path / "set"))
    make_column(root)
    flags = ("--input_dir", root, "--output_dir", tmp_path / "small", "--short_side", "24")
    resized = command.run("resize", *flags)
    assert resized.code == 0, resized
    assert f"{root}: columns are not copied" in resized.err
    assert not (tmp_path / "small" / "columns").exists()
    adopted = command.run("adopt", root, "--out", tmp_path / "adopted", "--dry-run")
    assert f"{root}: columns are not copied" in adopted.err
