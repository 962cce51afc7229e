"""The environment of docs/pytorch.md, and its datasets."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.kit.training import shades

__all__ = ["shades"]


@pytest.fixture(scope="session")
def python() -> Path:
    """The interpreter of the frameworks' environment, which is separate from ours."""
    folder = Path(sys.prefix) / "loaders"
    if not list(folder.glob(".installed-*")):
        pytest.skip("PyTorch and JAX are not installed; make test-long does it in .venv/loaders")
    return folder / "bin" / "python"


@pytest.fixture(scope="session")
def pytorch() -> Path:
    """The interpreter of an environment that has PyTorch and all packages of ours, but no CUDA."""
    folder = Path(sys.prefix) / "pytorch"
    if not list(folder.glob(".installed-*")):
        pytest.skip("PyTorch is not installed; make test installs it into .venv/pytorch")
    return folder / "bin" / "python"
