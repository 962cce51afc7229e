"""framework="torch" and `Reader.source` with PyTorch's CPU wheel; see tensors.py for the checks."""

from __future__ import annotations

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


def checked(python: Path, name: str, root: Path) -> int:
    """Returns the number of batches that a check of tensors.py compared."""
    return int(ended(python, PROGRAM, name, root))


def test_fields_are_tensors_of_the_documented_type(pytorch: Path, with_columns: Path) -> None:
    assert checked(pytorch, "types", with_columns) == 8 * STEPS


def test_views_are_tensors(pytorch: Path, scenes: Path) -> None:
    assert checked(pytorch, "views", scenes) == 2 * TRAIN_STEPS


def test_loss_of_tuples_ignores_padding(pytorch: Path, scenes: Path) -> None:
    assert checked(pytorch, "tuples", scenes) == 6 + 2 + 4


def test_kept_tensors_are_not_overwritten(pytorch: Path, scenes: Path) -> None:
    assert checked(pytorch, "memory", scenes) == 3 * 12


def test_reader_of_tensors_continues_from_its_state(pytorch: Path, scenes: Path) -> None:
    assert checked(pytorch, "state", scenes) == TRAIN_STEPS - 7


def test_dataloader_over_a_reader_gives_its_tensors(pytorch: Path, with_columns: Path) -> None:
    assert checked(pytorch, "steps", with_columns) == 5 * TRAIN_STEPS


def test_dataloader_over_a_source_gives_each_key_once(pytorch: Path, scenes: Path) -> None:
    assert checked(pytorch, "source", scenes) == 3 * 2 + 2


def test_mix_has_tensors(pytorch: Path, scenes: Path) -> None:
    assert checked(pytorch, "mixes", scenes) == (NUM_TRAIN + NUM_VALIDATION) // 4


@pytest.mark.dali
def test_dali_gives_tensors(pytorch: Path, dali: Any, scenes: Path) -> None:
    assert checked(pytorch, "dali", scenes) == 3 * STEPS
