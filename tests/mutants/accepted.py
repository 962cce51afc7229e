"""The list of mutants that may survive: each line of accepted.jsonl has one, with its reason.

An entry names the function and the text of the line, not its number, so that it stays valid if the
code above it changes.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import NamedTuple

from tests.mutants.changes import Mutant


class Entry(NamedTuple):
    """A mutant, wherever its line is in the function."""

    module: str
    function: str
    line: str
    kind: str
    before: str
    after: str


class AcceptedError(Exception):
    """The list cannot be used; the message says why."""


def entry(module: str, source: bytes, mutant: Mutant) -> Entry:
    """Returns the entry for a mutant of a module with this source."""
    line = source.splitlines()[mutant.line - 1].decode().strip()
    function = _function(ast.parse(source), mutant.line)
    return Entry(module, function, line, mutant.kind, mutant.before, mutant.text)


def _function(tree: ast.AST, line: int) -> str:
    """Returns the name of the function or class around a line, such as Class.function, or ""."""
    names = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        end = node.end_lineno or node.lineno
        if node.lineno <= line <= end:
            names.append((node.lineno, node.name))
    return ".".join(name for _, name in sorted(names))


def read(path: Path) -> dict[Entry, str]:
    """Returns the reason of each entry; AcceptedError if a line is no entry with a reason."""
    found = {}
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        try:
            fields = json.loads(line)
            reason = fields.pop("reason")
            named = Entry(**fields)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            expected = ", ".join(Entry._fields)
            raise AcceptedError(f"{path}:{number}: expected {expected}, reason: {error}") from error
        if not isinstance(reason, str) or not reason.strip():
            raise AcceptedError(f"{path}:{number}: this mutant has no reason")
        found[named] = reason
    return found


def line_of(named: Entry) -> str:
    """Returns the line of the list for an entry; its reason is to be written by a person."""
    return json.dumps(named._asdict() | {"reason": ""}, ensure_ascii=False)
