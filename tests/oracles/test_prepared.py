"""Reads all records of a prepared miniature with the parsers of other programs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from imagenet_prep.codec.policy import Policy
from tests.kit.miniature import Miniature

pytestmark = pytest.mark.tf

SPLITS = {"train": 4, "validation": 3}


def slim_features(tf: ModuleType) -> dict[str, Any]:
    """The parser of inception/slim and NVIDIA, and the keys that they write but do not parse."""
    strings = ("encoded", "format", "colorspace", "filename", "class/synset", "class/text")
    numbers = ("height", "width", "channels", "class/label")
    fixed = {f"image/{name}": tf.io.FixedLenFeature([], tf.string) for name in strings}
    fixed |= {f"image/{name}": tf.io.FixedLenFeature([], tf.int64) for name in numbers}
    sides = {
        f"image/object/bbox/{side}": tf.io.VarLenFeature(tf.float32)
        for side in ("xmin", "ymin", "xmax", "ymax")
    }
    return fixed | sides | {"image/object/bbox/label": tf.io.VarLenFeature(tf.int64)}


@pytest.fixture(scope="module")
def records(tf: ModuleType, prepared: Path) -> dict[str, list[Any]]:
    """Returns the parsed records of each split, found by the glob that readers use."""
    features = slim_features(tf)
    found = {}
    for split in SPLITS:
        names = sorted(tf.io.gfile.glob(str(prepared / f"{split}-*")))
        dataset = tf.data.TFRecordDataset(names)
        found[split] = [
            (payload.numpy(), tf.io.parse_single_example(payload, features)) for payload in dataset
        ]
    return found


def key_of(split: str, parsed: dict[str, Any]) -> str:
    name = parsed["image/filename"].numpy().decode()
    return name if split == "validation" else f"{name.split('_')[0]}/{name}"


def test_shards_have_the_names_that_readers_expect(prepared: Path) -> None:
    names = sorted(p.name for p in prepared.iterdir() if p.name.startswith(("train", "valid")))

    assert names == [f"train-0000{i}-of-00004" for i in range(4)] + [
        f"validation-0000{i}-of-00003" for i in range(3)
    ]
    assert names == sorted(path.name for path in (prepared / "index").iterdir())


@pytest.mark.parametrize("split", SPLITS)
def test_usable_images_are_stored_exactly_once(
    small: Miniature, records: dict[str, list[Any]], split: str
) -> None:
    expected = sorted(k for k, i in small.of(split).items() if i.fate != "quarantined")

    assert sorted(key_of(split, parsed) for _, parsed in records[split]) == expected


@pytest.mark.parametrize("split", SPLITS)
def test_records_have_exactly_the_fifteen_keys(
    tf: ModuleType, records: dict[str, list[Any]], split: str
) -> None:
    expected = set(slim_features(tf))

    assert len(expected) == 15
    for payload, _ in records[split]:
        assert set(tf.train.Example.FromString(payload).features.feature) == expected


@pytest.mark.parametrize("split", SPLITS)
def test_record_values_match_the_miniature(
    tf: ModuleType, small: Miniature, records: dict[str, list[Any]], split: str
) -> None:
    truth = small.of(split)
    for _, parsed in records[split]:
        image = truth[key_of(split, parsed)]
        height, width = Policy(96).resized(image.height, image.width)
        found = {key: value.numpy() for key, value in parsed.items() if "bbox" not in key}
        shape = tf.io.decode_jpeg(found.pop("image/encoded")).shape

        assert tuple(shape) == (height, width, 3)
        assert found == {
            "image/format": b"JPEG",
            "image/colorspace": b"RGB",
            "image/channels": 3,
            "image/height": height,
            "image/width": width,
            "image/filename": image.key.rpartition("/")[2].encode(),
            "image/class/label": image.class_index + 1,
            "image/class/synset": image.wnid.encode(),
            "image/class/text": dict(small.classes)[image.wnid].encode(),
        }
        for side in ("xmin", "ymin", "xmax", "ymax", "label"):
            assert parsed[f"image/object/bbox/{side}"].dense_shape.numpy().tolist() == [0]


@pytest.mark.parametrize("split", SPLITS)
def test_shards_are_balanced_and_mixed(
    tf: ModuleType, small: Miniature, prepared: Path, split: str
) -> None:
    label = {"image/class/label": tf.io.FixedLenFeature([], tf.int64)}
    planned = len(small.of(split)) / SPLITS[split]
    for path in prepared.glob(f"{split}-*"):
        labels = [
            int(tf.io.parse_single_example(payload, label)["image/class/label"])
            for payload in tf.data.TFRecordDataset([str(path)])
        ]
        # Quarantined images make their shard shorter.
        assert planned - 3 <= len(labels) <= planned + 1
        assert labels != sorted(labels)
        assert max(Counter(labels).values()) <= len(small.of("train")) / 8 / 2


def test_labels_txt_maps_stored_labels_to_classes(
    small: Miniature, prepared: Path, records: dict[str, list[Any]]
) -> None:
    lines = (prepared / "labels.txt").read_text("utf-8").splitlines()

    assert lines == [f"{wnid} {words}" for wnid, words in small.classes]
    for _, parsed in records["train"]:
        wnid, _, words = lines[int(parsed["image/class/label"]) - 1].partition(" ")
        assert parsed["image/class/synset"].numpy().decode() == wnid
        assert parsed["image/class/text"].numpy().decode() == words
