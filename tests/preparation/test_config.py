"""The settings of `prepare`: flags that contradict each other are refused."""

from __future__ import annotations

from typing import Any

import pytest

from imagenet_prep.preparation.config import Config

TRAIN: dict[str, Any] = {"splits": ("train",)}
HELD: dict[str, Any] = {"holdout_per_class": 2}
SERVER: dict[str, Any] = {"source": "https://host/set"}


def config(**given: Any) -> Config:
    return Config(**{"source": "/in", "out": "/out", **given})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        *(({"holdout": n}, "expected a number of") for n in ("", "-1", "x", "1.5", "100%", "1%%")),
        ({"holdout": "5", "splits": ("validation",)}, "Add train to --splits"),
        ({**HELD, **TRAIN}, "Include both in --splits"),
        ({**HELD, "splits": ("validation",)}, "Include both in --splits"),
        ({**HELD, "holdout": "5"}, "and remove --holdout"),
        ({**TRAIN, "validation_shards": 2}, "--validation-shards: validation is not in"),
        ({"splits": ("validation",), "train_shards": 2}, "--train-shards: train is not in"),
        ({"rehash": True, "check": "header"}, "--check header, which computes no md5"),
        ({**SERVER, "source_kind": "folder"}, "only the archives of ILSVRC2012"),
    ],
)
def test_flags_that_contradict_each_other_are_refused(given: dict[str, Any], said: str) -> None:
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
def test_flags_that_agree_are_taken(given: dict[str, Any]) -> None:
    assert config(**given)
