"""The page of duplicates: groups of several labels first, each with its pictures and facts."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from imagenet_prep.matching.find import GroupImage
from imagenet_prep.reporting import render
from tests.kit.tfrecords import plain

COUNTS = {"places": ["set"], "problems": [], "cross": 0, "groups": 3, "digests": [], "pairs": []}
MOST_PICTURES = 6


def group(first: int, *wnids: str) -> list[GroupImage]:
    """Returns a kept image and its duplicates, of these classes; keys are their numbers."""
    return [
        GroupImage(number, "train", f"image-{number}", 0, wnid, kept=number == first)
        for number, wnid in enumerate(wnids, start=first)
    ]


def test_groups_have_their_own_facts() -> None:
    """A group of equal labels and many images comes after a group of two labels."""
    same = group(0, *["cat"] * (MOST_PICTURES + 3))
    other = group(20, "dog", "cat")
    last = group(30, "fox", "fox")
    page = render.page(
        [same, other, last], lambda _: plain(0), COUNTS, [], made_at=datetime.now(UTC)
    )

    cards = page.split('<li class="card">')[1:]
    shown = [re.findall("image-([0-9]+)", card) for card in cards]
    assert shown == [["20", "21"], [*map(str, range(MOST_PICTURES))], ["30", "31"]]
    assert ["other label" in card for card in cards] == [True, False, False]
    assert ["and 3 more" in card for card in cards] == [False, True, False]
