"""Runs cases by their numbers, prints each violation and a table; exit code 1 for any."""

from __future__ import annotations

import argparse
import contextlib
import os
import queue
import random
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from tests.hostile.mutations.case_runner import (
    CaseRunner,
    Combination,
    Outcome,
    case_runner,
    combination,
    pairs,
)
from tests.kit.miniature import miniature_for_tests
from tests.kit.shared import in_memory

_COMMAND = "python -m tests.hostile.mutations"


@dataclass
class Total:
    """All cases of a verb.

    Attributes:
        codes: the number of cases by exit code; None: a rule was broken.
        kinds: cases by the kind of file.
        cpu_s, peak_bytes: the maximum over all cases.
        seconds: of all cases together, on the clock.
    """

    codes: Counter[int | None] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    cpu_s: float = 0.0
    peak_bytes: int = 0
    seconds: float = 0.0


@dataclass
class Totals:
    """All cases of a run.

    Attributes:
        verbs: by scene and verb.
        mutations: cases by mutation.
        violations: the number of the case, and the broken rule.
    """

    verbs: dict[tuple[str, str], Total] = field(default_factory=dict)
    mutations: Counter[str] = field(default_factory=Counter)
    violations: list[tuple[int, str]] = field(default_factory=list)

    def add(self, number: int, chosen: Combination, outcome: Outcome, seconds: float) -> None:
        total = self.verbs.setdefault((chosen.scene, chosen.verb), Total())
        total.codes[outcome.code] += 1
        total.kinds[chosen.kind] += 1
        total.cpu_s = max(total.cpu_s, outcome.cpu_s)
        total.peak_bytes = max(total.peak_bytes, outcome.peak_bytes)
        total.seconds += seconds
        self.mutations[chosen.mutation] += 1
        if outcome.violation:
            self.violations.append((number, outcome.violation))


def run(seed: int, numbers: Sequence[int], jobs: int, only: Sequence[str] = ()) -> Totals:
    """Runs cases; prints those that break a rule.

    Args:
        seed, numbers: equal ones give the same case again.
        jobs: cases at a time.
        only: scenes; a case has a different number if this is given.
    """
    among = [pair for pair in pairs() if not only or pair[0] in only]
    totals = Totals()
    printing = threading.Lock()
    with contextlib.ExitStack() as closing:
        folder = Path(closing.enter_context(tempfile.TemporaryDirectory(dir=in_memory())))
        mini = miniature_for_tests(
            folder, num_classes=4, num_train=20, num_validation=8, size=(48, 36)
        )
        runners: queue.SimpleQueue[CaseRunner] = queue.SimpleQueue()
        for job in range(jobs):
            (folder / f"job-{job}").mkdir()
            runners.put(closing.enter_context(case_runner(folder / f"job-{job}", mini)))

        def one(number: int) -> None:
            chosen = combination(seed, number, among)
            place = runners.get()
            began = time.monotonic()
            try:
                outcome = place.case(chosen, random.Random(f"case {seed} {number}"))
            except Exception:  # a case that cannot be run is an error of this generator
                outcome = Outcome("", None, traceback.format_exc(), 0.0, 0)
            finally:
                runners.put(place)
            with printing:
                totals.add(number, chosen, outcome, time.monotonic() - began)
                if outcome.violation:
                    again = f"{_COMMAND} --seed {seed} --first {number} --cases 1"
                    again += f" --only {','.join(only)}" if only else ""
                    print(
                        f"VIOLATION ({again}): {', '.join(chosen)}\n  {outcome.what}\n  "
                        + outcome.violation.replace("\n", "\n  "),
                        flush=True,
                    )

        with ThreadPoolExecutor(jobs) as pool:
            for finished in [pool.submit(one, number) for number in numbers]:
                finished.result()
    return totals


def table(totals: Totals) -> str:
    """Returns a line per verb, a line per kind and verb, and one for all."""
    head = f"{'scene: verb':40s} {'cases':>6s} " + "".join(f"{f'exit {n}':>7s}" for n in range(5))
    lines = [f"{head} {'violations':>11s} {'most CPU s':>11s} {'most MB':>8s} {'clock s':>8s}"]
    for (scene, verb), total in sorted(totals.verbs.items()):
        codes = "".join(f"{total.codes[code]:7d}" for code in range(5))
        lines.append(
            f"{f'{scene}: {verb}':40s} {total.codes.total():6d} {codes} {total.codes[None]:11d} "
            f"{total.cpu_s:11.1f} {total.peak_bytes / 1e6:8,.0f} {total.seconds:8,.0f}"
        )
        lines.append("    " + ", ".join(f"{n} {kind}" for kind, n in sorted(total.kinds.items())))
    lines.append("mutations: " + ", ".join(f"{n} {m}" for m, n in sorted(totals.mutations.items())))
    cases = totals.mutations.total()
    lines.append(f"{cases:,} cases, {len(totals.violations):,} violations")
    return "\n".join(lines)


def main() -> int:
    """Reads the flags; returns the exit code."""
    parser = argparse.ArgumentParser(prog=_COMMAND, description=__doc__)
    parser.add_argument("--cases", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--only", default="", help="scenes, separated by commas")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    flags = parser.parse_args()
    only = flags.only.split(",") if flags.only else []
    if unknown := set(only) - {scene for scene, _, _ in pairs()}:
        parser.error(f"--only: no scene is called {', '.join(sorted(unknown))}")
    began = time.monotonic()
    totals = run(flags.seed, range(flags.first, flags.first + flags.cases), flags.jobs, only)
    print(table(totals))
    print(f"seed {flags.seed}, {time.monotonic() - began:,.0f} s")
    return int(bool(totals.violations))


if __name__ == "__main__":
    sys.exit(main())
