"""Columns of text for tests: captions of images, written by the writer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from imagenet_prep.core.world import World
from imagenet_prep.dataset import column
from imagenet_prep.read import ColumnWriter
from tests.kit.columns import NATIVE

CAPTIONS = "captions"
# Texts that formats often break: none, an empty one, line ends, NUL, emoji, quotes and a long text.
TEXTS: tuple[tuple[str, ...], ...] = (
    ("a dog", "a brown dog"),
    (),
    ("",),
    ("two\nlines\r\nand a tab\t",),
    ("NUL \0 and \x85\u2028\u2029 are characters",),
    ("🐕‍🦺 Hündin, 犬", "e\u0301 is not \u00e9", "🏴󠁧󠁢󠁥󠁮󠁧󠁿"),
    ('"quoted", \\n and [1], {"a": 1}',),
    ("long " * 10_000,),
)


def texts_of(number: int) -> list[str]:
    """Returns the texts of an example; no two examples with texts have the same ones."""
    return [f"{number}: {text}" if text else "" for text in TEXTS[number % len(TEXTS)]]


def begin(root: Path, split: str = "train", **more: Any) -> ColumnWriter:
    settings: dict[str, Any] = {"batch_size": 8, "about": {"made": "in a test"}, "world": World()}
    settings["reader"] = NATIVE | {"fields": ("mask",)}
    return ColumnWriter(root, split, CAPTIONS, (), column.TEXT, **settings | more)


def rows_of(batch: Any) -> list[Sequence[str]]:
    return [texts_of(number) for number in batch["number"].tolist() if number >= 0]


def write(root: Path, split: str = "train", **more: Any) -> int:
    """Writes the column; returns the number of records with computed rows."""
    computed = 0
    with begin(root, split, **more) as writer:
        for batch in writer:
            rows = rows_of(batch)
            computed += len(rows)
            writer.write(rows)
    return computed


def file_of(root: Path, shard: str) -> Path:
    return root / column.file_name(CAPTIONS, shard, column.ENDINGS[1])


def record_of(root: Path) -> column.Column:
    path = root / column.record_name(CAPTIONS)
    return column.loads(path.read_bytes(), str(path), CAPTIONS)
