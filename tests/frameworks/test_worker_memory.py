"""Memory of batches that a DataLoader's workers use again; see worker_memory.py for the checks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.frameworks.programs import ended
from tests.kit.reading import scenes

__all__ = ["scenes"]

PROGRAM = Path(__file__).parent / "worker_memory.py"


# Each process imports PyTorch, so it makes several checks; every worker that is spawned does, too.
CHECKS = (
    ("released", "held_at_random", "many_kept_and_released", "examples"),
    ("forked", "interrupted", "changed", "killed"),
    pytest.param(("kept",), marks=pytest.mark.long),
    pytest.param(("kept_by_worker", "transforms", "arrays", "undecoded"), marks=pytest.mark.long),
)


@pytest.mark.parametrize("checks", CHECKS, ids=lambda checks: checks[0])
def test_workers_never_write_to_used_batches(
    pytorch: Path, scenes: Path, checks: tuple[str, ...]
) -> None:
    assert int(ended(pytorch, PROGRAM, scenes, *checks)) > 0
