"""What a verb does before it ends: it ends its children, and removes its temporary files.

Python's exit handlers do not run then, because a verb ends with os._exit: see `program.finish`.
"""

from __future__ import annotations

from collections.abc import Callable

_ACTS: list[Callable[[], None]] = []


def before(act: Callable[[], None]) -> None:
    """Makes a verb call `act` before it ends."""
    _ACTS.append(act)


def prepare() -> None:
    """Calls all functions that `before` has received."""
    for act in _ACTS:
        act()
