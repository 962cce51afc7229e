"""Datasets in the forms of other programs, made from the miniature."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from imagenet_prep.sources.labels import official_classes
from tests.kit import foreign
from tests.kit.miniature import Miniature, miniature_for_tests
from tests.kit.tfrecords import plain

NUM_SHARDS = {"train": 6, "validation": 2}


class ForeignDataset(NamedTuple):
    """A dataset that no test changes, and the shard of each image."""

    root: Path
    placed: dict[str, list[list[foreign.Image]]]


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
def mini(shared_cache: Path) -> Miniature:
    """120 + 32 images with all odd kinds; read-only."""
    return miniature_for_tests(shared_cache, num_train=120, num_validation=32, size=(160, 120))


@pytest.fixture(scope="session")
def stored(mini: Miniature) -> list[foreign.Image]:
    """The images in the form of foreign writers."""
    return foreign.images(mini)


@pytest.fixture(scope="session")
def foreign_dataset(
    stored: list[foreign.Image], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], ForeignDataset]:
    """Returns a dataset of `LAYOUTS`, written once; read-only."""
    made: dict[str, ForeignDataset] = {}

    def make(layout: str) -> ForeignDataset:
        if layout not in made:
            root = tmp_path_factory.mktemp("foreign") / layout
            writer, how = LAYOUTS[layout]
            placed = foreign.write(root, stored, writer, num_shards=NUM_SHARDS, **how)
            made[layout] = ForeignDataset(root, placed)
        return made[layout]

    return make


def few_images() -> list[foreign.Image]:
    """Returns 6 + 2 plain images of three classes, which need no archives."""
    wnids = official_classes().wnids[5:300:100]
    found = []
    for number in range(8):
        split = "train" if number < 6 else "validation"
        wnid = wnids[number % 3]
        key = f"{wnid}/{wnid}_{number}.JPEG"
        if split == "validation":
            key = f"ILSVRC2012_val_{number:08d}.JPEG"
        data = plain(number)
        (width, height), _ = foreign.look(data)
        found.append(foreign.Image(split, key, wnid, f"words of {wnid}", data, width, height))
    return found
