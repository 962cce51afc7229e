"""Fixtures for tests of readers: all backends, and datasets with identifiable images."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.kit.columns import write
from tests.kit.reading import backend, colours, dali, scenes

__all__ = ["backend", "colours", "dali", "scenes"]


@pytest.fixture
def damaged(colours: Path, tmp_path: Path) -> Path:
    """A copy of `colours` that a test may change."""
    return Path(shutil.copytree(colours, tmp_path / "set"))


@pytest.fixture(scope="session")
def marked(colours: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`colours` with a column of both splits; read-only."""
    root = Path(shutil.copytree(colours, tmp_path_factory.mktemp("marked") / "set"))
    write(root)
    write(root, "validation")
    return root


@pytest.fixture
def copy(marked: Path, tmp_path: Path) -> Path:
    """A copy of `marked` that a test may change."""
    return Path(shutil.copytree(marked, tmp_path / "set"))
