"""messages.txt has the sentences of the program, and tests quote them by key only."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit import messages
from tests.kit.documents import read, tracked
from tests.kit.messages import HOLE, says

# A shorter text is a fact: a path, a number with its unit, an answer of a system call.
LEAST_WORDS = 4
# Texts of formats, other programs and the operating system, which the program also contains.
FOREIGN = (
    "# Netscape HTTP Cookie File",
    "ImageNet-21K winter21 of timm",
    "Name or service not known",
    "Raw profile type exif",
    "can't start new thread",
    "def __init__(self, initial_lr, warmup_epochs=5,",
    "import tensorflow as tf",
)
RENEW = "Run `python -m tests.kit.messages`, and read the difference."


def quotes(source: str, sentences: str) -> Iterator[str]:
    """Yields the line and text of each string with at least four words of one message."""
    tree = ast.parse(source)
    expressions = (node for node in ast.walk(tree) if isinstance(node, ast.Expr))
    documentation = {id(node.value) for node in expressions}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
            continue
        words = node.value.replace("\\", "").split()
        if len(words) < LEAST_WORDS or id(node) in documentation:
            continue
        text = " ".join(words)
        if text in sentences and text not in FOREIGN:
            yield f"{node.lineno}: {text}"


def test_messages_are_those_of_the_program() -> None:
    recorded = messages.TABLE.read_text("utf-8")
    assert recorded == messages.lines(messages.renewed(messages.table(), messages.messages())), (
        RENEW
    )


def test_no_test_quotes_a_sentence() -> None:
    pieces = "\n".join(messages.table().values()).replace(HOLE, "\n")
    sentences = "\n".join(" ".join(line.split()) for line in pieces.splitlines())
    found = []
    for path in tracked(".py"):
        if path.parts[0] == "tests":
            found += [f"{path}:{quote}" for quote in quotes(read(path), sentences)]
    assert found == [], "Refer to these messages by key: says(...)"


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ('match="has 3 bytes too many"', ["1: has 3 bytes too many"]),
        ('match=r"bytes\\. Get it again"', ["1: bytes. Get it again"]),
        ('f"{name}: has 3 bytes too many, {n}"', []),
        ('match="too many"', []),
        ('def test() -> None:\n    """has 3 bytes too many"""', []),
    ],
)
def test_quoted_sentences_are_found(code: str, found: list[str]) -> None:
    sentences = "the file has 3 bytes too many\nhas 3 bytes. Get it again, please"
    source = f"f({code})" if "\n" not in code else code
    assert [*quotes(source, sentences)] == found


def test_changed_message_keeps_its_key() -> None:
    recorded = {
        "bytes-expected": "{}: {} bytes, expected {}",
        "no-such-folder": "{}: no such folder",
    }
    texts = {
        "{}: no such folder": "b",
        "{}: has {} bytes, but {} are expected": "a",
        "an archive of a different kind": "a",
    }
    assert messages.renewed(recorded, texts) == {
        "archive-different-kind": "an archive of a different kind",
        "bytes-expected": "{}: has {} bytes, but {} are expected",
        "no-such-folder": "{}: no such folder",
    }


def test_vanished_message_loses_its_row() -> None:
    assert messages.renewed({"key": "{}: no such folder"}, {}) == {}


def test_equal_words_give_different_keys() -> None:
    texts = {"{}: no such folder": "a", "no such folder {}": "a"}
    assert [*messages.renewed({}, texts)] == ["no-such-folder", "no-such-folder-2"]


def test_table_is_written_and_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "two\nlines, and a \\n of two characters"
    monkeypatch.setattr(messages, "TABLE", tmp_path / "messages.txt")
    monkeypatch.setattr(messages, "messages", lambda: {text: "module"})
    messages.table.cache_clear()
    messages.main(messages.TABLE)
    messages.table.cache_clear()
    assert messages.table() == {"two-lines-n-two-characters": text}
    monkeypatch.undo()
    messages.table.cache_clear()


@pytest.mark.parametrize(
    ("facts", "said", "matches"),
    [
        ((), "x: has 3 bytes,\n  expected 5", True),
        (("x", 3, 5), "x: has 3 bytes, expected 5", True),
        ((..., 3), "x: has 3 bytes, expected 5", True),
        ((..., 3), "x: has 13 bytes, expected 5", False),
        ((..., 3000), "x: has 3,000 bytes, expected 5", True),
        ((..., 3000), "x: has 3000 bytes, expected 5", True),
        (("y",), "x: has 3 bytes, expected 5", False),
        ((..., 5, 3), "x: has 3 bytes, expected 5", False),
        ((re.compile("x|y"),), "a/y.tar: has 3 bytes, expected 5", True),
        ((re.compile("x|y"),), "a/z.tar: has 3 bytes, expected 5", False),
        ((), "x: has 3 bytes, but expected 5", False),
    ],
)
def test_pattern_of_a_message_has_its_facts(
    facts: tuple[object, ...], said: str, matches: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = {"bytes": "{}: has {} bytes, expected {}"}
    monkeypatch.setattr(messages, "table", lambda: rows)
    assert bool(says("bytes", *facts).search(said)) == matches
    with pytest.raises(ValueError, match="4 facts, but 3 values"):
        says("bytes", 1, 2, 3, 4)
