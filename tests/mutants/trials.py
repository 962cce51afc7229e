"""Tries mutants: each runs the tests of its line, in a copy of the checkout."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

from tests.mutants.changes import Mutant
from tests.mutants.covered import COPIES, ORDERED, PYTEST, Map, copy

# What a test that is killed leaves mounted or running goes with it, where root may ask for that.
APART = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
KILLED = "killed"
SURVIVED = "survived"
UNSEEN = "no test executes it"
OUTCOMES = (KILLED, SURVIVED, UNSEEN)
_TIMED_OUT = 137
_TICKS = count(1_000_000_000)


class Trial(NamedTuple):
    """One mutant of a module, what became of it, and the test that noticed it."""

    module: str
    mutant: Mutant
    outcome: str
    tests: int
    by: str

    def __str__(self) -> str:
        before = " ".join(self.mutant.before.split())
        where = f"{self.module}:{self.mutant.line}: {self.outcome}: {self.mutant.kind}"
        return f"{where}: {before}  ->  {self.mutant.text} ({self.tests} tests)"


class Trials:
    """The copies of the checkout, and the tests that were seen to pass on them without a mutant."""

    def __init__(self, found: Map, at_a_time: int) -> None:
        self._map, self._at_a_time = found, at_a_time
        self._places: SimpleQueue[Path] = SimpleQueue()
        self._pass: set[str] = set()
        self._fail: set[str] = set()
        self._lock = threading.Lock()
        for number in range(at_a_time):
            self._places.put(copy(COPIES / str(number)))

    def run(
        self, jobs: Sequence[tuple[str, Mutant]], on_trial: Callable[[Trial], None]
    ) -> list[Trial]:
        """Tries all mutants; `on_trial` is called with each one that is done."""

        def attempt(job: tuple[str, Mutant]) -> Trial:
            place = self._places.get()
            try:
                done = self._attempt(place, *job)
            finally:
                self._places.put(place)
            with self._lock:
                on_trial(done)
            return done

        with ThreadPoolExecutor(self._at_a_time) as pool:
            return list(pool.map(attempt, jobs))

    def _attempt(self, place: Path, module: str, mutant: Mutant) -> Trial:
        """A test that fails without the mutant, too, has noticed nothing: it is excluded."""
        while True:
            tests = [
                each for each in self._map.chosen(module, mutant.line) if each not in self._fail
            ]
            if not tests:
                return Trial(module, mutant, UNSEEN, 0, "")
            limit_s = 60 + 5 * sum(self._map.seconds[test] for test in tests)
            code, printed = _run(place, tests, limit_s, module, mutant)
            if not code:
                return Trial(module, mutant, SURVIVED, len(tests), "")
            if code == _TIMED_OUT:
                return Trial(module, mutant, KILLED, len(tests), f"no end within {limit_s:.0f} s")
            failed = re.findall(r"^(?:FAILED|ERROR) (\S+?::.+?)(?: - .*)?$", printed, re.MULTILINE)
            by = failed[0] if failed and failed[0] in tests else ""
            if by in self._pass or self._passes(place, [by] if by else tests, limit_s):
                self._pass |= {by} - {""}
                return Trial(module, mutant, KILLED, len(tests), by or f"pytest ended with {code}")
            self._fail |= {by} if by else set(tests)

    def _passes(self, place: Path, tests: Sequence[str], limit_s: float) -> bool:
        return not _run(place, tests, limit_s)[0]


def _run(
    place: Path,
    tests: Sequence[str],
    limit_s: float,
    module: str = "",
    mutant: Mutant | None = None,
) -> tuple[int, str]:
    """Runs tests in a copy of the checkout, with a mutant or without; returns code and output."""
    apart = APART if os.geteuid() == 0 and shutil.which(APART[0]) else ()
    argv = [*apart, "timeout", "--signal=KILL", str(limit_s), *PYTEST, "-x", "-n", "0", *tests]
    source = (place / module).read_bytes() if mutant else b""
    try:
        if mutant:
            _write(place / module, mutant.put(source))
        done = subprocess.run(argv, cwd=place, env=ORDERED, capture_output=True, check=False)
    finally:
        if mutant:
            _write(place / module, source)
    return done.returncode, done.stdout.decode(errors="replace")


def _write(path: Path, source: bytes) -> None:
    """Gives a module a time of its own: Python keeps what it compiled for a time and a size."""
    path.write_bytes(source)
    tick = next(_TICKS)
    os.utime(path, (tick, tick))
