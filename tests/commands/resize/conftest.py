"""Sets of other programs, made from the miniature, and one resized whole."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.kit import command
from tests.kit.dataset import contents
from tests.kit.foreign_sets import ForeignSet, foreign_set, stored

__all__ = ["foreign_set", "stored"]

BOTH = ("-s", "train,validation", "--short-side", "64")


class Resized(NamedTuple):
    """A result that nobody changes."""

    source: ForeignSet
    out: Path
    contents: dict[str, bytes]


@pytest.fixture(scope="session")
def resized(
    foreign_set: Callable[[str], ForeignSet], tmp_path_factory: pytest.TempPathFactory
) -> Resized:
    """The set of slim's layout, both splits, to 64 pixels; made once per worker, as its source."""
    source = foreign_set("slim")
    out = tmp_path_factory.mktemp("resized") / "out"
    result = command.run("resize", "-i", source.root, "-o", out, *BOTH)
    assert result.code == 0, result
    return Resized(source, out, contents(out))
