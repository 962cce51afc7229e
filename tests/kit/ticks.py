"""Changes of files on file systems whose clock only ticks every few milliseconds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path


def until_changed(path: Path, act: Callable[[], object]) -> None:
    """Acts until the ctime of a file has changed: changes within one tick have the same time."""
    before = path.stat().st_ctime_ns
    while path.stat().st_ctime_ns == before:
        act()
