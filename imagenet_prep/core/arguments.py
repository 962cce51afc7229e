"""Checks the arguments of public functions; errors name the function and the right argument."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

from imagenet_prep.core.spelling import nearest

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def require(
    function: str,
    signature: inspect.Signature,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    elsewhere: Mapping[str, str] | None = None,
) -> None:
    """Raises TypeError for unknown and missing arguments.

    Args:
      function: the public name of the function.
      signature: the arguments of the function.
      args: the given positional arguments.
      kwargs: the given arguments by name.
      elsewhere: for names of other libraries, a sentence about the right argument.
    """
    known = signature.parameters
    has_more = any(each.kind is each.VAR_KEYWORD for each in known.values())
    for name in kwargs:
        if name not in known and not has_more:
            advice = (elsewhere or {}).get(name) or _advice(function, name, [*known])
            raise TypeError(f"{function}() has no argument {name!r}. {advice}")
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{function}(): {error}. help({function}) lists all arguments") from None


def checked(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Decorates a public function or `__init__`: `require` checks its arguments."""
    signature = inspect.signature(function)
    name = function.__qualname__.removesuffix(".__init__")

    @functools.wraps(function)
    def call(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        require(name, signature, args, kwargs)
        return function(*args, **kwargs)

    return call


def _advice(function: str, name: str, known: list[str]) -> str:
    spelled = {f"--{each.replace('_', '-')}": each for each in known}
    near = nearest(f"--{name.replace('_', '-')}", spelled)
    if near is None:
        return f"help({function}) lists all arguments"
    return f"Did you mean {spelled[near]}?"
