"""Counts the files and folders that this process opens."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any


@functools.cache
def opens() -> Callable[[], int]:
    """Returns a function that returns the number of opens so far, of all threads."""
    number = 0

    def note(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal number
        # A file object of a descriptor opens nothing.
        if event == "open" and not isinstance(arguments[0], int):
            number += 1

    # It sees `os.open`, `open` and the standard library, and stays until the process ends.
    sys.addaudithook(note)
    return lambda: number
