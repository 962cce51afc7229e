"""The plan of a seed stays what it was: other code, or other Python, deals no image elsewhere."""

from __future__ import annotations

import json

from tests.golden import regenerate


def test_seed_42_gives_the_plan_it_always_gave() -> None:
    assert regenerate.content() == json.loads(regenerate.PLAN.read_text())
