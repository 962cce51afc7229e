"""The published numbers of each edition, as on the pages of their authors.

A wrong number here would call a complete dataset a subset, or a subset complete.
"""

from __future__ import annotations

import pytest

from imagenet_prep.dataset import class_list
from imagenet_prep.dataset.class_list import ClassList, Edition
from imagenet_prep.sources.labels import official_classes

OFFICIAL = official_classes()

COUNTS: dict[str, tuple[int, dict[str, int]]] = {
    "ILSVRC2012": (1000, {"train": 1_281_167, "validation": 50_000}),
    "ILSVRC2012 face-blurred": (1000, {"train": 1_281_066, "validation": 49_997}),
    "ILSVRC2012 test": (1, {"test": 100_000}),
    "ImageNet-21K fall11": (21_841, {"train": 14_197_122}),
    "ImageNet-21K winter21": (19_167, {"train": 13_153_500}),
    "ImageNet-21K-P fall11": (11_221, {"train": 11_797_632, "validation": 561_052}),
    "ImageNet-21K-P winter21": (10_450, {"train": 11_060_223, "validation": 522_500}),
    "ImageNet-12k": (11_821, {"train": 12_129_687, "validation": 472_840}),
    "ImageNet-22k": (21_841, {"train": 13_673_551, "validation": 472_840}),
    "ImageNet-21K winter21 of timm": (19_167, {"train": 13_151_276}),
    "imagenetv2-matched-frequency": (1000, {"test": 10_000}),
    "imagenetv2-threshold0.7": (1000, {"test": 10_000}),
    "imagenetv2-top-images": (1000, {"test": 10_000}),
    "imagenetv2": (1000, {"test": 10_000}),
    "imagenet-a": (200, {"test": 7_500}),
    "imagenet-r": (200, {"test": 30_000}),
    "imagenet-o": (200, {"test": 2_000}),
    "imagenet-sketch": (1000, {}),
    "imagenet-c": (1000, {"test": 50_000}),
    "objectnet": (0, {}),
}
RANGES = {
    "ILSVRC2012": {"train": (732, 1300), "validation": (50, 50)},
    "ILSVRC2012 face-blurred": {"train": (631, 1300), "validation": (47, 50)},
    "imagenetv2-matched-frequency": {"test": (10, 10)},
    "imagenetv2-threshold0.7": {"test": (10, 10)},
    "imagenetv2-top-images": {"test": (10, 10)},
    "imagenetv2": {"test": (10, 10)},
    "imagenet-c": {"test": (50, 50)},
}
COMPLETE_SQUARE = {"imagenet-c", "objectnet"}


def edition(name: str) -> Edition:
    found = class_list.ILSVRC2012 if name == "ILSVRC2012" else class_list.named(name)
    assert found is not None
    return found


@pytest.mark.parametrize("name", COUNTS)
def test_editions_have_the_published_numbers(name: str) -> None:
    found = edition(name)
    assert (found.num_classes, dict(found.examples)) == COUNTS[name]
    assert dict(found.class_range) == RANGES.get(name, {})
    assert found.crop == (1.0 if name in COMPLETE_SQUARE else None)


def test_no_edition_is_without_numbers() -> None:
    names = {"ILSVRC2012"}
    names |= {each.name for each in (*class_list.OF_TIMM, *class_list.EVALUATION)}
    names |= {"ILSVRC2012 face-blurred", "ILSVRC2012 test"}
    assert names <= COUNTS.keys()
    assert class_list.named("ILSVRC2012") is None
    assert class_list.named("mine") is None


def classes(count: int) -> ClassList:
    wnids = tuple(f"n{number:08}" for number in range(count))
    return ClassList(wnids, ("",) * count)


@pytest.mark.parametrize(
    "name", [name for name in COUNTS if COUNTS[name][0] > 1000 and "train" in COUNTS[name][1]]
)
def test_editions_are_recognised_by_exact_counts(name: str) -> None:
    count, totals = COUNTS[name]
    assert class_list.recognised(classes(count), totals) == name
    assert class_list.recognised(classes(count + 1), totals) == ""
    assert class_list.recognised(classes(count), {}) == ""
    for split in totals:
        for step in (-1, 1):
            assert (
                class_list.recognised(classes(count), totals | {split: totals[split] + step}) == ""
            )


def test_blurred_images_need_both_splits_or_a_name() -> None:
    blurred = COUNTS["ILSVRC2012 face-blurred"][1]
    name = "ILSVRC2012 face-blurred"
    train = {"train": blurred["train"]}
    assert class_list.recognised(OFFICIAL, blurred) == name
    assert class_list.recognised(OFFICIAL, train) == ""
    assert class_list.recognised(OFFICIAL, train, ["train_blurred"]) == name
    assert class_list.recognised(OFFICIAL, train, ["train"]) == ""
    assert class_list.recognised(classes(1000), blurred) == ""


@pytest.mark.parametrize(
    ("name", "count", "found"),
    [
        ("train_blurred", 1000, "ILSVRC2012 face-blurred"),
        ("val_blurred", 3, "ILSVRC2012 face-blurred"),
        ("fall11_whole.tar", 21_841, "ImageNet-21K fall11"),
        ("winter21_whole", 19_167, "ImageNet-21K winter21"),
        ("imagenet21k_train", 11_221, "ImageNet-21K-P fall11"),
        ("imagenet21k_train", 10_450, "ImageNet-21K-P winter21"),
        ("imagenet21k_val", 10_835, "ImageNet-21K-P winter21"),
        ("imagenet21k_val", 10_836, "ImageNet-21K-P fall11"),
        ("train", 1000, None),
    ],
)
def test_names_of_folders_mean_the_closest_edition(
    name: str, count: int, found: str | None
) -> None:
    edition = class_list.called(name, classes(count))
    assert (edition and edition.name) == found
    assert class_list.called(name, ClassList(("cat",), ("",))) is None


@pytest.mark.parametrize(
    ("name", "index"),
    [
        ("Straße", 0),
        ("strasse", 0),
        ("two words", 1),
        ("two_words", 1),
        ("Two  Words", 1),
        ("cafe\u0301", 2),
        ("a", 3),
        ("A", 4),
        ("B", None),
        ("b", 5),
        ("none", None),
    ],
)
def test_folders_are_classes_in_any_case(name: str, index: int | None) -> None:
    wnids = ("Straße", "two_words", "caf\xe9", "a", "A", "b", "bb", "BB")
    there = ClassList(wnids, ("",) * len(wnids))
    assert there.of_folder(name) == (5 if name == "B" else index)
    assert there.of_folder("bB") is None
    assert there.of_folder("bb") == 6
