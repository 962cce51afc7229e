"""Makes every call fail that a command makes to read a sound dataset, one in each run.

python -m tests.campaign.unreadable

A disk or a file server that fails for a moment says nothing about the data. So a command that only
reads may then end well, because it did not need the answer, or with exit code 1. It never says that
a sound dataset is damaged, and never advises to delete any of it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tests.campaign.scenes import Theatre, dataset, theatres
from tests.campaign.story import hold
from tests.kit import amended
from tests.kit.columns import make_column

CALLS = ("open", "read", "pread", "stat", "list")
ERRORS = ("EIO", "ESTALE", "EACCES", "ENOMEM")
# {set}, {copy}: a sound dataset with a column, and its sound replica. {out}: a path without a file.
COMMANDS = {
    "verify": "verify {set} --workers 1",
    "verify --level decode": "verify {set} --level decode --workers 1",
    "verify --level manifest": "verify {set} --level manifest --workers 1",
    "verify --if-changed": "verify {set} --if-changed --workers 1",
    "diff": "diff {set} {copy} --out {out}",
    "replicate --check": "replicate {set} --to {copy} --check",
    "duplicates": "duplicates {set} --out {out} --workers 1",
    "report": "report {set} --out {out}.html",
    "show": "show {set} --keys",
    "export": "export {set} --to webdataset --out {out} --workers 1",
    "resize": "resize -i {set} -o {out} -s train,validation -r 24 --workers 1",
    "adopt": "adopt {set} --out {out} --allow-subset --workers 1",
    "amend": "amend {set} --out {out} --exclude {keys} --workers 1",
    "replicate": "replicate {set} --to {out}",
}
# Words that a message must not use, because nothing was found out about the data.
_BLAMES = re.compile(r"damaged|[Dd]elete|truncated|missing|differs|Copy .* again|[Gg]et .* again")
_MOST = 5000


class Case(NamedTuple):
    """The call that fails in one run: the `number`-th of its kind, and perhaps all later ones."""

    command: str
    call: str
    error: str
    number: int
    goes_on: bool

    def __str__(self) -> str:
        later = " --on" if self.goes_on else ""
        of = f"--only {self.command!r} --call {self.call} --error {self.error}"
        return f"{of} --at {self.number}{later}"


class Stage:
    """A theatre with the datasets that all commands read."""

    def __init__(self, theatre: Theatre) -> None:
        self._theatre = theatre
        self.set = dataset(theatre)
        make_column(self.set)
        self._copy = theatre.disk / "copy"
        # Not below the folder in which calls fail: a list of keys is no data.
        self._keys = theatre.given / "keys"
        self._out = theatre.given / "out"
        theatre.story.undisturbed(["replicate", str(self.set), "--to", str(self._copy)])
        self._keys.write_text(min(amended.rows(self.set, "train")) + "\n")

    def counts(self, command: str) -> dict[str, int]:
        """Returns the number of calls of each kind that an undisturbed command makes."""
        code, said = self._run(command)
        hold(code == 0, f"{command}: {said}")
        counts: dict[str, int] = self._theatre.noted()["counts"]
        return counts

    def attempt(self, case: Case) -> tuple[int, str] | None:
        """Runs a case; returns the exit code and what is wrong; None if no call failed."""
        code, said = self._run(
            case.command, fail=(case.call, case.number, case.error, case.goes_on)
        )
        if not self._theatre.noted()["failed"]:
            return None
        wrong = ""
        # 4: a run that writes may keep its finished work.
        if code not in (0, 1, 4):
            wrong = f"exit code {code}"
        elif code and (blame := _BLAMES.search(said)):
            wrong = f"says {blame[0]!r}"
        return code, f"{wrong}: {said[-1500:]}" if wrong else ""

    def _run(self, command: str, **what: object) -> tuple[int, str]:
        theatre = self._theatre
        theatre.remove(self._out)
        places = {"set": self.set, "copy": self._copy, "out": self._out, "keys": self._keys}
        words = [word.format(**places) for word in COMMANDS[command].split()]
        told = {"folder": str(theatre.disk), "note": str(theatre.note), **what}
        theatre.story.start(words, calls=told)
        ended = theatre.story.finish(*range(256))
        return ended.code, (ended.out + ended.err).decode(errors="replace")


def cases(
    commands: Iterable[str], calls: Iterable[str], errors: Iterable[str]
) -> Iterator[Iterator[Case]]:
    """Yields a row of cases for each command, call and error: one failure, or failures for good."""
    for command, call, error, goes_on in itertools.product(commands, calls, errors, (False, True)):
        yield (Case(command, call, error, number, goes_on) for number in range(1, _MOST))


def sample(stage: Stage, command: str, number: int, seed: int) -> list[Case]:
    """Returns a random sample of the cases of a command, of all kinds of calls that it makes."""
    counts = {call: count for call, count in stage.counts(command).items() if call in CALLS}
    made = sorted(call for call, count in counts.items() if count)
    rng = random.Random(f"{seed} {command}")
    chosen = []
    for call in itertools.islice(itertools.cycle(made), number):
        at = rng.randint(1, counts[call])
        chosen.append(Case(command, call, rng.choice(ERRORS), at, rng.random() < 0.5))
    return chosen


def each_once(stage: Stage, command: str) -> Iterator[Case]:
    """Yields a case for each call of a command; the errors take turns."""
    counts = stage.counts(command)
    errors = itertools.cycle(ERRORS)
    for call in CALLS:
        for number in range(1, counts[call] + 1):
            yield Case(command, call, next(errors), number, goes_on=False)


def run(rows: Iterable[Iterable[Case]], stage: Stage) -> tuple[Counter[str], list[str]]:
    """Runs cases, each row until a call is not made; returns the exit codes and what is wrong."""
    codes: Counter[str] = Counter()
    wrong = []
    for row in rows:
        for case in row:
            outcome = stage.attempt(case)
            if outcome is None:
                break
            codes[f"{case.command}: {outcome[0]}"] += 1
            if outcome[1]:
                wrong.append(f"{case}: {outcome[1]}")
                print(f"WRONG ({case}): {outcome[1]}", flush=True)
    return codes, wrong


def main() -> int:
    """Reads the flags; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.campaign.unreadable", description=__doc__
    )
    parser.add_argument("--only", default=",".join(COMMANDS), help="commands, separated by commas")
    parser.add_argument("--call", default=",".join(CALLS), help="calls, separated by commas")
    parser.add_argument("--error", default=",".join(ERRORS), help="errors, separated by commas")
    parser.add_argument("--at", type=int, default=0, help="only this call, counted from 1")
    parser.add_argument("--on", action="store_true", help="with --at: later calls fail, too")
    parser.add_argument("--sample", type=int, default=0, help="random cases of each command")
    flags = parser.parse_args()
    began = time.monotonic()
    commands, calls, errors = (each.split(",") for each in (flags.only, flags.call, flags.error))
    with theatres(1) as free:
        stage = Stage(free.get())
        if flags.at:
            rows = [[Case(commands[0], calls[0], errors[0], flags.at, flags.on)]]
        elif flags.sample:
            rows = [[case] for each in commands for case in sample(stage, each, flags.sample, 0)]
        else:
            rows = cases(commands, calls, errors)
        codes, wrong = run(rows, stage)
    print(json.dumps(codes, indent=1))
    print(f"{codes.total():,} runs, {len(wrong)} wrong, {time.monotonic() - began:,.0f} s")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
