"""Trees of tiny files, written in one line: `train/{cat,dog}/1.jpg README`."""

from __future__ import annotations

from pathlib import Path

from tests.kit.layouts import write

JPEG = b"\xff\xd8\xff\xe0"


def made(root: Path, files: str) -> Path:
    """Writes a file for each word; `{a,b}` stands for several names of a folder, or of a file."""
    for word in files.split():
        for path in _spelt(word):
            write(root / path, JPEG if path.endswith((".jpg", ".JPEG", "IMG")) else b"text")
    return root


def _spelt(word: str) -> list[str]:
    before, brace, rest = word.partition("{")
    if not brace:
        return [word]
    choices, _, after = rest.partition("}")
    return [path for each in choices.split(",") for path in _spelt(f"{before}{each}{after}")]
