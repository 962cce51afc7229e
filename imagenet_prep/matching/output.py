"""The files that say what was found: `pairs.csv`, and a list of keys for each split."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from imagenet_prep.matching.groups import Group

PAIRS, PAGE = "pairs.csv", "duplicates.html"
HEADER = ("group", "split", "key", "class_index", "kind", "distance", "kept")


def pairs(groups: Sequence[Group]) -> bytes:
    """Returns `pairs.csv`: RFC 4180, one line an image of a group."""
    text = io.StringIO()
    lines = csv.writer(text)
    lines.writerow(HEADER)
    for number, group in enumerate(groups, start=1):
        for each in group:
            kept = "yes" if each.kept else "no"
            what = (each.split, each.key, each.class_index, each.kind, each.distance, kept)
            lines.writerow((number, *what))
    return text.getvalue().encode()


def excluded(groups: Sequence[Group], split: str) -> list[str]:
    """Returns the keys of a split that are not kept, in order."""
    return sorted(m.key for group in groups for m in group if m.split == split and not m.kept)
