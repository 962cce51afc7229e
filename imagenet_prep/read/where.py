"""Selects examples by an expression over the tables of samples: `where` of `make_dataset`."""

from __future__ import annotations

import ast
import itertools
import operator
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from imagenet_prep.core.errors import UsageError
from imagenet_prep.core.spelling import same_looking, suggested
from imagenet_prep.dataset import column

if TYPE_CHECKING:
    import numpy.typing as npt

    from imagenet_prep.dataset.class_list import ClassList

# The names that the tables of samples define. All other names are columns of the dataset.
NAMES = column.CONDITIONS
SIDES = NAMES[:3]
_CLASS = "class_"  # `class` is a keyword of Python
# The keyword, or a string, in which the word is none.
_CLASS_OR_TEXT = re.compile(
    r"\bclass\b"
    r'|"""(?:\\.|[^\\])*?"""'
    r"|'''(?:\\.|[^\\])*?'''"
    r'|"(?:\\.|[^"\\\n])*"'
    r"|'(?:\\.|[^'\\\n])*'",
    re.DOTALL,
)
_MOST_CHARACTERS = 1 << 20
_ORDERS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
_OPERATIONS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Mod: operator.mod,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.And: np.logical_and,
    ast.Or: np.logical_or,
    ast.Not: np.logical_not,
    ast.USub: operator.neg,
}

# Operators of NumPy and pandas, and the words that replace them here.
_WORDS: dict[type[ast.AST] | None, str] = {
    ast.BitAnd: "and",
    ast.BitOr: "or",
    ast.Invert: "not",
}


class Where:
    """An expression with the values of one example, such as `width >= 512`.

    It has numbers, strings, lists of them, names, `+ - * / %`, comparisons, `in`, `and`, `or` and
    `not`, as in Python. No other code can be in it.

    Attributes:
      text: the expression, with the same text for the same meaning of blanks and brackets.
      names: the names in it.
    """

    def __init__(self, text: str) -> None:
        """Parses an expression; raises UsageError if it has anything else in it."""
        if not isinstance(text, str):
            raise UsageError(f"where={text!r}: expected a string, such as 'width >= 512'")
        if len(text) > _MOST_CHARACTERS:
            raise UsageError(
                f"where= has {len(text):,} characters, expected at most {_MOST_CHARACTERS:,}. "
                "To select many images, write their keys to a file, and pass keys="
            )
        self._text = text
        try:
            self._tree = _parsed(text)
            self.text = ast.unparse(self._tree)
        except SyntaxError as error:
            problem = f"is no expression ({error.msg})"
            if "column:" in text:
                problem += ". Write a column by its name alone, without column:"
            raise self._error(problem) from None
        except (ValueError, RecursionError, MemoryError) as error:
            raise self._error(f"is no expression ({error})") from None
        self.names: set[str] = set()
        self._check(self._tree)
        if not _is_condition(self._tree):
            raise self._error("is no condition: expected a comparison, such as width >= 512")

    def __call__(self, values: Mapping[str, npt.NDArray[Any]], count: int) -> npt.NDArray[np.bool_]:
        """Returns [count] bool, given `count` values of each name.

        Raises:
          UsageError: values that cannot be compared, such as a key and a number; divisions by 0.
        """
        try:
            with np.errstate(divide="raise", invalid="raise"):
                found = self._value(self._tree, values)
        except (TypeError, ValueError, ArithmeticError, np.exceptions.DTypePromotionError) as error:
            raise self._error(f"cannot be computed ({error})") from None
        return np.broadcast_to(np.asarray(found, bool), count)

    def resolve_classes(self, classes: ClassList) -> None:
        """Replaces the names of classes by their WNIDs, as for the argument `classes`.

        Raises UsageError for a value that is compared with `class` or `class_index` and is that of
        no class: all images would be different from it.
        """
        for part in self._constants(_CLASS):
            if isinstance(part.value, str):
                part.value = self._wnid(part.value, classes)
        indices = range(len(classes.wnids))
        for part in self._constants("class_index"):
            if not isinstance(part.value, str) and part.value not in indices:
                raise self._error(
                    f"has {part.value!r} as a class_index: expected 0 to {len(indices) - 1:,}"
                )

    @cached_property
    def keys(self) -> list[str]:
        """The strings that are compared with `key`."""
        return [part.value for part in self._constants("key") if isinstance(part.value, str)]

    def require_keys(self, unknown: Collection[str], where: str, known: Iterable[str]) -> None:
        """Raises UsageError if there are `unknown` keys, which no image of `where` has.

        The error names one of the `known` keys if it looks the same.
        """
        if not unknown:
            return
        first = next(key for key in self.keys if key in unknown)
        alike = same_looking([first], known)
        meant = f"Did you mean {suggested(alike[first], first)}? " if alike else ""
        more = f" and {len(unknown) - 1:,} more" if len(unknown) > 1 else ""
        raise self._error(
            f"has {first!r}{more}: no such key in {where}. {meant}To accept keys that no image "
            "has, pass allow_unknown=True"
        )

    def _constants(self, name: str) -> Iterator[ast.Constant]:
        """Yields the constants that `name` is compared with, by == or != or in a list."""
        for node in ast.walk(self._tree):
            if not isinstance(node, ast.Compare):
                continue
            sides = itertools.pairwise([node.left, *node.comparators])
            for operation, pair in zip(node.ops, sides, strict=True):
                # In an order such as class < 'n02', the string need not be a class.
                if isinstance(operation, _ORDERS):
                    continue
                if any(isinstance(side, ast.Name) and side.id == name for side in pair):
                    yield from itertools.chain.from_iterable(map(_values_of, pair))

    def _wnid(self, name: str, classes: ClassList) -> str:
        try:
            (index,) = classes.indices([name])
        except UsageError as error:
            raise self._error(f"names no class: {error}") from None
        return classes.wnids[index]

    def _error(self, problem: str) -> UsageError:
        shown = self._text if len(self._text) <= 200 else f"{self._text[:200]}..."
        return UsageError(f"where={shown!r} {problem}")

    def _check(self, node: ast.expr) -> None:
        """Raises UsageError unless the expression has only the nodes that `_value` knows."""
        if isinstance(node, ast.Name):
            self.names.add("class" if node.id == _CLASS else node.id)
        elif isinstance(node, ast.Constant):
            if type(node.value) not in (int, float, str):
                raise self._error(f"has {node.value!r}: expected numbers and strings")
        elif isinstance(node, ast.BoolOp):
            for child in node.values:
                self._check(child)
        elif isinstance(node, ast.UnaryOp) and type(node.op) in _OPERATIONS:
            self._check(node.operand)
        elif isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
            self._check(node.left)
            self._check(node.right)
        elif isinstance(node, ast.Compare):
            self._check(node.left)
            for operation, right in zip(node.ops, node.comparators, strict=True):
                if isinstance(operation, (ast.In, ast.NotIn)):
                    self._check_list(right)
                elif type(operation) in _OPERATIONS:
                    self._check(right)
                else:
                    raise self._error("has `is`: expected `==`")
        else:
            self._refuse(node)

    def _refuse(self, node: ast.expr) -> NoReturn:
        operation = type(node.op) if isinstance(node, (ast.BinOp, ast.UnaryOp)) else None
        problem = f"has {ast.unparse(node)!r}: expected names, numbers and comparisons"
        word = _WORDS.get(operation)
        if word:
            problem = f"has {ast.unparse(node)!r}: write `{word}`"
        raise self._error(problem)

    def _check_list(self, node: ast.expr) -> None:
        if not isinstance(node, (ast.Tuple, ast.List)):
            raise self._error(f"has `in {ast.unparse(node)}`: expected a list, such as (1, 2)")
        for child in node.elts:
            if not isinstance(child, ast.Constant):
                raise self._error(
                    f"has {ast.unparse(child)!r} in a list: expected numbers, strings"
                )
            self._check(child)

    def _value(self, node: ast.expr, values: Mapping[str, npt.NDArray[Any]]) -> Any:
        if isinstance(node, ast.Name):
            return values["class" if node.id == _CLASS else node.id]
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.UnaryOp):
            return _OPERATIONS[type(node.op)](self._value(node.operand, values))
        if isinstance(node, ast.BinOp):
            left = self._value(node.left, values)
            return _OPERATIONS[type(node.op)](left, self._value(node.right, values))
        if isinstance(node, ast.BoolOp):
            found = self._value(node.values[0], values)
            for child in node.values[1:]:
                found = _OPERATIONS[type(node.op)](found, self._value(child, values))
            return found
        assert isinstance(node, ast.Compare)
        return self._compared(node, values)

    def _compared(self, node: ast.Compare, values: Mapping[str, npt.NDArray[Any]]) -> Any:
        """Computes a comparison, which may be a chain such as 1 <= a < 2."""
        left = self._value(node.left, values)
        result: Any = True
        for operation, comparator in zip(node.ops, node.comparators, strict=True):
            if isinstance(comparator, (ast.Tuple, ast.List)):
                found = _is_in(left, [child.value for child in comparator.elts])  # type: ignore[attr-defined]
                result = result & (~found if isinstance(operation, ast.NotIn) else found)
                continue
            right = self._value(comparator, values)
            _require_comparable(left, right)
            result = result & _OPERATIONS[type(operation)](left, right)
            left = right
        return result


def _values_of(side: ast.expr) -> Iterator[ast.Constant]:
    """Yields the values that one side of a comparison names: one, or those of a list."""
    for part in side.elts if isinstance(side, (ast.Tuple, ast.List)) else [side]:
        if isinstance(part, ast.Constant):
            yield part


def _parsed(text: str) -> ast.expr:
    """Parses an expression, in which `class` is a name; raises SyntaxError.

    `tokenize` is not used: it copies the line for each token, so 20,000 keys would need 50 GB.
    """
    named = _CLASS_OR_TEXT.sub(lambda match: _CLASS if match[0] == "class" else match[0], text)
    # In brackets, line breaks and blanks at the start of a line have no meaning.
    tree = ast.parse(f"[{named}\n]", mode="eval").body
    if not isinstance(tree, ast.List) or len(tree.elts) != 1:
        raise SyntaxError("expected one condition")
    return tree.elts[0]


def _is_condition(node: ast.expr) -> bool:
    if isinstance(node, ast.BoolOp):
        return all(map(_is_condition, node.values))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return _is_condition(node.operand)
    return isinstance(node, ast.Compare)


def _is_in(left: Any, listed: Sequence[Any]) -> npt.NDArray[np.bool_]:
    array = np.asarray(left)
    for value in listed:
        _require_comparable(array, value)
    return np.isin(array, np.array(listed)) if listed else np.zeros(array.shape, bool)


def _require_comparable(left: Any, right: Any) -> None:
    """Raises TypeError if one value is a string and the other one a number."""
    kinds = [np.asarray(value).dtype.kind == "U" for value in (left, right)]
    if kinds[0] != kinds[1]:
        raise TypeError("a string is compared with a number")
