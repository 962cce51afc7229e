"""The settings of a data set: what is written is read, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from imagenet_prep.core import strict_json
from imagenet_prep.dataset import settings
from imagenet_prep.dataset.settings import Amendment, DatasetSettings, ListDigest

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
def test_what_is_written_is_read(made: DatasetSettings) -> None:
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
def test_what_this_program_never_wrote_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        settings.parse(config)


def test_the_history_of_an_amended_set_is_read_from_its_settings() -> None:
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
def test_a_history_that_this_program_never_wrote_is_refused(steps: object) -> None:
    config = {"verb": "amend", "splits": ["train"], "amendments": steps, "base": {}}
    with pytest.raises(ValueError, match="expected|missing"):
        settings.parse(config)
    assert settings.recognised(config) == DatasetSettings("", {})
