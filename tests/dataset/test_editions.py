"""Counts of the published editions, on lists of counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from imagenet_prep.dataset import class_list
from imagenet_prep.dataset.class_list import (
    FACE_BLURRED,
    FALL11,
    WINTER21,
    WINTER21_P,
    ClassList,
    Edition,
)
from imagenet_prep.sources import folder, labels
from tests.kit.layouts import write

OFFICIAL = labels.official_classes()


def classes_of(number: int) -> ClassList:
    return ClassList(tuple(f"n{i:08d}" for i in range(number)), ("",) * number)


def spread(total: int, number: int) -> list[int]:
    return [total // number + (i < total % number) for i in range(number)]


@pytest.mark.parametrize("edition", [FALL11, WINTER21, WINTER21_P, *class_list.OF_TIMM])
def test_edition_is_recognised_by_its_counts(edition: Edition) -> None:
    classes = classes_of(edition.num_classes)
    assert class_list.recognised(classes, edition.examples) == edition.name
    for split, total in edition.examples.items():
        counts = spread(total, edition.num_classes)
        assert edition.problems(split, classes, counts) == []
        counts[0] -= 1
        assert edition.problems(split, classes, counts) == [
            f"{split} has {total - 1:,} images, expected {total:,}"
        ]
        assert class_list.recognised(classes, {**edition.examples, split: total - 1}) == ""
    assert class_list.recognised(classes_of(edition.num_classes - 1), edition.examples) == ""


def test_blurred_edition_is_distinguished_from_the_original() -> None:
    blurred = {"train": 1_281_066, "validation": 49_997}
    assert class_list.recognised(OFFICIAL, blurred) == FACE_BLURRED.name
    # Three missing validation files make no different edition.
    for split, total in blurred.items():
        assert class_list.recognised(OFFICIAL, {split: total}) == ""
        name = {"train": "train_blurred", "validation": "val_blurred"}[split]
        assert class_list.recognised(OFFICIAL, {split: total}, [name]) == FACE_BLURRED.name
    assert class_list.recognised(OFFICIAL, {**blurred, "validation": 50_000}) == ""
    assert class_list.recognised(OFFICIAL, {"train": 1_281_167, "validation": 50_000}) == ""
    assert class_list.recognised(classes_of(1000), blurred) == ""
    assert class_list.recognised(OFFICIAL, {}) == ""


def test_folder_name_determines_the_expected_counts(tmp_path: Path) -> None:
    for split in ("train_blurred", "val_blurred"):
        write(tmp_path / split / "n01440764" / "n01440764_1.jpg", b"1")
    for split in ("imagenet21k_train", "imagenet21k_val", "imagenet21k_small_classes"):
        write(tmp_path / "p" / split / "n00015388" / "n00015388_1.JPEG", b"1")
    write(tmp_path / "p" / "words.txt", b"n00015388\tanimal, fauna\n")
    blurred = folder.find(tmp_path, ["train", "validation"])
    processed = folder.find(tmp_path / "p", ["train", "validation"])

    assert blurred.classes.official
    assert blurred.count_problems("train", [1] + [0] * 999)[0] == (
        "train has 1 image, expected 1,281,066"
    )
    # With a different validation folder, the source is still a part of the blurred edition.
    (tmp_path / "val_blurred").rename(tmp_path / "val")
    mixed = folder.find(tmp_path, ["train", "validation"])
    assert mixed.count_problems("validation", [50] * 1000) == [
        "validation has 50,000 images, expected 49,997"
    ]
    assert processed.classes == ClassList(("n00015388",), ("animal, fauna",))
    assert processed.count_problems("validation", [1]) == [
        "the class list has 1 class, but ImageNet-21K-P winter21 has 10,450"
    ]


def test_counts_of_timm_tars_match_their_pages() -> None:
    """huggingface.co/datasets/timm: imagenet-12k-wds, imagenet-22k-wds, imagenet-w21-webp-wds."""
    assert [(e.num_classes, e.examples) for e in class_list.OF_TIMM] == [
        (11_821, {"train": 12_129_687, "validation": 472_840}),
        (21_841, {"train": 13_673_551, "validation": 472_840}),
        (19_167, {"train": 13_151_276}),
    ]
