"""Commands in messages can be pasted into a shell, also for paths with blanks."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.kit.command import REPOSITORY
from tests.kit.documents import product_modules

# The end of a text before a word of a command, such as a path.
_COMMAND = re.compile(r"imagenet-prep [a-z][a-z-]*( --?[a-z][a-z-]*| [A-Z]+)* $")
_QUOTED = ("shlex.quote(", "shlex.join(")
# Names of columns and of frameworks have no blanks.
_WITHOUT_BLANKS = {"self.column.name", "ours.name", "framework"}


def unquoted(code: str) -> Iterator[str]:
    """Yields the words of commands in f-strings that a shell would split at blanks."""
    tree = ast.parse(code)
    quoted: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and ast.unparse(node.value).startswith(_QUOTED):
            quoted.update(map(ast.unparse, node.targets))
    for text in ast.walk(tree):
        if not isinstance(text, ast.JoinedStr):
            continue
        before = ""
        for part in text.values:
            if isinstance(part, ast.FormattedValue):
                word = ast.unparse(part.value)
                is_safe = word.startswith(_QUOTED) or word in quoted | _WITHOUT_BLANKS
                if _COMMAND.search(before) and not is_safe:
                    yield word
                before += "WORD"
            else:
                before += ast.literal_eval(part)


def test_paths_in_advised_commands_are_quoted() -> None:
    found: list[str] = []
    for path in product_modules():
        found += [f"{path.relative_to(REPOSITORY)}: {word}" for word in unquoted(path.read_text())]
    assert found == []


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ('f"run imagenet-prep verify {where} again"', ["where"]),
        ('f"run imagenet-prep verify {shlex.quote(where)} again"', []),
        ('f"imagenet-prep replicate {shlex.quote(a)} --to {b}"', ["b"]),
        ('f"imagenet-prep show SET --key {key}"', ["key"]),
        ('key = shlex.quote(a)\nf"imagenet-prep show SET --key {key}"', []),
        ('f"{where}: run imagenet-prep verify on it"', []),
    ],
)
def test_unquoted_words_are_found(code: str, words: list[str]) -> None:
    assert [*unquoted(code)] == words
