"""Settings of a dataset: written settings are read back, and foreign ones are refused."""

from __future__ import annotations

from typing import Any

import pytest

from imagenet_prep.core import strict_json
from imagenet_prep.dataset import settings
from imagenet_prep.dataset.settings import Amendment, DatasetSettings, ListDigest, Recipe

PREPARED: dict[str, Any] = {"splits": ["train", "validation"], "short_side": 480}
RESIZED = {"short_side": 64, "quality": 85, "stretch": False, "source": "ab"}


@pytest.mark.parametrize(
    "made",
    [
        DatasetSettings("prepare", {"train": PREPARED, "validation": PREPARED}),
        DatasetSettings("resize", {"train": RESIZED}),
        DatasetSettings("adopt", {"train": {}, "validation": {}}),
    ],
)
def test_written_settings_are_read_back(made: DatasetSettings) -> None:
    assert settings.parse(made.config) == made


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"splits": "train"},
        {"splits": [5]},
        {"verb": "resize"},
        {"verb": "resize", "splits": ["train"]},
        {"verb": "resize", "splits": {"train": 5}},
        {"verb": "rm -rf", "splits": {}},
        {"verb": ["resize"], "splits": {}},
        {"resize": {"train": RESIZED}},
        {"adopt": {"train": 5}, "splits": 5},
    ],
    ids=ascii,
)
def test_foreign_settings_are_refused(config: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        settings.parse(config)


def test_history_of_an_amended_dataset_is_read() -> None:
    base = {"splits": ["train"], "excluded": {"images": 2, "sha256": "e"}, "seed": 3}
    steps = [
        Amendment("a" * 64, exclude=ListDigest(3, "f")),
        Amendment("b" * 64, add=ListDigest(1, "0")),
    ]
    config = {"verb": "amend", "splits": ["train"], "amendments": steps, "base": base}
    read = strict_json.loads(strict_json.dumps(config))
    amended = settings.parse(read)
    assert amended == DatasetSettings("amend", {"train": read}, steps, base)
    assert amended.config == read
    assert amended == settings.amended(["train"], steps, base)
    assert amended.first == settings.parse(base) == DatasetSettings("prepare", {"train": base})


@pytest.mark.parametrize("steps", [None, "x", [{"parent": 1}], [{"exclude": None}], [[]]])
def test_foreign_history_is_refused(steps: object) -> None:
    config = {"verb": "amend", "splits": ["train"], "amendments": steps, "base": {}}
    with pytest.raises(ValueError, match="expected|missing"):
        settings.parse(config)
    assert settings.recognised(config) == DatasetSettings("", {})


RECIPE: dict[str, Any] = {
    "splits": ("train", "validation"),
    "train_shards": None,
    "validation_shards": 4,
    "short_side": 480,
    "quality": 90,
    "check": "full",
    "seed": 7,
    "label_offset": 1,
    "subset_classes": (),
    "subset_per_class": None,
    "boxes": False,
}


def recipe(**more: Any) -> Recipe:
    return Recipe(**RECIPE | more)


@pytest.mark.parametrize(
    ("more", "held_out", "from_source"),
    [
        ({}, None, ("train", "validation")),
        ({"splits": ("train",), "holdout": "10% by class"}, "holdout", ("train",)),
        (
            {"splits": ("train", "validation", "holdout"), "holdout": "100 by class"},
            "holdout",
            ("train", "validation"),
        ),
        ({"holdout_per_class": 5}, "validation", ("train",)),
        ({"holdout_per_class": 5, "splits": ("validation", "train")}, "validation", ("train",)),
    ],
)
def test_held_out_images_come_from_train(
    more: dict[str, Any], held_out: str | None, from_source: tuple[str, ...]
) -> None:
    made = recipe(**more)
    assert made.held_out_split == held_out
    assert made.source_splits == from_source


@pytest.mark.parametrize(
    "more",
    [
        {"holdout_per_class": 5, "holdout": "10%"},
        {"holdout_per_class": 5, "splits": ("train",)},
        {"holdout_per_class": 5, "splits": ("train", "validation", "holdout")},
    ],
)
def test_holdouts_that_contradict_each_other_are_refused(more: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        _ = recipe(**more).held_out_split


def test_defaults_are_not_stored() -> None:
    assert recipe().config == RECIPE | {
        "splits": ["train", "validation"],
        "subset_classes": [],
    }
    more = {
        "holdout": "5 by class",
        "holdout_per_class": 1,
        "border": 2,
        "encoded_from_pixels": "x",
        "excluded": ListDigest(1, "e"),
        "orientation": "turn",
    }
    stored = recipe(**more).config
    assert {name: stored[name] for name in more} == more | {
        "excluded": {"images": 1, "sha256": "e"}
    }


@pytest.mark.parametrize(
    ("config", "holdout"),
    [
        (PREPARED, "holdout"),
        (PREPARED | {"holdout_per_class": 5}, "validation"),
        (PREPARED | {"holdout_per_class": 0}, "holdout"),
        ({"verb": "resize", "splits": {"train": RESIZED}}, "holdout"),
        (
            {"verb": "resize", "splits": {"train": RESIZED | {"holdout_per_class": 5}}},
            "validation",
        ),
        (
            {"verb": "amend", "splits": ["train"], "amendments": [], "base": PREPARED},
            "holdout",
        ),
        (
            {
                "verb": "amend",
                "splits": ["train"],
                "amendments": [],
                "base": PREPARED | {"holdout_per_class": 5},
            },
            "validation",
        ),
    ],
)
def test_the_holdout_shares_its_keys_with_train(config: dict[str, Any], holdout: str) -> None:
    made = settings.parse(config)
    assert made.holdout_split == holdout
    origins = {split: made.origin(split) for split in ("train", "validation", "holdout", "test")}
    expected = {split: split for split in origins} | {holdout: "train"}
    assert origins == expected


@pytest.mark.parametrize(
    ("config", "side"),
    [
        (PREPARED, 480),
        ({"verb": "resize", "splits": {"train": RESIZED}}, 64),
        ({"verb": "resize", "splits": {"validation": RESIZED}}, None),
        ({"verb": "adopt", "splits": {"train": {}}}, None),
        ({"verb": "resize", "splits": {"train": {"short_side": None}}}, None),
        ({"verb": "amend", "splits": ["train"], "amendments": [], "base": PREPARED}, 480),
    ],
)
def test_the_first_run_decides_the_short_side(config: dict[str, Any], side: int | None) -> None:
    assert settings.parse(config).short_side("train") == side


@pytest.mark.parametrize(
    ("verb", "all_at_once"),
    [("prepare", True), ("amend", True), ("resize", False), ("adopt", False), ("", False)],
)
def test_some_verbs_make_all_splits_at_once(verb: str, all_at_once: bool) -> None:
    assert DatasetSettings(verb, {}).all_at_once is all_at_once


def test_settings_of_other_programs_have_no_verb() -> None:
    assert settings.recognised({"verb": "rm"}) == DatasetSettings("", {})
    assert settings.recognised(PREPARED).verb == "prepare"


def test_amended_settings_keep_their_base() -> None:
    steps = [Amendment("a" * 64, exclude=ListDigest(3, "f"), splits=("train",))]
    made = settings.amended(("train",), steps, PREPARED)
    assert (made.verb, made.amendments, made.base) == ("amend", steps, PREPARED)
    assert made.first == settings.parse(PREPARED)
    assert settings.prepared(recipe()).splits.keys() == {"train", "validation"}
