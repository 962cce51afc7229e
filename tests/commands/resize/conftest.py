"""Sets of other programs, made from the miniature, and one resized whole."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.kit import command, foreign
from tests.kit.dataset import contents
from tests.kit.miniature import Miniature, miniature_for_tests

NUM_SHARDS = {"train": 6, "validation": 2}


class ForeignSet(NamedTuple):
    """A set that nobody changes, and which image lies where."""

    root: Path
    placed: dict[str, list[list[foreign.Image]]]


@pytest.fixture(scope="session")
def mini(shared_cache: Path) -> Miniature:
    """120 + 32 images with all odd kinds; read-only."""
    return miniature_for_tests(shared_cache, num_train=120, num_validation=32, size=(160, 120))


@pytest.fixture(scope="session")
def stored(mini: Miniature) -> list[foreign.Image]:
    """The images as foreign writers store them."""
    return foreign.images(mini)


LAYOUTS = {
    "slim": (foreign.slim, {}),
    "slim-own-classes": (foreign.slim, {"own_classes": True}),
    "slim-from-0": (foreign.slim, {"offset": 0}),
    "tpu-in-folders": (foreign.tpu, {"below": True}),
    "aws-from-1": (foreign.aws, {"first": 1}),
    "tfds": (foreign.tfds, {"offset": 0, "prefix": "imagenet2012"}),
    "flowers": (foreign.flowers, {"own_classes": True}),
}


@pytest.fixture(scope="session")
def foreign_set(
    stored: list[foreign.Image], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], ForeignSet]:
    """Returns a set of `LAYOUTS`, written once; read-only."""
    made: dict[str, ForeignSet] = {}

    def make(layout: str) -> ForeignSet:
        if layout not in made:
            root = tmp_path_factory.mktemp("foreign") / layout
            writer, how = LAYOUTS[layout]
            placed = foreign.write(root, stored, writer, num_shards=NUM_SHARDS, **how)
            made[layout] = ForeignSet(root, placed)
        return made[layout]

    return make


class Resized(NamedTuple):
    """A result that nobody changes."""

    source: ForeignSet
    out: Path
    contents: dict[str, bytes]


@pytest.fixture(scope="session")
def resized(
    foreign_set: Callable[[str], ForeignSet], tmp_path_factory: pytest.TempPathFactory
) -> Resized:
    """The set of slim's layout, both splits, to 64 pixels."""
    source = foreign_set("slim")
    out = tmp_path_factory.mktemp("resized") / "out"
    result = command.run("resize", "-i", source.root, "-o", out, *BOTH)
    assert result.code == 0, result
    return Resized(source, out, contents(out))


BOTH = ("-s", "train,validation", "--short-side", "64")
