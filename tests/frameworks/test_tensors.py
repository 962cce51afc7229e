"""framework="torch" and `Reader.source` with PyTorch's CPU wheel; see tensors.py for the checks."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from imagenet_prep.core.world import World
from imagenet_prep.read import ColumnWriter
from tests.frameworks.programs import ended
from tests.kit.reading import NUM_TRAIN, NUM_VALIDATION, dali, scenes

__all__ = ["dali", "scenes"]

PROGRAM = Path(__file__).parent / "tensors.py"
TRAIN_STEPS = NUM_TRAIN // 4
STEPS = TRAIN_STEPS + -(-NUM_VALIDATION // 4)  # with those of validation
COLUMNS = {"marks": "int32", "half": "float16", "brain": "bfloat16"}


def values(numbers: Any, name: str) -> Any:
    """Returns two values per example; those of bfloat16 are the bits of large numbers."""
    first = 0x4000 if name == "brain" else 0
    types = {"brain": "uint16"}
    return (np.stack([numbers, 3 * numbers], axis=1) + first).astype(types.get(name, COLUMNS[name]))


@pytest.fixture(scope="session")
def with_columns(scenes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`scenes` with a column of each type for both splits; read-only."""
    root = Path(shutil.copytree(scenes, tmp_path_factory.mktemp("columns") / "set"))
    reader = {"backend": "native", "fields": ("number",), "image_size": 16}
    for name, dtype in COLUMNS.items():
        for split in ("train", "validation"):
            how: dict[str, Any] = {"batch_size": 8, "reader": reader, "world": World()}
            with ColumnWriter(root, split, name, (2,), dtype, **how) as writer:
                for batch in writer:
                    numbers = batch["number"][batch["number"] >= 0]
                    writer.write(values(numbers, name))
    return root


# Each process imports PyTorch, so it makes several checks; they return the number of batches that
# they have compared.
CHECKS = (
    {"types": 8 * STEPS, "views": 2 * TRAIN_STEPS, "tuples": 6 + 2 + 4, "memory": 3 * 12},
    {
        "state": TRAIN_STEPS - 7,
        "steps": 5 * TRAIN_STEPS,
        "source": 3 * 2 + 2,
        "mixes": (NUM_TRAIN + NUM_VALIDATION) // 4,
    },
)


def checked(python: Path, root: Path, *names: str) -> dict[str, int]:
    """Returns the number of batches that each of these checks of tensors.py compared."""
    found: dict[str, int] = json.loads(ended(python, PROGRAM, root, *names))
    return found


@pytest.mark.parametrize("expected", CHECKS, ids="-".join)
def test_tensors_equal_arrays_of_numpy(
    pytorch: Path, with_columns: Path, expected: dict[str, int]
) -> None:
    assert checked(pytorch, with_columns, *expected) == expected


@pytest.mark.dali
def test_dali_gives_tensors(pytorch: Path, dali: Any, scenes: Path) -> None:
    assert checked(pytorch, scenes, "dali") == {"dali": 3 * STEPS}
