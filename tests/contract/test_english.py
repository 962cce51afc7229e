"""Documents, code and tests use plain English: some words are rare or absent, names are short."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.kit.command import REPOSITORY
from tests.kit.documents import read, tracked

# Occurrences per 10,000 words. Plain English has a noun for most of the first, and "if" for a
# condition; "one a line" is "one per line".
MOST = {
    r"what": 12,
    r"where": 15,
    r"another": 6,
    r"who(se|ever|m)?": 6,
    r"\w+ alone": 1,
    r"(one|once|a (line|file|task|row)) an? (line|image|class|shard|split|host|file|record)": 1,
}
LEAST_IF = {"documents": 35, "docstrings": 35, "messages": 20, "texts_of_tests": 35}
# A failing test's name alone should say which rule is broken, also in a log without the code.
MOST_WORDS_OF_A_NAME = 8
# These have a common synonym: again, started, next to, dataset, fix, given, exclude, no one.
UNUSED = (
    r"anew|begun(?!\.json)|beside|data sets?|mend(s|ed|ing)?|told|leaves? out|leaving out"
    r"|held against|(no|some|any)body|whoever"
)
PRODUCT = ("imagenet_prep", "pipelines")
TESTS = ("tests", "benchmarks", ".ci")
_WORD = re.compile(r"[A-Za-z']+")


def documents() -> Iterator[str]:
    """Yields the documents without blocks of code, links and HTML."""
    for path in tracked(".md"):
        if path.parts[0] in ("docs", "benchmarks") or len(path.parts) == 1:
            text = re.sub(r"^```.*?^```", "", read(path), flags=re.DOTALL | re.MULTILINE)
            yield re.sub(r"\]\([^)]*\)|<[^>\n]*>", "", text)


def docstrings() -> Iterator[str]:
    """Yields the docstrings and comments of the product."""
    for source, tree in _modules(*PRODUCT):
        yield from _texts(source, tree)


def texts_of_tests() -> Iterator[str]:
    """Yields the names, docstrings and comments of tests, benchmarks and the build."""
    for source, tree in _modules(*TESTS):
        yield from (name.replace("_", " ") for name in _names_of_tests(tree))
        yield from _texts(source, tree)
    for path in (REPOSITORY / "Makefile", *(REPOSITORY / ".ci").iterdir()):
        if path.suffix in ("", ".override") and path.is_file():
            lines = map(str.strip, path.read_text().splitlines())
            yield from (line for line in lines if line.startswith("# "))


def messages() -> Iterator[str]:
    """Yields the strings of the product that may be text: those with at least three words."""
    for _, tree in _modules(*PRODUCT):
        skipped = {id(node.body[0].value) for node in _documented(tree) if ast.get_docstring(node)}
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                parts = [
                    part.value if isinstance(part, ast.Constant) else "X" for part in node.values
                ]
                yield "".join(map(str, parts))
                skipped.update(map(id, node.values))
            elif isinstance(node, ast.Constant) and id(node) not in skipped:
                text = str(node.value)
                if isinstance(node.value, str) and len(text.split()) > 3:
                    yield text


def _modules(*folders: str) -> Iterator[tuple[str, ast.Module]]:
    for folder in folders:
        for path in sorted((REPOSITORY / folder).rglob("*.py")):
            source = path.read_text()
            yield source, ast.parse(source)


def _texts(source: str, tree: ast.Module) -> Iterator[str]:
    yield from (ast.get_docstring(node) or "" for node in _documented(tree))
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


def _names_of_tests(tree: ast.Module) -> Iterator[str]:
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    names = (function.name for function in functions)
    return (name.removeprefix("test_") for name in names if name.startswith("test_"))


def _documented(tree: ast.Module) -> Iterator[Any]:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return (node for node in ast.walk(tree) if isinstance(node, kinds))


def excess(text: str, least_if: float) -> list[str]:
    """Returns the unused words of a text, and the counts that are outside their limits."""
    text = re.sub(r"`[^`\n]*`", "X", text)
    share = 10_000 / max(1, len(_WORD.findall(text)))

    def count(pattern: str) -> float:
        return share * len(re.findall(rf"\b{pattern}\b", text, re.IGNORECASE))

    unused = re.finditer(rf"\b({UNUSED})\b", text, re.IGNORECASE)
    problems = [text[max(0, match.start() - 40) : match.end() + 20] for match in unused]
    problems += [
        f"{word}: {count(word):.1f} > {most}" for word, most in MOST.items() if count(word) > most
    ]
    if count("if") < least_if:
        problems.append(f"if: {count('if'):.1f} < {least_if}")
    return problems


@pytest.mark.parametrize(
    "kind", [documents, docstrings, messages, texts_of_tests], ids=lambda kind: kind.__name__
)
def test_texts_are_plain(kind: Callable[[], Iterator[str]]) -> None:
    assert excess("\n".join(kind()), LEAST_IF[kind.__name__]) == []


def test_names_of_tests_have_at_most_eight_words() -> None:
    long = []
    for _, tree in _modules("tests"):
        names = _names_of_tests(tree)
        long += [name for name in names if len(name.split("_")) > MOST_WORDS_OF_A_NAME]

    assert long == []


@pytest.mark.parametrize(
    "text",
    ["What is left of it is another one.", "It is told anew.", "Remove it when it is damaged."],
)
def test_texts_that_are_not_plain_are_found(text: str) -> None:
    assert excess(text, 35)
