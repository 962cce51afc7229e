"""The files that say what was found: `pairs.csv`, and a list of keys for each split."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from imagenet_prep.matching.groups import Group, excluded

PAIRS, PAGE = "pairs.csv", "duplicates.html"
HEADER = ("group", "split", "key", "class_index", "kind", "distance", "kept")


def exclude_name(split: str) -> str:
    """Returns the name of the list of a split's keys that are not kept."""
    return f"exclude-{split}.txt"


def pairs(groups: Sequence[Group]) -> bytes:
    """Returns `pairs.csv`: RFC 4180, one line an image of a group."""
    text = io.StringIO()
    lines = csv.writer(text)
    lines.writerow(HEADER)
    for number, group in enumerate(groups, start=1):
        for each in group.members:
            kept = "yes" if each.kept else "no"
            what = (each.split, each.key, each.class_index, each.kind, each.distance, kept)
            lines.writerow((number, *what))
    return text.getvalue().encode()


def exclude(groups: Sequence[Group], split: str) -> bytes:
    """Returns the keys of a split that are not kept, one a line."""
    return "".join(f"{key}\n" for key in excluded(groups, split)).encode()
