"""Packages, programs and compiled parts that our code finds on this machine, or does not.

Only this module changes them. The fixture `installed` restores them after each test.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest


class Installed:
    """The installed packages, programs and compiled parts."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch

    def packages(self, is_there: Callable[[str], bool]) -> None:
        """Lets a package be found if `is_there` accepts its name; none is imported."""
        self._patch.setattr(importlib.util, "find_spec", lambda name: is_there(name) or None)

    def lacks(self, package: str, *importers: str) -> None:
        """Makes imports of a package fail, also in our modules that have imported it before."""
        self._patch.setitem(sys.modules, package, None)  # type: ignore[arg-type]
        for module in importers:
            self._patch.delitem(sys.modules, module, raising=False)
            self._patch.delattr(module, raising=False)

    def programs(self, path_of: Callable[[str], str | None]) -> None:
        """Lets a program be found at the path that `path_of` returns, if any."""
        self._patch.setattr(shutil, "which", lambda name, **_: path_of(name))

    def library(self, module: str, path: Path = Path("/nowhere.so")) -> None:
        """Replaces the compiled part of a module of ours, or removes it."""
        self._patch.setattr(f"imagenet_prep.{module}._LIBRARY", path)

    def no_planes(self) -> None:
        """Makes the codec's compiled part unusable, also if this process has loaded it."""
        from imagenet_prep.codec import planes

        def refuse() -> None:
            raise planes.CodecUnavailableError("no compiler")

        planes.forget()

        self._patch.setattr("imagenet_prep.codec.planes.require", refuse)
        self._patch.setattr("imagenet_prep.codec.planes.is_available", lambda: False)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Installed:
    """The installed parts, for a test of a machine that lacks some."""
    return Installed(monkeypatch)
