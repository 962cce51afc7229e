"""The sentences of the program: messages.txt has each of them once, tests refer to its key.

`says("key", "fact", 3)` is the pattern of a message with these facts, for `match=` and `search`.
`wording("key", 3)` is its complete text, where a test compares a line.
A contributor who changes a message runs `python -m tests.kit.messages`: the file gets the new text
under the old key, and no test changes. A message that vanished from the program loses its row.
"""

from __future__ import annotations

import ast
import difflib
import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from tests.kit.command import REPOSITORY
from tests.kit.documents import product_modules

TABLE = REPOSITORY / "tests" / "kit" / "messages.txt"
HOLE = "{}"  # a value that the program inserts
# Bounded, and absent at both ends of a message, because some texts are megabytes long.
ANYTHING = r"[\s\S]{0,2000}?"
# Shorter strings are names, units and parts of sentences.
_LEAST_WORDS = 3
_KEY_WORDS = 5
# Below this similarity, a new text is not treated as a changed one.
_SIMILAR = 0.5
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_UNIMPORTANT = frozenset(
    [
        "a",
        "all",
        "an",
        "and",
        "are",
        "as",
        "at",
        "be",
        "been",
        "but",
        "by",
        "can",
        "do",
        "does",
        "for",
        "from",
        "has",
        "have",
        "if",
        "in",
        "into",
        "is",
        "it",
        "its",
        "of",
        "on",
        "or",
        "so",
        "than",
        "that",
        "the",
        "then",
        "there",
        "these",
        "they",
        "this",
        "to",
        "was",
        "were",
        "which",
        "with",
    ]
)

_keys: dict[re.Pattern[str], str] = {}


def says(key: str, *facts: object, on: str = "") -> re.Pattern[str]:
    """Returns the pattern of a message.

    Args:
      key: the message's key in messages.txt.
      *facts: the first values that the program inserts, in order; `...` stands for any value. A
        text may be a part of its value; a pattern is searched in it.
      on: a text before the message: the object that it is about, if a caller adds it.

    Raises:
      KeyError: messages.txt has no such key.
    """
    pieces = table()[key].split(HOLE)
    if len(facts) >= len(pieces):
        raise ValueError(f"{key}: {len(facts)} facts, but {len(pieces) - 1} values are inserted")
    parts = [_value(on), ANYTHING] if on else []
    parts.append(_flexible(pieces[0]))
    for number, piece in enumerate(pieces[1:]):
        fact = facts[number] if number < len(facts) else ...
        is_first = not number and not pieces[0] and not on
        parts.append("" if is_first else ANYTHING)
        parts.append(_value(fact))
        is_last = number + 2 == len(pieces) and not piece
        parts.append("" if fact is ... or is_last else ANYTHING)
        parts.append(_flexible(piece))
    pattern = re.compile("".join(parts))
    _keys[pattern] = key
    return pattern


def wording(key: str, *values: object) -> str:
    """Returns a complete message with its values, for tests that compare a line or a list."""
    text = table()[key]
    for value in values:
        text = text.replace(HOLE, str(value), 1)
    return text


def exactly(text: str) -> re.Pattern[str]:
    """Returns the pattern of a fact, next to messages in a column of `parametrize`."""
    return re.compile(re.escape(text))


def key_of(pattern: re.Pattern[str]) -> str | None:
    """Returns the key of a pattern that `says` made, as the name of a parametrized test."""
    return _keys.get(pattern)


def _flexible(piece: str) -> str:
    """Returns the pattern of a text whose blanks may have become line breaks."""
    words = [re.escape(word) for word in piece.split()]
    blank = r"\s+"
    middle = blank.join(words)
    before = blank if piece[:1].isspace() and words else ""
    after = blank if piece[-1:].isspace() else ""
    return before + middle + after


def _value(fact: object) -> str:
    """Returns the pattern of a fact in an inserted value."""
    if fact is ...:
        return ""
    if isinstance(fact, re.Pattern):
        return f"(?:{fact.pattern})"
    if isinstance(fact, int):
        return rf"(?<![\d,])(?:{fact:,}|{fact})(?!\d)"
    return _flexible(str(fact))


@functools.cache
def table() -> dict[str, str]:
    """Returns the messages of messages.txt by key."""
    rows = (line.split(": ", 1) for line in TABLE.read_text("utf-8").splitlines() if line)
    return {key: _decoded(text) for key, text in rows}


def messages() -> dict[str, str]:
    """Returns the texts of the program with at least three words, and the module of each.

    Inserted values are written `{}`. Documentation is not included.
    """
    found: dict[str, str] = {}
    for path in product_modules():
        module = path.relative_to(REPOSITORY).with_suffix("").as_posix()
        for text in _texts(ast.parse(path.read_text("utf-8"))):
            if len(text.replace(HOLE, " ").split()) >= _LEAST_WORDS:
                found.setdefault(text, module)
    return found


def _texts(tree: ast.Module) -> Iterator[str]:
    skipped: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            skipped.add(id(node.value))
        elif isinstance(node, ast.JoinedStr):
            skipped.update(map(id, node.values))
            yield "".join(_part(value) for value in node.values).strip()
        elif isinstance(node, ast.Constant) and id(node) not in skipped:
            yield node.value.strip() if isinstance(node.value, str) else ""


def _part(value: ast.expr) -> str:
    return str(value.value) if isinstance(value, ast.Constant) else HOLE


def renewed(recorded: Mapping[str, str], texts: Mapping[str, str]) -> dict[str, str]:
    """Returns the messages by key, sorted by module and key.

    A changed message keeps its key: the most similar text that is gone gives it.
    """
    keys = {text: key for key, text in recorded.items()}
    kept = {text: keys[text] for text in texts if text in keys}
    vanished = {text: key for text, key in keys.items() if text not in texts}
    taken = set(recorded)
    for text in texts:
        if text in kept:
            continue
        similar = difflib.get_close_matches(text, vanished, n=1, cutoff=_SIMILAR)
        if similar:
            kept[text] = vanished.pop(similar[0])
        else:
            kept[text] = _new_key(text, taken)
            taken.add(kept[text])
    return {kept[text]: text for text in sorted(texts, key=lambda text: (texts[text], kept[text]))}


def _new_key(text: str, taken: Iterable[str]) -> str:
    words = [word.strip("-._").lower() for word in _WORD.findall(text.replace(HOLE, " "))]
    important = [word for word in words if word not in _UNIMPORTANT]
    base = "-".join((important or words or ["text"])[:_KEY_WORDS])
    key = base
    number = 1
    while key in taken:
        number += 1
        key = f"{base}-{number}"
    return key


def _encoded(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _decoded(text: str) -> str:
    return re.sub(r"\\(.)", lambda match: "\n" if match[1] == "n" else match[1], text)


def lines(rows: Mapping[str, str]) -> str:
    """Returns the contents of messages.txt."""
    return "".join(f"{key}: {_encoded(text)}\n" for key, text in rows.items())


def main(path: Path = TABLE) -> None:
    """Writes the messages of the program into messages.txt."""
    path.touch()
    path.write_text(lines(renewed(table(), messages())), "utf-8")


if __name__ == "__main__":
    main()
