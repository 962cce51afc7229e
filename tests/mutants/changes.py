"""Mutants: one small mistake each, in the text of a module."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

_TURNED: dict[type[ast.AST], str] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "+",
    ast.FloorDiv: "*",
    ast.And: "or",
    ast.Or: "and",
}
_TURNED_ITSELF = (ast.Compare, ast.UnaryOp)
# What a statement holds that is no part of what it computes itself.
# Decorators belong to these: `frozen=True` of a dataclass has no effect that a test could notice.
_LEFT_OUT = {
    "annotation",
    "body",
    "cases",
    "decorator_list",
    "finalbody",
    "handlers",
    "orelse",
    "returns",
}


RAISE = "removed raise"
CALL = "removed call"
COMPARISON = "comparison"
CONDITION = "condition"
LOGIC = "and, or, not"
CLAUSE = "dropped clause"
BODY = "dropped body"
ARGUMENTS = "swapped arguments"
ARITHMETIC = "arithmetic"
CONSTANT = "constant"
KINDS = (
    RAISE,
    CALL,
    COMPARISON,
    CONDITION,
    LOGIC,
    CLAUSE,
    BODY,
    ARGUMENTS,
    ARITHMETIC,
    CONSTANT,
)
# Only arguments with a name are swapped, since these could be confused. For swapped arguments, the
# first two functions return the same, and the others fail at once.
_NAMED = (ast.Name, ast.Attribute, ast.Subscript)
_NEVER_SWAPPED = {"max", "min", "isinstance", "issubclass"}


class Mutant(NamedTuple):
    """One mistake: the bytes from `start` to `stop` of a module become `text`."""

    line: int
    start: int
    stop: int
    before: str
    text: str
    kind: str

    def put(self, source: bytes) -> bytes:
        return source[: self.start] + self.text.encode() + source[self.stop :]


def mutants(source: bytes, lines: Collection[int]) -> list[Mutant]:
    """Returns all mutants of these lines of a module, by their places."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def place(node: Any) -> tuple[int, int, str]:
        start = starts[node.lineno - 1] + node.col_offset
        stop = starts[node.end_lineno - 1] + node.end_col_offset
        return start, stop, source[start:stop].decode()

    made = _mistakes(ast.parse(source), lambda node: place(node)[2])
    found = {Mutant(node.lineno, *place(node), text, kind) for kind, node, text in made}
    return sorted(each for each in found if each.line in lines)


def _mistakes(tree: ast.AST, text_of: Callable[[Any], str]) -> Iterator[tuple[str, Any, str]]:
    """Yields the kind of each mistake, the node and its new text.

    Calls with an unused result, `raise`, the blocks of `if` and `else`, and the operands of `and`
    and `or` are removed. Neighbouring arguments are swapped, operators and conditions are inverted,
    numbers are increased.
    """
    for statement in _statements(tree):
        match statement:
            case ast.Raise():
                yield RAISE, statement, "pass"
                continue  # nothing depends on the words of an error
            case ast.Expr(value=ast.Call()):
                yield CALL, statement, "pass"
            case ast.If(test=test) | ast.While(test=test) if not isinstance(test, _TURNED_ITSELF):
                yield CONDITION, test, f"not ({text_of(test)})"
        for block in _blocks(statement):
            yield BODY, block, "pass"
        for node in _computed(statement):
            match node:
                case (
                    ast.Compare(left=left, ops=[operator], comparators=[right])
                    | ast.BinOp(left=left, op=operator, right=right)
                ) if type(operator) in _TURNED:
                    kind = COMPARISON if isinstance(node, ast.Compare) else ARITHMETIC
                    turned = f"({text_of(left)}) {_TURNED[type(operator)]} ({text_of(right)})"
                    yield kind, node, turned
                case ast.BoolOp(op=operator, values=values):
                    words = f" {_TURNED[type(operator)]} "
                    operands = [f"({text_of(value)})" for value in values]
                    yield LOGIC, node, words.join(operands)
                    word = " and " if isinstance(operator, ast.And) else " or "
                    for number in range(len(operands)):
                        yield CLAUSE, node, word.join(operands[:number] + operands[number + 1 :])
                case ast.Call():
                    for text in _swapped(node, text_of):
                        yield ARGUMENTS, node, text
                case ast.UnaryOp(op=ast.Not(), operand=operand):
                    yield LOGIC, node, f"({text_of(operand)})"
                case ast.IfExp(test=test) if not isinstance(test, _TURNED_ITSELF):
                    yield CONDITION, test, f"not ({text_of(test)})"
                case ast.Constant(value=bool() as value):
                    yield CONSTANT, node, str(not value)
                case ast.Constant(value=int() | float() as value):
                    yield CONSTANT, node, str(value + 1)


def _blocks(statement: ast.stmt) -> Iterator[ast.Pass]:
    """Yields the place of each block of an `if` whose removal is no other mistake."""
    if not isinstance(statement, ast.If):
        return
    for block in (statement.body, statement.orelse):
        match block:
            case [] | [ast.Raise() | ast.Pass() | ast.If() | ast.Expr(value=ast.Call())]:
                continue
        place = ast.copy_location(ast.Pass(), block[0])
        place.end_lineno = block[-1].end_lineno
        place.end_col_offset = block[-1].end_col_offset
        yield place


def _swapped(call: ast.Call, text_of: Callable[[Any], str]) -> Iterator[str]:
    """Yields a call with two neighbouring positional arguments swapped, for each such pair."""
    if isinstance(call.func, ast.Name) and call.func.id in _NEVER_SWAPPED:
        return
    arguments = [text_of(each) for each in (*call.args, *call.keywords)]
    for number, (first, second) in enumerate(pairwise(call.args)):
        have_names = isinstance(first, _NAMED) and isinstance(second, _NAMED)
        if have_names and arguments[number] != arguments[number + 1]:
            swapped = arguments.copy()
            swapped[number : number + 2] = arguments[number + 1], arguments[number]
            yield f"{text_of(call.func)}({', '.join(swapped)})"


def _statements(tree: ast.AST) -> Iterator[ast.stmt]:
    """Yields all statements but `assert` and what is there for types alone."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        if isinstance(child, ast.stmt) and not isinstance(child, ast.Assert):
            yield child
        if not isinstance(child, ast.expr):
            yield from _statements(child)


def _computed(node: ast.AST) -> Iterator[ast.AST]:
    """Yields the expressions of a statement, but annotations and texts with values in them."""
    for name, value in ast.iter_fields(node):
        if name in _LEFT_OUT and not isinstance(node, ast.expr):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not isinstance(child, ast.stmt | ast.JoinedStr):
                yield child
                yield from _computed(child)
