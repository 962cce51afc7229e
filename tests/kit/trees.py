"""Trees of tiny files, written in one line: `train/{cat,dog}/1.jpg README`."""

from __future__ import annotations

import itertools
from pathlib import Path

from tests.kit.layouts import write

JPEG = b"\xff\xd8\xff\xe0"


def made(root: Path, files: str) -> Path:
    """Writes a file for each word; `{a,b}` gives several names of a folder or of a file."""
    for word in files.split():
        for path in _spelt(word):
            write(root / path, JPEG if path.endswith((".jpg", ".JPEG", "IMG")) else b"text")
    return root


def _spelt(word: str) -> list[str]:
    before, brace, rest = word.partition("{")
    if not brace:
        return [word]
    choices, _, after = rest.partition("}")
    words = [f"{before}{each}{after}" for each in choices.split(",")]
    return [*itertools.chain.from_iterable(map(_spelt, words))]
