"""Fixtures for tests of readers: all backends, and datasets with identifiable images."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.kit.reading import backend, colours, dali, scenes

__all__ = ["backend", "colours", "dali", "scenes"]


@pytest.fixture
def damaged(colours: Path, tmp_path: Path) -> Path:
    """A copy of `colours` that a test may change."""
    return Path(shutil.copytree(colours, tmp_path / "set"))
