"""What a manifest says twice must agree: no reader may believe another half than the next."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Any

import pytest

from imagenet_prep.dataset import consistency, schema, tfds
from imagenet_prep.dataset.class_list import FALL11, IMAGENET_A, ClassList
from imagenet_prep.dataset.manifest import Classes, DatasetFile, Manifest, Producer, Shard, Split
from imagenet_prep.sources.labels import official_classes

OWN = ClassList(("cat", "dog"), ("a cat", "a dog"))
OFFICIAL = official_classes()


def made(classes: ClassList, counts: dict[str, list[int]], **more: Any) -> Manifest:
    """Returns a manifest without a contradiction."""
    splits = {}
    for name, per_class in counts.items():
        total = sum(per_class)
        shard = Shard(f"{name}-00000-of-00001", total, 64 * total, "", 1, "")
        splits[name] = Split(total, 64 * total, per_class, 0, 1, 1, [shard])
    there = Manifest(
        schema_version=1,
        producer=Producer("tests", "0", {}),
        config={},
        config_digest="",
        plan_digest="",
        label_offset=1,
        subset=True,
        classes=Classes(len(classes.wnids), classes.digest, classes.official),
        sources=[],
        splits=splits,
        quarantined={},
        repaired={},
        files=[],
    )
    there = dataclasses.replace(there, **more)
    files = consistency.tfds_files(there, classes) | {schema.LABELS: classes.render()}
    listed = [DatasetFile(n, len(d), hashlib.sha256(d).hexdigest()) for n, d in files.items()]
    return dataclasses.replace(there, files=listed)


def said(there: Manifest, classes: ClassList = OWN) -> str:
    return "; ".join(consistency.untrue(there, classes))


def spread(total: int, num_classes: int = 1000) -> list[int]:
    return [total // num_classes + (n < total % num_classes) for n in range(num_classes)]


def test_what_agrees_has_no_problem() -> None:
    assert said(made(OWN, {"train": [3, 0], "validation": [1, 1]})) == ""
    assert said(made(OWN, {"train": [3, 4]}, subset=False)) == ""
    whole = {"train": spread(1_281_167), "validation": spread(50_000)}
    assert said(made(OFFICIAL, whole, subset=False), OFFICIAL) == ""
    assert said(made(OFFICIAL, {"validation": spread(50_000)}, subset=False), OFFICIAL) == ""
    less = {"train": spread(1_281_160), "validation": spread(49_999)}
    bad = {"truncated": 6, "no image": 2}
    assert said(made(OFFICIAL, less, subset=False, quarantined=bad), OFFICIAL) == ""


def test_classes_in_another_order_or_number_are_named() -> None:
    there = made(OWN, {"train": [1, 1]})
    moved = ClassList(OWN.wnids[::-1], OWN.words[::-1])
    assert said(there, moved) == "labels.txt: its classes or their order differ from dataset.json"
    more = ClassList((*OWN.wnids, "emu"), (*OWN.words, "an emu"))
    assert "(3 classes, expected 2)" in said(there, more)
    twice = ClassList(("cat", "cat"), ("", ""))
    assert "a class is listed twice" in said(made(twice, {"train": [1, 1]}), twice)


def test_names_of_tensorflow_datasets_are_those_of_the_class_list() -> None:
    there = made(OWN, {"train": [1, 1]})
    for name, data in (
        (schema.TFDS_LABELS, tfds.label_names(OWN.wnids[::-1], 1)),
        (schema.TFDS_LABELS, tfds.label_names(OWN.wnids, 0)),
        (schema.TFDS_FEATURES, tfds.features(2)),
    ):
        files = [file for file in there.files if file.name != name]
        files.append(DatasetFile(name, len(data), hashlib.sha256(data).hexdigest()))
        assert f"{name}: differs from labels.txt" in said(dataclasses.replace(there, files=files))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            {"examples": 5},
            "train has 5 examples in 256 bytes, but its class counts add up to 4",
        ),
        ({"num_bytes": 1}, "train has 4 examples in 1 bytes"),
        ({"examples_per_class": [4]}, "has counts for 1 class of train, but labels.txt has 2"),
        ({"examples_per_class": [3, 3]}, "its class counts add up to 6"),
        ({"wnids": ["cat"]}, "the classes listed for train are not those of its images"),
    ],
)
def test_counts_that_contradict_each_other_are_named(change: dict[str, Any], expected: str) -> None:
    there = made(OWN, {"train": [2, 2]})
    split = dataclasses.replace(there.splits["train"], **change)
    assert expected in said(dataclasses.replace(there, splits={"train": split}))


@pytest.mark.parametrize("official", [True, False])
def test_a_list_that_is_not_what_it_is_called_is_named(official: bool) -> None:
    classes = OWN if official else OFFICIAL
    counts = {"train": spread(2000, len(classes.wnids))}
    wrong = Classes(len(classes.wnids), classes.digest, official)
    there = dataclasses.replace(made(classes, counts), classes=wrong)
    assert f"classes are {'' if official else 'not '}ILSVRC2012's" in said(there, classes)


@pytest.mark.parametrize(
    ("classes", "counts", "more", "expected"),
    [
        (OWN, {"train": [2, 2]}, {"edition": FALL11.name}, "fall11, which has different classes"),
        (
            OWN,
            {"test": [2, 2]},
            {"edition": IMAGENET_A.name},
            "imagenet-a, which has different",
        ),
        (OWN, {"train": [2, 2]}, {"edition": "mine"}, "an edition that this program does not know"),
        (OFFICIAL, {"train": spread(2000)}, {"subset": False}, "all of ILSVRC2012, but it has"),
        (
            OFFICIAL,
            {"train": spread(1_281_160)},
            {"subset": False, "quarantined": {"odd": 6}},
            "train: 1,281,160 and 6 quarantined images; expected train: 1,281,167",
        ),
        (
            OFFICIAL,
            {"holdout": spread(9000)},
            {"subset": False},
            "all of ILSVRC2012, but it has holdout",
        ),
        (
            OFFICIAL,
            {"test": spread(7500)},
            {"subset": False, "edition": IMAGENET_A.name},
            "images of 0 classes, expected 200",
        ),
    ],
    ids=["classes", "evaluation", "unknown", "few", "quarantined", "split", "images"],
)
def test_a_set_that_is_not_what_it_is_called_is_named(
    classes: ClassList, counts: dict[str, list[int]], more: dict[str, Any], expected: str
) -> None:
    assert expected in said(made(classes, counts, **more), classes)
