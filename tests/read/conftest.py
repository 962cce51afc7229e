"""All backends, and data sets whose pictures tell which example they are."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.kit.reading import backend, colours, dali, scenes

__all__ = ["backend", "colours", "dali", "scenes"]


@pytest.fixture
def damaged(colours: Path, tmp_path: Path) -> Path:
    """A copy of `colours`, to be damaged or to have alone."""
    return Path(shutil.copytree(colours, tmp_path / "set"))
