"""The processor time of a test run by room; CONTRIBUTING.md has the table of it.

Processor time, since wall time says nothing on a machine that does other things as well.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import statistics
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any

import pytest

from tests.kit.command import REPOSITORY

TABLE = REPOSITORY / "CONTRIBUTING.md"
# The fixtures of the session, which the first test that needs one makes, and the collection.
SHARED = "shared"
# Rooms of less have no row.
LEAST_S = 30.0


def seconds_of(document: str) -> dict[str, float]:
    """Returns the seconds of each room by the table of a document."""
    rows = re.findall(r"^\| `?([\w/]+)`? \| (\d+) \|$", document, re.MULTILINE)
    return {room: float(seconds) for room, seconds in rows}


def table_of(measured: Mapping[str, float]) -> str:
    """Returns the rows of the table, in the form of CONTRIBUTING.md."""
    rows = sorted(measured.items(), key=lambda row: -row[1])
    kept = [f"| `{room}` | {seconds:.0f} |\n" for room, seconds in rows if seconds >= LEAST_S]
    return "".join(["| room | CPU seconds |\n|---|---:|\n", *kept])


def above(measured: Mapping[str, float], table: Mapping[str, float]) -> list[str]:
    """Returns a sentence for each room that takes half more than its row, or than `LEAST_S`.

    A slower machine is slower in most rooms: the table is scaled by the median of their ratios.
    """
    ratios = [measured[room] / table[room] for room in table if room in measured]
    scale = max(1.0, statistics.median(ratios or [1.0]))
    bounds = {room: 1.5 * scale * max(table.get(room, 0.0), LEAST_S) for room in measured}
    return [
        f"{room}: {measured[room]:.0f} s of processor time, expected at most {bounds[room]:.0f} s"
        for room in measured
        if measured[room] > bounds[room]
    ]


class Meter:
    """A plugin that adds up processor time by room, also that of children that have ended.

    Workers of xdist send their sums to the process that prints. After a complete run it writes
    build/cpu.md, and names each room that is `above` its row if the machine was quiet. That
    fails no run: a fixture counts for the room and the worker that happen to need it first.
    """

    def __init__(self, room_of: Callable[[pytest.Item], str]) -> None:
        self._room_of = room_of
        self._seconds: Counter[str] = Counter()
        self._inner = 0.0
        self._above: list[str] = []

    @contextlib.contextmanager
    def _counted(self, room: str) -> Iterator[None]:
        """Adds the time of the block to a room, without that of blocks within it."""
        begin = _spent()
        outer = self._inner
        self._inner = 0.0
        try:
            yield
        finally:
            used = _spent() - begin
            self._seconds[room] += used - self._inner
            self._inner = outer + used

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None]:
        with self._counted(self._room_of(item)):
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None]:
        with self._counted(self._room_of(item)):
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None]:
        # The last one ends the servers of the session.
        with self._counted(self._room_of(item) if nextitem else SHARED):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(
        self, fixturedef: pytest.FixtureDef[Any]
    ) -> Generator[None, object, object]:
        if fixturedef.scope != "session":
            return (yield)
        with self._counted(SHARED):
            return (yield)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Takes the sums of a worker that has ended."""
        self._seconds.update(getattr(node, "workeroutput", {}).get("cpu", {}))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Sends the sums, or compares them with the table."""
        config = session.config
        if hasattr(config, "workeroutput"):
            self._seconds[SHARED] += _spent() - self._seconds.total()
            config.workeroutput["cpu"] = dict(self._seconds)
            return
        asked = config.option
        whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS
        if not whole or asked.markexpr or asked.keyword or asked.collectonly or not self._seconds:
            return
        file = REPOSITORY / "build" / "cpu.md"
        file.parent.mkdir(exist_ok=True)
        file.write_text(table_of(self._seconds))
        # Processes that wait for the processor take more of it: caches are not theirs.
        if os.getloadavg()[2] <= 2 * len(os.sched_getaffinity(0)):
            self._above = above(self._seconds, seconds_of(TABLE.read_text("utf-8")))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Says which rooms are above their row, and what to do."""
        if self._above:
            terminalreporter.section("processor time by room", red=True)
            advice = "Make the tests cheaper, or copy the row of build/cpu.md to CONTRIBUTING.md."
            terminalreporter.write_line("\n".join([*self._above, advice]))


def _spent() -> float:
    """Returns the processor seconds of this process and of its children that have ended."""
    used = [resource.getrusage(of) for of in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)
