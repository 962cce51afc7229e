"""Runs `make release` on the last commit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.command import PATIENCE_S, REPOSITORY
from tests.kit.shared import made_once


def release(folder: Path) -> Path:
    """Releases a clone in a new folder; returns its dist/."""
    python = Path(sys.prefix) / "release" / "bin" / "python"
    if not python.exists():
        pytest.skip("nothing to make a release with: make release installs it")
    subprocess.run(["git", "clone", "--quiet", REPOSITORY, folder], check=True)
    argv = [folder / ".ci" / "release", python]
    made = subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=PATIENCE_S)
    assert made.returncode == 0, made.stdout + made.stderr
    return folder / "dist"


def released(shared_cache: Path) -> Path:
    """Returns the dist/ that all tests of a run share; read-only."""
    return made_once(shared_cache / "release", lambda folder: release(folder / "clone")) / (
        "clone/dist"
    )
