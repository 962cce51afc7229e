"""Product, benchmarks and tests have one statement per line, short functions and short files.

Assignments of unrelated things, walruses and nested comprehensions save lines, but no reading time.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.documents import read, tracked

# Occurrences per 1,000 lines: the rates of comparable programs, with room.
LIMITS = {
    "unrelated assignments": 1.5,
    "walrus": 2.0,
    "nested comprehension": 0.5,
    "list or text times a condition": 0.1,
    "star before a literal": 0.0,
    "nested conditional": 0.2,
}
MOST_LINES = 700
MOST_BODY_LINES = 60
LONG_FUNCTIONS = {"make_dataset"}  # its docstring documents each option

_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_CONDITIONS = (ast.Compare, ast.BoolOp, ast.UnaryOp)


def modules(*folders: str) -> dict[Path, str]:
    paths = [path for path in tracked(".py") if path.parts[0] in folders]
    return {path: read(path) for path in paths}


def dense(node: ast.AST) -> str | None:
    """Returns the kind of dense code that a node is, or None."""
    match node:
        case ast.Assign(targets=[ast.Tuple()], value=ast.Tuple(elts=values)):
            # `x, y = point.x, point.y` and a swap are one thing in two parts.
            parts = (ast.Name, ast.Attribute, ast.Subscript)
            if len(values) > 1 and not all(isinstance(value, parts) for value in values):
                return "unrelated assignments"
        case ast.NamedExpr():
            return "walrus"
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            for one, other in ((left, right), (right, left)):
                is_text = isinstance(one, ast.Constant) and isinstance(one.value, str)
                is_text = is_text or isinstance(one, ast.List | ast.JoinedStr)
                if is_text and isinstance(other, _CONDITIONS):
                    return "list or text times a condition"
        case ast.IfExp():
            if sum(isinstance(inner, ast.IfExp) for inner in ast.walk(node)) > 1:
                return "nested conditional"
        case ast.Starred(value=ast.Tuple(elts=values) | ast.List(elts=values)):
            if not any(isinstance(value, ast.Starred) for value in values):
                return "star before a literal"
    if isinstance(node, _COMPREHENSIONS) and len(node.generators) > 1:
        return "nested comprehension"
    return None


def counts(text: str) -> Counter[str | None]:
    return Counter(map(dense, ast.walk(ast.parse(text))))


def long_bodies(text: str, most: int = MOST_BODY_LINES) -> Iterator[str]:
    """Yields the functions whose bodies are too long, without their docstrings."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[1 if ast.get_docstring(node) and len(node.body) > 1 else 0]
            lines = int(node.end_lineno or 0) - first.lineno + 1
            if lines > most and node.name not in LONG_FUNCTIONS:
                yield f"{node.name}: {lines} lines"


@pytest.mark.parametrize("folders", [("imagenet_prep", "pipelines"), ("benchmarks",), ("tests",)])
def test_code_is_not_folded(folders: tuple[str, ...]) -> None:
    texts = modules(*folders).values()
    thousands = sum(text.count("\n") for text in texts) / 1000
    found = sum(map(counts, texts), Counter[str | None]())
    rates = {kind: found[kind] / thousands for kind in LIMITS}
    assert {kind: rate for kind, rate in rates.items() if rate > LIMITS[kind]} == {}


def test_files_and_functions_are_short() -> None:
    excess = []
    for path, text in modules("imagenet_prep", "pipelines", "benchmarks", "tests").items():
        if text.count("\n") > MOST_LINES:
            excess.append(f"{path}: {text.count(chr(10))} lines")
        excess += [f"{path}: {function}" for function in long_bodies(text)]
    assert excess == []


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("a, b = [], {}", "unrelated assignments"),
        ("a, b = x.y, len(z)", "unrelated assignments"),
        ("if a := f(): pass", "walrus"),
        ("[b for a in c for b in a]", "nested comprehension"),
        ("{b: 1 for a in c for b in a}", "nested comprehension"),
        ("'s' * (n > 1)", "list or text times a condition"),
        ("(not n) * [x]", "list or text times a condition"),
        ("f(*('a', 'b'))", "star before a literal"),
        ("a if b else c if d else e", "nested conditional"),
        ("a, b = b, a", None),
        ("a, b = x.y, x.z", None),
        ("a, b = point", None),
        ("[*a, *map(f, b)]", None),
        ("'-' * 20", None),
        ("a if b else c", None),
        ("[[b for b in a] for a in c]", None),
    ],
)
def test_dense_code_is_counted(code: str, kind: str | None) -> None:
    found = counts(code)
    assert [*found.keys() - {None}] == ([kind] if kind else [])


@pytest.mark.parametrize(("most", "found"), [(3, ["f: 4 lines"]), (4, [])])
def test_long_functions_are_found_without_their_docstrings(most: int, found: list[str]) -> None:
    text = 'def f():\n    """Does it.\n\n    Slowly.\n    """\n    a\n    b\n\n    c\n'
    assert [*long_bodies(text, most)] == found
    assert [*long_bodies(text.replace("def f", "def make_dataset"), most)] == []
