"""Docstrings, comments and documents use plain English: counts of some words stay within limits."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator

import pytest

from tests.kit.command import REPOSITORY

# Occurrences per 10,000 words. Plain English has a noun for most of the first five, and "if" for a
# condition; the others have a common synonym: fix, again, next to, only, per line.
MOST = {
    r"what": 12,
    r"where": 20,
    r"another": 6,
    r"who(se|ever|m)?": 5,
    r"\w+ alone": 1,
    r"beside": 1,
    r"(no|some|any)body": 1,
    r"anew": 0.5,
    r"mend(s|ed|ing)?": 0.5,
    r"(one|once|a (line|file|task|row)) an? (line|image|class|shard|split|host|file|record)": 1,
}
LEAST_IF = 35


def of_python() -> Iterator[str]:
    """Yields the docstrings and comments of the product."""
    for folder in ("imagenet_prep", "pipelines"):
        for path in sorted((REPOSITORY / folder).rglob("*.py")):
            source = path.read_text()
            for node in ast.walk(ast.parse(source)):
                if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                    yield ast.get_docstring(node) or ""
            for token in tokenize.generate_tokens(io.StringIO(source).readline):
                if token.type == tokenize.COMMENT:
                    yield token.string


def excess(text: str) -> list[str]:
    """Returns the counts of a text that are outside their limits."""
    text = re.sub(r"`[^`\n]*`", "X", text)
    share = 10_000 / max(1, len(re.findall(r"[A-Za-z']+", text)))
    found = {word: share * len(re.findall(rf"\b{word}\b", text, re.IGNORECASE)) for word in MOST}
    conditions = share * len(re.findall(r"\bif\b", text, re.IGNORECASE))
    said = [
        f"{word}: {found[word]:.1f} > {most}" for word, most in MOST.items() if found[word] > most
    ]
    return said + ([f"if: {conditions:.1f} < {LEAST_IF}"] if conditions < LEAST_IF else [])


def test_docstrings_and_comments_are_plain() -> None:
    assert excess("\n".join(of_python())) == []


@pytest.mark.parametrize(
    "text", ["What is left of it is another one.", "Mend that anew, if need be."]
)
def test_a_text_with_many_of_these_words_is_found(text: str) -> None:
    assert excess(text)
