"""Datasets of other programs, made from the miniature, and one resized dataset."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.kit import command
from tests.kit.dataset import contents
from tests.kit.foreign_datasets import ForeignDataset, foreign_dataset, stored

__all__ = ["foreign_dataset", "stored"]

BOTH = ("-s", "train,validation", "--short-side", "64")


class Resized(NamedTuple):
    """A result that no test changes."""

    source: ForeignDataset
    out: Path
    contents: dict[str, bytes]


@pytest.fixture(scope="session")
def resized(
    foreign_dataset: Callable[[str], ForeignDataset], tmp_path_factory: pytest.TempPathFactory
) -> Resized:
    """Both splits of the dataset in slim's layout, at 64 pixels; made once per worker."""
    source = foreign_dataset("slim")
    out = tmp_path_factory.mktemp("resized") / "out"
    result = command.run("resize", "-i", source.root, "-o", out, *BOTH)
    assert result.code == 0, result
    return Resized(source, out, contents(out))
