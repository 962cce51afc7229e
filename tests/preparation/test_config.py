"""Settings of `prepare`: flags that contradict each other are refused."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest

from imagenet_prep.dataset.settings import Recipe, parse, prepared
from imagenet_prep.preparation.config import PrepareConfig
from tests.kit.messages import says

TRAIN: dict[str, Any] = {"splits": ("train",)}
ALL = ["train", "validation", "holdout"]
FIELDS = [field.name for field in dataclasses.fields(Recipe)]
HELD: dict[str, Any] = {"holdout_per_class": 2}
SERVER: dict[str, Any] = {"source": "https://host/set"}


def config(**given: Any) -> PrepareConfig:
    return PrepareConfig(**{"source": "/in", "out": "/out", **given})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        *(
            ({"holdout": n}, says("holdout-expected-number-images-such", n))
            for n in ("", "-1", "x", "1.5", "100%", "1%%")
        ),
        ({"holdout": "5", "splits": ("validation",)}, says("holdout-moves-images-out-train")),
        ({**HELD, **TRAIN}, says("holdout-per-class-makes-both-train-validation")),
        (
            {**HELD, "splits": ("validation",)},
            says("holdout-per-class-makes-both-train-validation"),
        ),
        ({**HELD, "holdout": "5"}, says("holdout-per-class-makes-both-train-validation")),
        ({**TRAIN, "validation_shards": 2}, says("shards-not-splits", "validation", "validation")),
        (
            {"splits": ("validation",), "train_shards": 2},
            says("shards-not-splits", "train", "train"),
        ),
        ({"rehash": True, "check": "header"}, says("rehash-no-effect-check-header")),
        ({**SERVER, "source_kind": "folder"}, says("source-only-archives-ilsvrc2012-imagenet-21k")),
    ],
)
def test_flags_that_contradict_each_other_are_refused(
    given: dict[str, Any], said: re.Pattern[str]
) -> None:
    with pytest.raises(ValueError, match=said):
        config(**given)


@pytest.mark.parametrize(
    "given",
    [
        {"dry_run": True},
        {"subset_classes": ("1",)},
        {"subset_classes": ("0", "n01440764")},
        *({"holdout": number} for number in ("0", "99999", "99.9%", "0.1%")),
        {"holdout": "5", **TRAIN},
        HELD,
        {**HELD, "splits": ("validation", "train")},
        {**TRAIN, "train_shards": 2},
        {"rehash": True},
        {"rehash": True, "check": "header", **SERVER},
        {**SERVER, "source_kind": "imagenet21k"},
    ],
)
def test_consistent_flags_are_accepted(given: dict[str, Any]) -> None:
    assert config(**given)


def test_manifest_lists_settings_in_field_order() -> None:
    """A message about different settings lists them in this order."""
    stored = config(holdout="10%", exclude="list", no_boxes=True).recipe().config
    assert stored == {
        "splits": ["train", "validation", "holdout"],
        "train_shards": None,
        "validation_shards": None,
        "short_side": 480,
        "quality": 90,
        "check": "decode",
        "seed": 0,
        "label_offset": 1,
        "subset_classes": [],
        "subset_per_class": None,
        "holdout": "10% by class",
        "boxes": False,
    }
    assert [*stored] == [name for name in FIELDS if name in stored]


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ({"holdout": "0012"}, {"holdout": "12 by class", "splits": ALL}),
        ({"holdout": "123456789"}, {"holdout": "123456789 by class", "splits": ALL}),
        ({"holdout": "12.345678%"}, {"holdout": "12.345678% by class", "splits": ALL}),
        ({"holdout": "2.50%"}, {"holdout": "2.5% by class", "splits": ALL}),
        ({"holdout": "0%"}, {}),
        ({"holdout": "5", **TRAIN}, {"holdout": "5 by class", "splits": ["train", "holdout"]}),
        ({**HELD, "splits": ("validation", "train")}, {"holdout_per_class": 2}),
        ({"keep_original": True}, {"short_side": None}),
        ({"short_side": 256, "quality": 80}, {"short_side": 256, "quality": 80}),
        ({"subset_classes": ("5",), "subset_per_class": 3}, {"subset_classes": ["5"]}),
        ({"orientation": "apply"}, {"orientation": "apply"}),
        ({"train_shards": 7, "validation_shards": 3}, {"train_shards": 7, "validation_shards": 3}),
        ({"seed": -5, "label_offset": 0, "check": "header"}, {"seed": -5, "label_offset": 0}),
    ],
)
def test_flags_determine_the_recipe(given: dict[str, Any], stored: dict[str, Any]) -> None:
    plain = config().recipe().config
    made = config(**given).recipe().config
    assert {name: made[name] for name in stored} == stored
    changed = {name for name in made if name not in plain or made[name] != plain[name]}
    assert changed <= stored.keys() | given.keys()
    assert made["boxes"]


@pytest.mark.parametrize(
    ("given", "source", "new"),
    [
        ({}, ("train", "validation"), None),
        ({"holdout": "5"}, ("train", "validation"), "holdout"),
        ({"holdout": "5%", **TRAIN}, ("train",), "holdout"),
        (HELD, ("train",), "validation"),
        ({"splits": ("holdout", "train")}, ("train", "holdout"), None),
        ({"splits": ("test",)}, ("test",), None),
    ],
)
def test_split_made_from_train_is_not_read(
    given: dict[str, Any], source: tuple[str, ...], new: str | None
) -> None:
    recipe = config(**given).recipe()
    assert (recipe.source_splits, recipe.held_out_split) == (source, new)
    made = prepared(recipe)
    assert (made.verb, [*made.splits]) == ("prepare", [*recipe.splits])
    assert parse(made.config) == made
    assert made.holdout_split == (new or "holdout")
    origins = {split: made.origin(split) for split in made.splits}
    assert origins == {
        split: "train" if split in ("holdout", new) else split for split in recipe.splits
    }
    assert all(made.short_side(split) == 480 for split in made.splits)


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("max_bad", 0, None),
        ("holdout_per_class", 0, None),
        ("train_shards", 1, 99_999),
        ("validation_shards", 1, 99_999),
        ("short_side", 1, None),
        ("quality", 1, 100),
        ("seed", -(2**63), 2**63 - 1),
        ("label_offset", 0, 1),
        ("subset_per_class", 1, None),
    ],
)
def test_each_number_has_bounds(name: str, least: int, most: int | None) -> None:
    assert config(**{name: least})
    if most is not None:
        assert config(**{name: most})
    for value in (least - 1, None if most is None else most + 1):
        if value is not None:
            with pytest.raises(ValueError) as refused:
                config(**{name: value})
            assert f"--{name.replace('_', '-')}" in str(refused.value)


@pytest.mark.parametrize(
    ("given", "allowed"),
    [
        ({}, None),
        ({"max_bad": 3}, 3),
        ({"on_bad_image": "fail"}, 0),
        ({"on_bad_image": "fail", "max_bad": 3}, 0),
    ],
)
def test_bad_images_are_allowed_on_request(given: dict[str, Any], allowed: int | None) -> None:
    assert config(**given).allowed_bad_images == allowed


@pytest.mark.parametrize(
    ("amount", "stored"),
    [
        ("0", ""),
        ("0%", ""),
        ("5", "5 by class"),
        ("10%", "10% by class"),
        ("0.5%", "0.5% by class"),
    ],
)
def test_a_holdout_adds_its_split(amount: str, stored: str) -> None:
    recipe = config(holdout=amount).recipe()
    assert recipe.holdout == stored
    assert ("holdout" in recipe.splits) is bool(stored)


def test_a_source_with_a_holdout_needs_no_flag() -> None:
    assert config(splits=("train", "holdout")).recipe().splits == ("train", "holdout")
    with pytest.raises(ValueError) as refused:
        config(splits=("train", "holdout"), holdout="5")
    assert "--holdout" in str(refused.value)


@pytest.mark.parametrize("kind", ["folder", "table", "parquet", "recordio", "cifar10", "mnist"])
def test_some_sources_are_read_only_from_folders(kind: str) -> None:
    assert config(source_kind=kind)
    with pytest.raises(ValueError) as refused:
        config(source_kind=kind, **SERVER)
    assert "--source" in str(refused.value)
