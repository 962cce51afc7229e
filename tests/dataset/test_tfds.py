"""Files for TensorFlow Datasets; tests/oracles/test_tfds.py reads them with TFDS itself."""

from __future__ import annotations

import json
from typing import Any

import pytest

from imagenet_prep.dataset import tfds
from imagenet_prep.dataset.manifest import Shard


@pytest.mark.parametrize("name", ["imagenet2012", "cifar10", "mnist", "images"])
@pytest.mark.parametrize("subset", [False, True])
def test_name_is_unused_in_tfds_and_recovered(name: str, *, subset: bool) -> None:
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
def test_labels_have_unique_names(wnids: list[str], offset: int, names: list[str]) -> None:
    assert tfds.label_names(wnids, offset).decode().splitlines() == names


SHARDS = {
    "train": [
        Shard("train-00000-of-00002", 3, 1000, "s", 10, "i"),
        Shard("train-00001-of-00002", 2, 500, "s", 10, "i"),
    ],
    "validation": [Shard("validation-00000-of-00001", 1, 70, "s", 10, "i")],
}


def test_splits_have_the_lengths_of_their_shards() -> None:
    info = json.loads(tfds.dataset_info("mine", SHARDS, subset=False))
    assert tfds.lengths(info) == [
        "mine_prep",
        "tfrecord",
        {
            "train": ("{SPLIT}-{SHARD_X_OF_Y}", ["3", "2"]),
            "validation": ("{SPLIT}-{SHARD_X_OF_Y}", ["1"]),
        },
    ]
    assert [split["numBytes"] for split in info["splits"]] == ["1500", "70"]
    assert "ILSVRC2012" not in info["description"]
    assert "mine" in info["description"]
    official = json.loads(tfds.dataset_info(tfds.IMAGENET, SHARDS, subset=False))
    assert "ILSVRC2012" in official["description"]


def kinds(content: dict[str, Any], path: str = "") -> dict[str, str]:
    """Returns the Python class of each feature, by the path of its key."""
    found: dict[str, str] = {}
    for name, each in content["featuresDict"]["features"].items():
        if "featuresDict" in each:
            found |= kinds(each, f"{path}{name}/")
        else:
            found[path + name] = each["pythonClassName"].rpartition(".")[2]
    return found


def test_each_key_has_its_feature() -> None:
    content = json.loads(tfds.features(7))
    assert kinds(content) == {
        "image/class/label": "ClassLabel",
        "image/class/synset": "Text",
        "image/class/text": "Text",
        "image/colorspace": "Text",
        "image/encoded": "Image",
        "image/filename": "Text",
        "image/format": "Text",
        "image/channels": "Scalar",
        "image/height": "Scalar",
        "image/width": "Scalar",
        "image/object/bbox/label": "Sequence",
        "image/object/bbox/xmax": "Sequence",
        "image/object/bbox/xmin": "Sequence",
        "image/object/bbox/ymax": "Sequence",
        "image/object/bbox/ymin": "Sequence",
    }
    image = content["featuresDict"]["features"]["image"]["featuresDict"]["features"]
    label = image["class"]["featuresDict"]["features"]["label"]
    assert label["classLabel"] == {"numClasses": "7"}
    assert image["encoded"]["image"]["encodingFormat"] == "jpeg"
    assert image["height"]["tensor"]["dtype"] == "int64"
    boxes = image["object"]["featuresDict"]["features"]["bbox"]["featuresDict"]["features"]
    assert boxes["xmin"]["sequence"]["feature"]["tensor"]["dtype"] == "float32"
    assert boxes["label"]["sequence"]["feature"]["tensor"]["dtype"] == "int64"


def test_absent_keys_have_no_feature() -> None:
    absent = ["image/filename", "image/class/text"]
    found = kinds(json.loads(tfds.features(7, absent)))
    assert found.keys() == kinds(json.loads(tfds.features(7))).keys() - {*absent}
