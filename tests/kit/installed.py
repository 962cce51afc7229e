"""What is installed on this machine: packages, programs, and the parts that are compiled.

Only this module changes what our code finds. The fixture `installed` puts it back after each test.
"""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest


class Installed:
    """What our code finds installed."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch

    def packages(self, is_there: Callable[[str], bool]) -> None:
        """Lets a package be found if `is_there` says so of its name; none is imported."""
        self._patch.setattr(importlib.util, "find_spec", lambda name: is_there(name) or None)

    def programs(self, path_of: Callable[[str], str | None]) -> None:
        """Lets a program be found where `path_of` says, if anywhere."""
        self._patch.setattr(shutil, "which", lambda name, **_: path_of(name))

    def library(self, module: str, path: Path = Path("/nowhere.so")) -> None:
        """Lets the compiled part of a module of ours be another file, or absent."""
        self._patch.setattr(f"imagenet_prep.{module}._LIBRARY", path)

    def no_planes(self) -> None:
        """Lets the codec's compiled part be refused, also if this process has loaded it."""
        from imagenet_prep.codec.libraries import UnavailableError

        def refuse() -> None:
            raise UnavailableError("no compiler")

        self._patch.setattr("imagenet_prep.codec.planes.require", refuse)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Installed:
    """What is installed, for a test on a machine that lacks some of it."""
    return Installed(monkeypatch)
