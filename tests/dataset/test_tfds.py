"""What TensorFlow Datasets is told of a set; tests/oracles/test_tfds.py asks TFDS itself."""

from __future__ import annotations

import json

import pytest

from imagenet_prep.dataset import tfds


@pytest.mark.parametrize("name", ["imagenet2012", "cifar10", "mnist", "images"])
@pytest.mark.parametrize("subset", [False, True])
def test_a_name_is_none_of_tfds_and_is_found_again(name: str, *, subset: bool) -> None:
    info = json.loads(tfds.dataset_info(name, {}, subset))

    assert info["name"] == f"{name}_prep" + ("_subset" if subset else "")
    assert tfds.name_of(info) == name


@pytest.mark.parametrize(
    ("wnids", "offset", "names"),
    [
        (["cat", "dog"], 0, ["cat", "dog"]),
        (["cat", "dog"], 1, ["background", "cat", "dog"]),
        (["background", "dog"], 1, ["background_", "background", "dog"]),
        (["background", "dog"], 0, ["background", "dog"]),
    ],
)
def test_labels_have_names_that_are_unique(wnids: list[str], offset: int, names: list[str]) -> None:
    assert tfds.label_names(wnids, offset).decode().splitlines() == names
