"""Sets of other programs, made from the miniature, and one resized whole."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.kit import command
from tests.kit.dataset import contents
from tests.kit.foreign_sets import ForeignSet, foreign_set, stored
from tests.kit.shared import made_once

__all__ = ["foreign_set", "stored"]

BOTH = ("-s", "train,validation", "--short-side", "64")


class Resized(NamedTuple):
    """A result that nobody changes."""

    source: ForeignSet
    out: Path
    contents: dict[str, bytes]


@pytest.fixture(scope="session")
def resized(foreign_set: Callable[[str], ForeignSet], shared_cache: Path) -> Resized:
    """The set of slim's layout, both splits, to 64 pixels; made once for all workers."""
    source = foreign_set("slim")

    def make(folder: Path) -> None:
        result = command.run("resize", "-i", source.root, "-o", folder / "out", *BOTH)
        assert result.code == 0, result

    out = made_once(shared_cache / "resized", make) / "out"
    return Resized(source, out, contents(out))
