"""Ranks that write a column are killed at random moments: finished files are always right."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.command import PATIENCE_S


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["numbers", "texts"])
@pytest.mark.parametrize(
    ("ranks", "kills"),
    [
        (2, 10),
        (3, 10),
        pytest.param(2, 500, marks=pytest.mark.long),
        pytest.param(3, 500, marks=pytest.mark.long),
    ],
)
def test_column_of_killed_ranks_equals_an_undisturbed_one(
    damaged: Path, ranks: int, kills: int, kind: str
) -> None:
    seed = ranks * 1000 + kills
    program = [sys.executable, "-m", "tests.kit.column_kills", damaged, ranks, kills, seed, kind]
    done = subprocess.run(
        list(map(str, program)), capture_output=True, text=True, timeout=PATIENCE_S + 2 * kills
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= kills
