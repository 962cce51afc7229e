"""Runs rows of the table with random faults, and prints a table of totals.

python -m tests.campaign --rounds 600 --seed 1        random rows and random faults
python -m tests.campaign --rounds 20 prepare resize   only these commands
python -m tests.campaign --fault "failing call" --all every call of every command, once each

Exit code 1: a promise was broken. The line of a violation names the row and the case.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import queue
import random
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from tests.campaign import calls
from tests.campaign.attempts import Attempt, Kind
from tests.campaign.failing import FailingCall
from tests.campaign.losing import LostFile
from tests.campaign.meeting import SecondCommand
from tests.campaign.power import PowerLost, PowerLostLater
from tests.campaign.rounds import Rooms, Round
from tests.campaign.scenes import Theatre
from tests.campaign.several import SeveralFaults
from tests.campaign.signals import Signal
from tests.campaign.table import ROWS, Fault, Row
from tests.campaign.unreadable import Unreadable
from tests.kit.shared import in_memory

Attempts = Callable[["Runner", Row], Iterable[Attempt]]


class Runner:
    """Tries one case at a time; its folders and processes are made when they are needed."""

    def __init__(self, folder: Path, library: Path) -> None:
        self._closing = contextlib.ExitStack()
        self._rooms: Rooms | None = None
        self.theatre = Theatre(folder, library)
        self._closing.callback(self.theatre.close)
        in_rooms = Round(self._room)
        self._kinds: dict[Fault, Kind] = {
            Fault.KILLED: Signal(signal.SIGKILL),
            Fault.TERMINATED: Signal(signal.SIGTERM),
            Fault.INTERRUPTED: Signal(signal.SIGINT),
            Fault.SHORT_CALL: FailingCall("EINTR", calls.SHORT),
            Fault.FAILING_CALL: FailingCall("EIO"),
            Fault.FULL_DISK: FailingCall("ENOSPC", "EDQUOT"),
            Fault.POWER_LOST: PowerLost(),
            Fault.POWER_LOST_LATER: PowerLostLater(),
            Fault.FILE_LOST: LostFile(is_truncated=False),
            Fault.FILE_TRUNCATED: LostFile(is_truncated=True),
            Fault.SECOND_COMMAND: SecondCommand(),
            Fault.UNREADABLE: Unreadable(),
            Fault.SOURCE_CHANGED: in_rooms,
            Fault.SEVERAL_IN_ROUNDS: in_rooms,
            Fault.SEVERAL: SeveralFaults(),
        }

    def close(self) -> None:
        self._closing.close()

    def sample(self, row: Row, rng: random.Random) -> Attempt:
        """Tries a random case of a row."""
        return self.attempt(row, self._kinds[row.promise.fault].sample(self.theatre, row, rng))

    def cases(self, row: Row) -> Iterable[str]:
        """Returns all cases of a row."""
        return self._kinds[row.promise.fault].every(self.theatre, row)

    def attempt(self, row: Row, case: str) -> Attempt:
        """Tries a case; an error in the campaign itself is a violation, too."""
        try:
            return self._kinds[row.promise.fault].attempt(self.theatre, row, case)
        except Exception as error:
            unforeseen = "" if isinstance(error, AssertionError) else traceback.format_exc()
            self.theatre.story.end()
            again = f"--row {str(row)!r} --case {case!r}"
            return Attempt(violation=f"{again}: {error}\n{unforeseen}".strip())

    def _room(self) -> Rooms:
        if self._rooms is None:
            self._rooms = Rooms()
            self._closing.callback(self._rooms.close)
        return self._rooms


@contextlib.contextmanager
def runners(number: int) -> Iterator[queue.SimpleQueue[Runner]]:
    """Yields runners, in memory if there is enough."""
    with contextlib.ExitStack() as closing:
        folder = closing.enter_context(tempfile.TemporaryDirectory(dir=in_memory()))
        # The library compares paths as the system names them, without links.
        root = Path(folder).resolve()
        library = calls.build(root)
        free: queue.SimpleQueue[Runner] = queue.SimpleQueue()
        for job in range(number):
            (root / f"job-{job}").mkdir()
            runner = Runner(root / f"job-{job}", library)
            closing.callback(runner.close)
            free.put(runner)
        yield free


@dataclass
class Total:
    """All attempts at one row."""

    attempts: int = 0
    codes: Counter[int] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)

    def add(self, attempt: Attempt) -> None:
        self.attempts += 1
        self.codes.update(attempt.codes)
        self.faults += attempt.faults
        if attempt.violation:
            self.violations.append(attempt.violation)
            print(f"VIOLATION {attempt.violation}", flush=True)


def try_all(rows: Sequence[Row], jobs: int) -> dict[str, Total]:
    """Tries all cases of some rows."""

    def attempts(runner: Runner, row: Row) -> Iterable[Attempt]:
        return (runner.attempt(row, case) for case in runner.cases(row))

    return _run([(row, attempts) for row in rows], jobs)


def try_random(rows: Sequence[Row], numbers: range, seed: int, jobs: int) -> dict[str, Total]:
    """Tries a random row with a random case for each number; equal numbers are equal attempts."""
    work = []
    for number in numbers:
        rng = random.Random(f"{seed} {number}")
        # Each kind of fault is equally likely, although some have more commands.
        fault = rng.choice(sorted({row.promise.fault.value for row in rows}))
        row = rng.choice([row for row in rows if row.promise.fault.value == fault])
        work.append((row, lambda runner, row, rng=rng: [runner.sample(row, rng)]))
    return _run(work, jobs)


def try_case(row: Row, case: str) -> dict[str, Total]:
    """Tries one case of a row."""
    return _run([(row, lambda runner, row: [runner.attempt(row, case)])], 1)


def _run(work: Sequence[tuple[Row, Attempts]], jobs: int) -> dict[str, Total]:
    totals: dict[str, Total] = {}
    with runners(jobs) as free, ThreadPoolExecutor(jobs) as pool:

        def one(row: Row, attempts: Attempts) -> None:
            runner = free.get()
            try:
                for attempt in attempts(runner, row):
                    totals.setdefault(str(row), Total()).add(attempt)
            finally:
                free.put(runner)

        for finished in [pool.submit(one, *each) for each in work]:
            finished.result()
    return totals


def summary(totals: dict[str, Total]) -> str:
    """Returns a line for each row, and one for all."""
    lines = [f"{'row':60s} {'attempts':>8s} {'faults':>7s} {'violations':>11s}  exit codes"]
    all_rows = Total()
    for name in sorted(totals):
        total = totals[name]
        lines.append(_line(name, total))
        all_rows.attempts += total.attempts
        all_rows.codes += total.codes
        all_rows.faults += total.faults
        all_rows.violations += total.violations
    return "\n".join([*lines, _line("all", all_rows)])


def _line(name: str, total: Total) -> str:
    codes = ", ".join(f"{code}: {number}" for code, number in sorted(total.codes.items()))
    faults = total.faults.total()
    return f"{name:60s} {total.attempts:8d} {faults:7d} {len(total.violations):11d}  {codes}"


def main(argv: Sequence[str] | None = None) -> int:
    """Reads the flags; returns the exit code."""
    faults = [fault.value for fault in Fault]
    parser = argparse.ArgumentParser(
        prog="python -m tests.campaign",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("verbs", nargs="*", metavar="VERB", help="commands; all if none is named")
    parser.add_argument("--fault", choices=faults, action="append", help="only this; repeatable")
    parser.add_argument("--rounds", type=int, default=100, help="number of random attempts")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first attempt")
    parser.add_argument("--all", action="store_true", help="all cases of the rows, none at random")
    parser.add_argument("--row", help="only this row, as it is printed")
    parser.add_argument("--case", help="with --row: only this case")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    flags = parser.parse_args(argv)
    rows = [
        row
        for row in ROWS
        if (not flags.verbs or row.verb in flags.verbs)
        and (not flags.fault or row.promise.fault.value in flags.fault)
        and (not flags.row or str(row) == flags.row)
    ]
    if not rows:
        parser.error("no row of the table has this command and this fault")
    start = time.monotonic()
    if flags.case:
        totals = try_case(rows[0], flags.case)
    elif flags.all:
        totals = try_all(rows, flags.jobs)
    else:
        numbers = range(flags.first, flags.first + flags.rounds)
        totals = try_random(rows, numbers, flags.seed, flags.jobs)
    print(summary(totals))
    print(f"seed {flags.seed}, {time.monotonic() - start:,.0f} s")
    return int(any(total.violations for total in totals.values()))


if __name__ == "__main__":
    sys.exit(main())
