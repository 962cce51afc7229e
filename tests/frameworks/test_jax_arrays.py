"""framework="jax" with JAX itself; see in_jax.py for the checks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.frameworks.programs import ended
from tests.kit.reading import NUM_TRAIN, NUM_VALIDATION, scenes

__all__ = ["scenes"]

pytestmark = pytest.mark.long

PROGRAM = Path(__file__).parent / "in_jax.py"
STEPS = NUM_TRAIN // 4
BLOCK = "pytorch.md: JAX"
FOUR = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4"}


def test_batches_and_tuples_are_arrays_of_jax(python: Path, scenes: Path) -> None:
    cases = json.loads(ended(python, PROGRAM, scenes, BLOCK, **FOUR))

    assert ["bfloat16", "NCHW", "validation"] in cases
    assert len(cases) == 16 + 8
    assert cases[16:] == [
        ["tuples", 1, NUM_VALIDATION],
        ["tuples", 4, NUM_VALIDATION],
        ["memory", "float32", STEPS],
        ["memory", "bfloat16", STEPS],
        ["views", 2],
        ["state", STEPS],
        ["source", NUM_VALIDATION],
        ["page", 4],
    ]
