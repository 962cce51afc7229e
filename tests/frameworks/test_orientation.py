"""Decoders that obey EXIF orientation show prepared images as Pillow does, which ignores it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.codec.test_orientation import shown
from tests.frameworks.test_frameworks import PROGRAMS, ended, python, rows
from tests.oracles.test_orientation import stored

__all__ = ["python"]


@pytest.mark.long
def test_decoders_that_obey_the_tag_show_what_all_others_show(python: Path, tmp_path: Path) -> None:
    for number, data in enumerate(stored()):
        (tmp_path / f"{number}.jpg").write_bytes(data)
        np.save(tmp_path / f"{number}.npy", shown(data, obeys=False).astype(np.uint8))

    (said,) = rows(ended(python, PROGRAMS / "orientation.py", tmp_path))
    assert "torchvision True" in said["decoders"]
