"""The settings of a data set: what is written is read, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from imagenet_prep.dataset import settings
from imagenet_prep.dataset.settings import Settings

PREPARED: dict[str, Any] = {"splits": ["train", "validation"], "short_side": 480}
RESIZED = {"short_side": 64, "quality": 85, "stretch": False, "source": "ab"}


@pytest.mark.parametrize(
    "made",
    [
        Settings("prepare", {"train": PREPARED, "validation": PREPARED}),
        Settings("resize", {"train": RESIZED}),
        Settings("adopt", {"train": {}, "validation": {}}),
    ],
)
def test_what_is_written_is_read(made: Settings) -> None:
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
