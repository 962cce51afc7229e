"""The environment of docs/pytorch.md, and its datasets."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.kit.training import shades

__all__ = ["shades"]


def _interpreter(environment: str, remedy: str) -> Path:
    """Returns the interpreter of an environment in .venv; skips the test if it is not installed."""
    folder = Path(sys.prefix) / environment
    if not list(folder.glob(".installed-*")):
        pytest.skip(remedy)
    return folder / "bin" / "python"


@pytest.fixture(scope="session")
def python() -> Path:
    """The interpreter of the frameworks' environment, which is separate from ours."""
    remedy = "PyTorch and JAX are not installed; make test-long does it in .venv/loaders"
    return _interpreter("loaders", remedy)


@pytest.fixture(scope="session")
def pytorch() -> Path:
    """The interpreter of an environment that has PyTorch and all packages of ours, but no CUDA."""
    remedy = "PyTorch is not installed; make test installs it into .venv/pytorch"
    return _interpreter("pytorch", remedy)
