"""Redundant facts of a manifest must agree, so that all readers use the same ones."""

from __future__ import annotations

import dataclasses
import hashlib
import re
from typing import Any

import pytest

from imagenet_prep.dataset import consistency, schema, tfds
from imagenet_prep.dataset.class_list import FALL11, IMAGENET_A, IMAGENET_SKETCH, ClassList
from imagenet_prep.dataset.manifest import Classes, DatasetFile, Manifest, Producer, Shard, Split
from imagenet_prep.sources.labels import official_classes
from tests.kit.messages import says

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


def test_consistent_manifest_has_no_problem() -> None:
    assert said(made(OWN, {"train": [3, 0], "validation": [1, 1]})) == ""
    assert said(made(OWN, {"train": [3, 4]}, subset=False)) == ""
    whole = {"train": spread(1_281_167), "validation": spread(50_000)}
    assert said(made(OFFICIAL, whole, subset=False), OFFICIAL) == ""
    assert said(made(OFFICIAL, {"validation": spread(50_000)}, subset=False), OFFICIAL) == ""
    less = {"train": spread(1_281_160), "validation": spread(49_999)}
    bad = {"truncated": 6, "no image": 2}
    assert said(made(OFFICIAL, less, subset=False, quarantined=bad), OFFICIAL) == ""


def test_changed_order_or_number_of_classes_is_named() -> None:
    there = made(OWN, {"train": [1, 1]})
    moved = ClassList(OWN.wnids[::-1], OWN.words[::-1])
    assert said(there, moved) == "labels.txt: its classes or their order differ from dataset.json"
    more = ClassList((*OWN.wnids, "emu"), (*OWN.words, "an emu"))
    assert says("classes-expected", "3", "2").search(said(there, more))
    twice = ClassList(("cat", "cat"), ("", ""))
    assert says("class-listed-twice").search(said(made(twice, {"train": [1, 1]}), twice))


def test_tfds_names_must_match_the_class_list() -> None:
    there = made(OWN, {"train": [1, 1]})
    for name, data in (
        (schema.TFDS_LABELS, tfds.label_names(OWN.wnids[::-1], 1)),
        (schema.TFDS_LABELS, tfds.label_names(OWN.wnids, 0)),
        (schema.TFDS_FEATURES, tfds.features(2)),
    ):
        files = [file for file in there.files if file.name != name]
        files.append(DatasetFile(name, len(data), hashlib.sha256(data).hexdigest()))
        assert says("differs-tensorflow-datasets-would-read", name, "labels.txt").search(
            said(dataclasses.replace(there, files=files))
        )


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            {"examples": 5},
            says("says-bytes-class-counts-add", ..., "train", "5 examples", "256", "4"),
        ),
        ({"num_bytes": 1}, says("examples-bytes", ..., "train has 4", "1")),
        ({"examples_per_class": [4]}, says("counts", ..., "1 class", "train", "labels.txt", "2")),
        (
            {"examples_per_class": [3, 3]},
            says("says-bytes-class-counts-add", ..., ..., ..., ..., "6"),
        ),
        ({"wnids": ["cat"]}, says("classes-listed-not-those-images", ..., "train")),
        ({"wnids": ["dog", "cat"]}, says("classes-listed-not-those-images", ..., "train")),
    ],
)
def test_counts_that_contradict_each_other_are_named(change: dict[str, Any], expected: str) -> None:
    there = made(OWN, {"train": [2, 2]})
    split = dataclasses.replace(there.splits["train"], **change)
    assert re.search(expected, said(dataclasses.replace(there, splits={"train": split})))


@pytest.mark.parametrize("official", [True, False])
def test_wrong_claim_of_ilsvrc2012_classes_is_named(official: bool) -> None:
    classes = OWN if official else OFFICIAL
    counts = {"train": spread(2000, len(classes.wnids))}
    wrong = Classes(len(classes.wnids), classes.digest, official)
    there = dataclasses.replace(made(classes, counts), classes=wrong)
    assert says("says-classes-ilsvrc2012-s-ilsvrc2012", ..., "" if official else "not ").search(
        said(there, classes)
    )


@pytest.mark.parametrize(
    ("classes", "counts", "more", "expected"),
    [
        (
            OWN,
            {"train": [2, 2]},
            {"edition": FALL11.name},
            says("says-different-classes", ..., "fall11"),
        ),
        (
            OWN,
            {"test": [2, 2]},
            {"edition": IMAGENET_A.name},
            says("says-different-classes", ..., "imagenet-a"),
        ),
        (OWN, {"train": [2, 2]}, {"edition": "mine"}, says("says-edition-program-not-know")),
        (
            OFFICIAL,
            {"train": spread(2000)},
            {"subset": False},
            says("says-quarantined-images-expected", ..., "ILSVRC2012"),
        ),
        (
            OFFICIAL,
            {"train": spread(1_281_160)},
            {"subset": False, "quarantined": {"odd": 6}},
            says(
                "says-quarantined-images-expected",
                ...,
                ...,
                "train: 1,281,160",
                "6",
                "train: 1,281,167",
            ),
        ),
        (
            OFFICIAL,
            {"holdout": spread(9000)},
            {"subset": False},
            says("says-quarantined-images-expected", ..., "ILSVRC2012", "holdout"),
        ),
        (
            OFFICIAL,
            {"test": spread(7500)},
            {"subset": False, "edition": IMAGENET_A.name},
            says("says-images-expected", ..., ..., "0 classes", "200"),
        ),
    ],
    ids=["classes", "evaluation", "unknown", "few", "quarantined", "split", "images"],
)
def test_wrong_claim_of_an_edition_is_named(
    classes: ClassList, counts: dict[str, list[int]], more: dict[str, Any], expected: str
) -> None:
    assert re.search(expected, said(made(classes, counts, **more), classes))


def problems(there: Manifest, classes: ClassList = OFFICIAL) -> int:
    return len([*consistency.untrue(there, classes)])


@pytest.mark.parametrize(
    ("train", "validation", "quarantined", "count"),
    [
        (1_281_167, 50_000, 0, 0),
        (1_281_166, 49_999, 2, 0),
        (1_281_166, 49_999, 1, 1),
        (1_281_166, 49_999, 3, 1),
        # One image too many in train, and two missing ones in validation.
        (1_281_168, 49_998, 1, 1),
        (1_281_168, 50_000, 0, 1),
    ],
)
def test_missing_images_are_quarantined(
    train: int, validation: int, quarantined: int, count: int
) -> None:
    counts = {"train": spread(train), "validation": spread(validation)}
    bad = {"truncated": quarantined} if quarantined else {}
    assert problems(made(OFFICIAL, counts, subset=False, quarantined=bad)) == count


def of_classes(total: int, num_classes: int) -> list[int]:
    return [*spread(total, num_classes), *[0] * (1000 - num_classes)]


@pytest.mark.parametrize(
    ("total", "num_classes", "quarantined", "count"),
    [
        (7500, 200, 0, 0),
        (7500, 199, 0, 1),
        # All images of a class may be quarantined.
        (7400, 199, 100, 0),
        (7400, 200, 100, 0),
        (7400, 200, 99, 1),
    ],
)
def test_complete_evaluation_sets_have_all_classes(
    total: int, num_classes: int, quarantined: int, count: int
) -> None:
    counts = of_classes(total, num_classes)
    there = made(
        OFFICIAL,
        {"test": counts},
        subset=False,
        edition=IMAGENET_A.name,
        quarantined={"truncated": quarantined} if quarantined else {},
    )
    wnids = [wnid for wnid, n in zip(OFFICIAL.wnids, counts, strict=True) if n]
    test = dataclasses.replace(there.splits["test"], wnids=wnids)
    assert problems(dataclasses.replace(there, splits={"test": test})) == count


def test_evaluation_sets_without_an_edition_claim_nothing() -> None:
    """A user's own test images of ILSVRC2012's classes can have any number."""
    assert problems(made(OFFICIAL, {"test": spread(5000)}, subset=False)) == 0
    assert problems(made(OFFICIAL, {"train": spread(5000)}, subset=False)) == 1
    assert problems(made(OFFICIAL, {"train": spread(5000)}, subset=True)) == 0


@pytest.mark.parametrize(
    ("kind", "has_feature"), [("absent", False), ("empty", True), ("untrue", True)]
)
def test_only_absent_keys_have_no_feature(kind: str, has_feature: bool) -> None:
    there = made(OWN, {"train": [1, 1]}, lacks={"image/filename": kind})
    features = consistency.tfds_files(there, OWN)[schema.TFDS_FEATURES]
    assert (b'"filename"' in features) is has_feature
    assert said(there) == ""


def test_editions_without_counts_claim_no_number() -> None:
    """Their authors publish no number of images."""
    there = made(OFFICIAL, {"test": spread(2000)}, subset=False, edition=IMAGENET_SKETCH.name)
    test = dataclasses.replace(there.splits["test"], wnids=[*OFFICIAL.wnids])
    assert problems(dataclasses.replace(there, splits={"test": test})) == 0
