"""The environment of docs/pytorch.md, and its sets."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.kit.training import shades

__all__ = ["shades"]


@pytest.fixture(scope="session")
def python() -> Path:
    """The interpreter of the frameworks' environment, beside ours."""
    folder = Path(sys.prefix) / "loaders"
    if not list(folder.glob(".installed-*")):
        pytest.skip("PyTorch and JAX are not installed; make test-long does it in .venv/loaders")
    return folder / "bin" / "python"
