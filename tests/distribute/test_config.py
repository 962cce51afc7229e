"""Flags of replicate that contradict each other."""

from __future__ import annotations

import itertools

import pytest

from imagenet_prep.distribute.config import ReplicateConfig
from tests.kit.messages import says


@pytest.mark.parametrize("names", [*itertools.combinations(("check", "repair", "dry_run"), 2)])
def test_a_run_checks_repairs_or_previews(names: tuple[str, str]) -> None:
    for name in names:
        ReplicateConfig(dataset="/set", to="/copy", **{name: True})
    with pytest.raises(ValueError, match=says("check-repair-dry-run-expected-most")):
        ReplicateConfig(dataset="/set", to="/copy", **dict.fromkeys(names, True))
