"""Notes which test executes which lines of some modules, also in the processes that it starts.

This is a plugin of pytest; in a copy of the checkout, sitecustomize.py calls `follow` in all other
processes. Each appends what it executes to a file of its own at once, since tests kill many. It
finds its test by its ancestors: pytest keeps the test's name in a file named after its own pid.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "executed"


class _Follower:
    """The trace function of one process and of those that it forks."""

    def __init__(self) -> None:
        modules = json.loads((FOLDER / "modules.json").read_text())
        self._modules = {str(ROOT / name): name for name in modules}
        self._pid = os.getpid()
        self.test = _test_of_ancestors()
        self._seen: set[tuple[str, str, int]] = set()

    def trace(self, frame: FrameType, _event: str, _value: object) -> Any:
        return self._line if frame.f_code.co_filename in self._modules else None

    def _line(self, frame: FrameType, event: str, _value: object) -> Any:
        if event == "line":
            if self._pid != os.getpid():
                self._pid = os.getpid()
                self.test = _test_of_ancestors()
                self._seen = set()
            seen = (self.test, self._modules[frame.f_code.co_filename], frame.f_lineno)
            if seen not in self._seen:
                self._seen.add(seen)
                _note("lines", seen)
        return self._line


_FOLLOWER = pytest.StashKey[_Follower]()


def follow() -> _Follower:
    """Follows this process, what it forks, and the threads that it starts."""
    follower = _Follower()
    threading.settrace(follower.trace)
    sys.settrace(follower.trace)
    return follower


def written(folder: Path, kind: str) -> Iterator[Any]:
    """Yields what all processes have noted; the last line of a killed one may be cut."""
    for path in sorted(folder.glob(f"*.{kind}")):
        lines = path.read_text().splitlines(keepends=True)
        yield from (json.loads(line) for line in lines if line.endswith("\n"))


def _note(kind: str, what: object) -> None:
    with open(FOLDER / f"{os.getpid()}.{kind}", "a") as file:
        file.write(json.dumps(what) + "\n")


def _test_of_ancestors() -> str:
    pid = os.getpid()
    while pid > 1:
        if (name := FOLDER / f"{pid}.test").exists():
            return name.read_text()
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return ""


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_FOLLOWER] = follow()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Names the test that runs, for this process and for its children."""
    item.config.stash[_FOLLOWER].test = item.nodeid
    partial = FOLDER / f"{os.getpid()}.partial"
    partial.write_text(item.nodeid)
    partial.rename(FOLDER / f"{os.getpid()}.test")


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        _note("broken", report.nodeid)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if not report.skipped and (report.when == "call" or report.failed):
        _note("seconds", [report.nodeid, report.duration, report.passed])
