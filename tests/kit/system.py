"""Calls of the operating system that fail, are recorded, or follow a sudden change.

Only this module replaces them. The fixture `system` restores them after each test.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import itertools
import os
import pwd
import resource
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

# The modules of the calls that are not in `os`.
_ELSEWHERE: dict[str, ModuleType] = {
    "flock": fcntl,
    "getrlimit": resource,
    "setrlimit": resource,
    "disk_usage": shutil,
}


class System:
    """The operating system as seen by this process."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch

    def instead(self, call: str, function: Callable[..., Any]) -> None:
        """Replaces a call by a function, which gets the real call before the arguments."""
        module = _ELSEWHERE.get(call, os)
        self._patch.setattr(module, call, functools.partial(function, getattr(module, call)))

    def fails(self, call: str, code: int, *, after: int = 0, times: int = 1 << 31) -> None:
        """Lets a call succeed `after` times, then fail with this error so many `times`."""
        made = itertools.count()

        def perhaps(real: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            if after <= next(made) < after + times:
                raise OSError(code, os.strerror(code))
            return real(*args, **kwargs)

        self.instead(call, perhaps)

    def before(self, call: str, action: Callable[[], object]) -> None:
        """Does something once, just before the next call of this name."""
        left = [action]

        def late(real: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            while left:
                left.pop()()
            return real(*args, **kwargs)

        self.instead(call, late)

    def noted(self, *calls: str, below: Path) -> list[str]:
        """Returns the list to which each of these calls adds itself, e.g. "fsync index/a"."""
        noted: list[str] = []

        def note(name: str, real: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            # A renamed file is listed by its new name, a linked file by its old one.
            folder = _path_of(kwargs.get("dst_dir_fd" if name == "replace" else "dir_fd", ""))
            path = folder / _path_of(args[1 if name == "replace" else 0])
            noted.append(f"{name} {os.path.relpath(path, below.resolve())}")
            return real(*args, **kwargs)

        for call in calls:
            self.instead(call, functools.partial(note, call))
        return noted

    def syncs_file_systems(self, answer: Callable[[int], int]) -> None:
        """Lets C's `syncfs` call `answer` with its descriptor: it returns an error, or 0."""

        def syncfs(descriptor: int) -> int:
            code = answer(descriptor)
            ctypes.set_errno(code)
            return -1 if code else 0

        self._patch.setattr(ctypes, "CDLL", lambda *_, **__: SimpleNamespace(syncfs=syncfs))

    def has_free_bytes(self, count: int) -> None:
        """Lets every disk have this number of free bytes."""
        self.instead("disk_usage", lambda *_: SimpleNamespace(total=1 << 50, free=count))

    def has_no_home(self) -> None:
        """Lets the user be one with a random ID, as in a container: no HOME, no passwd entry."""

        def unknown(user: int) -> None:
            raise KeyError(f"getpwuid(): uid not found: {user}")

        self._patch.delenv("HOME", raising=False)
        self._patch.delenv("IMAGENET_PREP_CACHE", raising=False)
        self._patch.setattr(pwd, "getpwuid", unknown)

    def keeps_temporary_files(self, folder: Path) -> None:
        """Puts temporary files into a folder, as TMPDIR does for a new process."""
        self._patch.setattr(tempfile, "tempdir", str(folder))


def _path_of(named: int | str | os.PathLike[str] | None) -> Path:
    """Returns the path of a file that is named by its path or by a descriptor."""
    if isinstance(named, int):
        return Path(os.readlink(f"/proc/self/fd/{named}"))
    return Path(named or "")


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> System:
    """The operating system, for a test in which a call of it fails."""
    return System(monkeypatch)
