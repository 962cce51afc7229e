"""Notes which test executes which lines of some modules, also in the processes that it starts.

This is a plugin of pytest; in a copy of the checkout, sitecustomize.py calls `follow` in all other
processes. Each appends what it executes to a file of its own at once, since tests kill many. It
finds its test by its ancestors: pytest keeps the test's name in a file named after its own pid.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "executed"


class _Follower:
    """Notes each line of the modules that a test executes once per process."""

    def __init__(self) -> None:
        modules = json.loads((FOLDER / "modules.json").read_text())
        self._modules = {str(ROOT / name): name for name in modules}
        self.restart()

    def restart(self) -> None:
        """Notes all lines again, for the test of this process's ancestors.

        The file is opened in advance, because a cage cannot open files.
        """
        self._file = open(FOLDER / f"{os.getpid()}.lines", "ab", buffering=0)  # noqa: SIM115
        self.begin(_test_of_ancestors())

    def begin(self, test: str) -> None:
        """Notes all lines again, for this test."""
        self._test = test
        self._seen: set[tuple[str, int]] = set()
        if sys.version_info >= (3, 12):
            sys.monitoring.restart_events()

    def note(self, code: CodeType, line: int) -> object:
        """Notes a line; returns what tells the interpreter not to report it again."""
        module = self._modules.get(code.co_filename)
        if module and (module, line) not in self._seen:
            self._seen.add((module, line))
            with contextlib.suppress(OSError):  # a test has closed all descriptors
                self._file.write(json.dumps((self._test, module, line)).encode() + b"\n")
        return sys.monitoring.DISABLE if sys.version_info >= (3, 12) else None

    def trace(self, frame: FrameType, event: str, _value: object) -> Any:
        """The trace function of Python 3.11, which slows each line down."""
        if frame.f_code.co_filename not in self._modules:
            return None
        if event == "line":
            self.note(frame.f_code, frame.f_lineno)
        return self.trace


@functools.cache
def follow() -> _Follower:
    """Follows this process, what it forks, and the threads that it starts."""
    follower = _Follower()
    os.register_at_fork(after_in_child=follower.restart)
    if sys.version_info >= (3, 12):
        monitoring = sys.monitoring
        monitoring.use_tool_id(monitoring.COVERAGE_ID, __name__)
        monitoring.register_callback(monitoring.COVERAGE_ID, monitoring.events.LINE, follower.note)
        monitoring.set_events(monitoring.COVERAGE_ID, monitoring.events.LINE)
        atexit.register(monitoring.set_events, monitoring.COVERAGE_ID, 0)
    else:
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


def pytest_configure() -> None:
    follow()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Names the test that runs, for this process and for its children."""
    follow().begin(item.nodeid)
    partial = FOLDER / f"{os.getpid()}.partial"
    partial.write_text(item.nodeid)
    partial.rename(FOLDER / f"{os.getpid()}.test")


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        _note("broken", report.nodeid)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if not report.skipped and (report.when == "call" or report.failed):
        _note("seconds", [report.nodeid, report.duration, report.passed])
