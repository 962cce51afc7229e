"""`Reader.source` in Grain, and in torchtitan's pipeline of Grain; see in_grain.py for the checks.

torchtitan's release on PyPI does not yet have this pipeline, so its documented contract is tested.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.frameworks.programs import ended
from tests.kit.reading import NUM_TRAIN, colours, scenes

__all__ = ["colours", "scenes"]

pytestmark = pytest.mark.long

PROGRAM = Path(__file__).parent / "in_grain.py"
EPOCHS = 2
SHARD = EPOCHS * NUM_TRAIN // 2
BATCHES = EPOCHS * NUM_TRAIN // 4


@pytest.mark.parametrize(
    ("check", "compared"),
    [
        ("maps", (2 + EPOCHS) * NUM_TRAIN),
        ("workers", BATCHES + 2 + (BATCHES - 3) + (BATCHES - BATCHES // 2 - 1)),
        ("loader", 4 * (SHARD - 9) + 2),
        ("torchtitan", NUM_TRAIN + 2 * 9),
    ],
)
def test_source_has_each_example_once_after_a_resume(
    python: Path, scenes: Path, colours: Path, tmp_path: Path, check: str, compared: int
) -> None:
    moved = shutil.copytree(scenes, tmp_path / "moved")

    assert int(ended(python, PROGRAM, check, scenes, moved, colours)) == compared
