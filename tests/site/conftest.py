"""The site as `make docs` builds it, in its own environment."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kit import command
from tests.kit.command import REPOSITORY
from tests.kit.shared import made_once

SECRET = "open-sesame-7f3a"
PYTHON = REPOSITORY / ".venv" / "docs" / "bin" / "python"

Build = Callable[[Path, Path], "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def build() -> Build:
    """Builds the site of a clone into a folder, with a secret in the environment."""
    if not PYTHON.exists():
        pytest.skip(f"no {PYTHON}: run make docs once")

    def run(clone: Path, out: Path) -> subprocess.CompletedProcess[str]:
        words = [PYTHON, clone / ".ci" / "site" / "build.py", out]
        return subprocess.run(
            words,
            capture_output=True,
            text=True,
            timeout=command.PATIENCE_S,
            cwd=out.parent,
            env={**os.environ, "SECRET": SECRET},
        )

    return run


@pytest.fixture(scope="session")
def site(build: Build, shared_cache: Path) -> Path:
    """The folder of the site, built once per run; read-only."""

    def make(folder: Path) -> None:
        built = build(REPOSITORY, folder / "docs")
        assert (built.returncode, built.stderr) == (0, ""), built

    return made_once(shared_cache / "site", make) / "docs"
