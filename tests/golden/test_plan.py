"""The plan of a seed never changes, even if the code or Python changes."""

from __future__ import annotations

import json

from tests.golden import regenerate


def test_seed_42_gives_the_golden_plan() -> None:
    assert regenerate.content() == json.loads(regenerate.PLAN.read_text())
