"""Loads the C libraries that setup.py compiles; Python threads continue while a C function runs."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import Any

from imagenet_prep.core.errors import UsageError


class NotCompiledError(UsageError):
    """A C library is missing or cannot be loaded on this machine."""


@functools.cache
def load(path: Path, **functions: tuple[Any, ...]) -> ctypes.CDLL:
    """Loads a C library; `functions` has the result type and argument types of each function."""
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        reason = str(error).removeprefix(f"{path}: ")
        raise NotCompiledError(
            f"{path} cannot be loaded: {reason}. It is compiled when imagenet-prep is installed. "
            "Install a C compiler, or `pip install ziglang`, and then reinstall imagenet-prep."
        ) from error
    for name, (result, *arguments) in functions.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def find(path: Path, **functions: tuple[Any, ...]) -> ctypes.CDLL | None:
    """Returns a library as `load` does, or None if it cannot be loaded."""
    try:
        return load(path, **functions)
    except NotCompiledError:
        return None
