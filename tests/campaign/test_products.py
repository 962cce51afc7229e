"""Exit code 0 is true: after a loss, and if two commands meet; short here, in full when asked."""

from __future__ import annotations

import pytest

from tests.campaign import losing, meeting
from tests.campaign.scenes import Theatre
from tests.kit.lengths import long_but

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", long_but(("adopt",), losing.NAMES))
def test_a_product_that_loses_a_file_is_made_again_or_refused(theatre: Theatre, name: str) -> None:
    assert losing.lose(theatre, name) == []


@pytest.mark.parametrize("name", long_but(("diff",), meeting.NAMES))
def test_what_ends_well_is_complete_if_two_commands_meet(theatre: Theatre, name: str) -> None:
    calls = [("rename", 1), *meeting.sample(theatre, name, 2, seed=29)]
    violations = [meeting.meet(theatre, name, *call) for call in calls]

    assert [each for each in violations if each] == []


def test_a_product_that_is_not_complete_is_found(theatre: Theatre) -> None:
    scene = theatre.scene("diff")
    complete = scene.after["differences.csv"]
    scene.after["differences.csv"] += b"one more"
    try:
        violations = [*losing.lose(theatre, "diff"), meeting.meet(theatre, "diff", "rename", 1)]
    finally:
        scene.after["differences.csv"] = complete

    assert len(violations) == 3
    assert all("other bytes, or missing" in each for each in violations)
