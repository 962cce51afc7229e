"""Changes of the process that a test leaves behind are noticed."""

from __future__ import annotations

import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFile

from tests.kit import leftovers

Change = Callable[[Path, pytest.MonkeyPatch], object]

CHANGES: dict[str, Change] = {
    "$TZ": lambda _, patch: patch.setenv("TZ", "UTC"),
    "$HOME": lambda _, patch: patch.delenv("HOME"),
    "names of our variables": lambda _, patch: patch.setenv("AWS_PROFILE", "mine"),
    "working directory": lambda folder, patch: patch.chdir(folder),
    "arguments": lambda _, patch: patch.setattr(sys, "argv", ["prepare"]),
    "module path": lambda folder, patch: patch.syspath_prepend(folder),
    "level of the log": lambda _, patch: patch.setattr(logging.root, "level", logging.DEBUG),
    "Pillow's limit of pixels": lambda _, patch: patch.setattr(Image, "MAX_IMAGE_PIXELS", 1),
    "Pillow's acceptance of truncated images": lambda _, patch: patch.setattr(
        ImageFile, "LOAD_TRUNCATED_IMAGES", True
    ),
}


@pytest.mark.parametrize(("name", "change"), CHANGES.items(), ids=CHANGES)
def test_a_change_is_named(
    name: str, change: Change, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/any")
    before = leftovers.state()
    assert leftovers.changes(before, leftovers.state()) == []
    change(tmp_path, monkeypatch)

    (said,) = leftovers.changes(before, leftovers.state())
    assert said.startswith(f"{name}: ")


def test_changes_below_python_are_named() -> None:
    before = leftovers.state()
    handler = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    umask = os.umask(0o077)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 40, limits[1]))
    socket.setdefaulttimeout(5)
    try:
        with np.errstate(all="raise"):
            after = leftovers.state()
    finally:
        signal.signal(signal.SIGHUP, handler)
        os.umask(umask)
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        socket.setdefaulttimeout(None)

    changed = {said.partition(":")[0] for said in leftovers.changes(before, after)}
    limit = f"limit {resource.RLIMIT_FSIZE}"
    expected = {"handler of SIGHUP", "umask", "timeout of sockets", "NumPy's errors", limit}
    assert changed == expected
    assert leftovers.changes(before, leftovers.state()) == []


def test_variables_of_libraries_are_no_change(monkeypatch: pytest.MonkeyPatch) -> None:
    before = leftovers.state()
    monkeypatch.setenv("TF2_BEHAVIOR", "1")

    assert leftovers.changes(before, leftovers.state()) == []
