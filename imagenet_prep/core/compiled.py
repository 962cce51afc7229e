"""Loads the C of this package, which is compiled when it is installed: see setup.py.

ctypes releases the GIL for as long as a function works.
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import Any

from imagenet_prep.core.errors import UsageError


class NotCompiledError(UsageError):
    """A library is not there, or this machine cannot load it."""


@functools.cache
def load(path: Path, **functions: tuple[Any, ...]) -> ctypes.CDLL:
    """Returns a library; `functions` say what each returns and takes, as C declares it."""
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        why = str(error).removeprefix(f"{path}: ")
        raise NotCompiledError(
            f"{path} cannot be loaded ({why}): it is compiled when imagenet-prep is installed. "
            "Install a C compiler, or `pip install ziglang`, and then imagenet-prep again."
        ) from error
    for name, (result, *arguments) in functions.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def find(path: Path, **functions: tuple[Any, ...]) -> ctypes.CDLL | None:
    """Returns a library as `load` does; None where it cannot be loaded."""
    try:
        return load(path, **functions)
    except NotCompiledError:
        return None
