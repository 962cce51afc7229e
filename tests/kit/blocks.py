"""The blocks of code in the documents, and their execution with small numbers.

tests/contract/test_blocks.py lists the test of each block that makes or reads data.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tests.kit.documents import read, tracked

_FENCE = re.compile(r"^ *```([\w{}-]*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?<=\n\n)(?: {4}.*\n(?:\n(?= {4}))?)+")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
# The verbs that make, change or read a dataset, or read predictions about one.
VERBS = (
    "prepare",
    "resize",
    "adopt",
    "amend",
    "forget",
    "verify",
    "remove-column",
    "replicate",
    "diff",
    "report",
    "show",
    "duplicates",
    "export",
    "train",
    "score",
    "download",
    "preprocess_imagenet",
)
# The list of modules is made from docstrings, which name commands.
GENERATED = "$ architecture.md: Packages and modules"
_COMMAND = re.compile(rf"(?:imagenet-prep|-m imagenet_prep\.?) ?(?:{'|'.join(VERBS)})\b")


class Block(NamedTuple):
    """A block of code; `number` counts the blocks of its language below its heading."""

    page: str
    heading: str
    number: int
    is_python: bool
    text: str

    @property
    def name(self) -> str:
        number = f" {self.number}" if self.number > 1 else ""
        prompt = "" if self.is_python else "$ "
        return f"{prompt}{self.page}: {self.heading}{number}"

    @property
    def has_data(self) -> bool:
        """Whether the block is Python, or runs a verb that makes or reads data."""
        return self.is_python or _COMMAND.search(self.text) is not None


def pages() -> list[Path]:
    return [path for path in tracked(".md") if path.parts[0] in ("README.md", "docs")]


def blocks(page: Path) -> list[Block]:
    """Returns the blocks of a page, in its order."""
    text = read(page)
    found = [(match.start(), match[1], match[2]) for match in _FENCE.finditer(text)]
    # A fence may contain indented lines, which are not separate blocks.
    outside = _FENCE.sub(lambda match: re.sub(r"[^\n]", "`", match[0]), text)
    found += [(match.start(), "", match[0]) for match in _INDENTED.finditer(outside)]
    headings = [(match.start(), match[1]) for match in _HEADING.finditer(outside)]
    counts: dict[tuple[str, bool], int] = {}
    made = []
    for start, language, body in sorted(found):
        heading = [words for place, words in headings if place < start][-1]
        code = textwrap.dedent(body)
        is_python = language == "python" or code.startswith(("from ", "images = "))
        place = heading, is_python
        counts[place] = counts.get(place, 0) + 1
        made.append(Block(page.name, heading, counts[place], is_python, code))
    return made


def all_blocks() -> Iterator[Block]:
    for page in pages():
        yield from blocks(page)


def block(name: str) -> Block:
    """Returns the block with a name."""
    (found,) = [each for each in all_blocks() if each.name == name]
    return found


def small(code: str, numbers: Mapping[str, str]) -> str:
    """Returns code with different paths and numbers; each of the old ones must be in it."""
    for old, new in numbers.items():
        assert old in code, old
        code = code.replace(old, new)
    return code


def run(name: str, numbers: Mapping[str, str], **names: Any) -> dict[str, Any]:
    """Executes the Python block with a name; returns its variables, which include `names`."""
    exec(compile(small(block(name).text, numbers), name, "exec"), names)
    return names
