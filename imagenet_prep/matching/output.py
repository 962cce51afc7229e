"""Writes the result files of `duplicates`: pairs.csv, the page, and the excluded keys by split."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

from imagenet_prep.dataset import schema
from imagenet_prep.matching.groups import Group
from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.storage.local_file import removed_on_failure, storage_errors
from imagenet_prep.storage.new_file import new_file

PAIRS = "pairs.csv"
PAGE = "duplicates.html"
HEADER = (
    "group",
    "split",
    "key",
    "class_index",
    "kind",
    "distance",
    "kept",
    "proven_against",
    "elsewhere",
)


def publish(
    out: LocalStore,
    groups: Sequence[Group],
    excluded: Mapping[str, Sequence[str]],
    page: str | None,
) -> None:
    """Writes pairs.csv, the keys to exclude and the page; removes the files of earlier runs."""
    content = {
        f"exclude-{split}.txt": "".join(f"{key}\n" for key in keys).encode()
        for split, keys in excluded.items()
    }
    if page is not None:
        content[PAGE] = page.encode("utf-8", "replace")
    content[PAIRS] = pairs(groups)
    with out.lock():
        temporaries: list[Path] = [out.temporary() for _ in content]
        with removed_on_failure(*temporaries):
            for path, data in zip(temporaries, content.values(), strict=True):
                with storage_errors("write", path), new_file(path) as file:
                    file.write(data)
            out.remove(PAIRS, PAGE, *(f"exclude-{split}.txt" for split in schema.SPLITS))
            for path, name in zip(temporaries, content, strict=True):
                out.publish(path, name)


def pairs(groups: Sequence[Group]) -> bytes:
    """Returns the content of `pairs.csv` (RFC 4180), with one line for each image of each group."""
    text = io.StringIO()
    lines = csv.writer(text)
    lines.writerow(HEADER)
    for number, group in enumerate(groups, start=1):
        for member in group:
            kept = "yes" if member.kept else "no"
            columns = (member.split, member.key, member.class_index, member.kind, member.distance)
            lines.writerow((number, *columns, kept, member.proven_against, member.elsewhere))
    return text.getvalue().encode()


def excluded(groups: Sequence[Group], split: str) -> list[str]:
    """Returns a sorted list of the images of a split that are not kept."""
    members = itertools.chain.from_iterable(groups)
    return sorted(each.line for each in members if each.split == split and not each.kept)
