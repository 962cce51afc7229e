"""Makes every call fail that a verb makes of the system, one in each run.

python -m tests.campaign.failing

A run of a small scene has some hundreds of calls that write, sync, name or read files. Each of them
fails in a run of its own, with each error that the system may give. Whatever fails, the run may not
say that all is well while something is wrong, nor leave a file under its final name with other
bytes; and the same command then does what is left. Exit code 1: something did not hold.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from imagenet_prep.dataset import schema
from tests.campaign.calls import SHORT
from tests.campaign.scenes import SCENES, Theatre, hold_finished, hold_visible, theatres
from tests.campaign.story import ViolationError, hold

# What each call may end with. A disk that is full stays full; a disk that fails may fail once.
_WRITING = ("EIO", "ENOSPC", "EDQUOT")
ERRORS = {
    "write": (*_WRITING, "EINTR", SHORT),
    "pwrite": (*_WRITING, "EINTR", SHORT),
    "fsync": (*_WRITING, "EINTR"),
    "fdatasync": (*_WRITING, "EINTR"),
    "rename": _WRITING,
    "link": _WRITING,
    "unlink": ("EIO",),
    "fallocate": (*_WRITING, "EINTR"),
    "open": ("EIO", "EINTR"),
    "create": (*_WRITING, "EINTR"),
    "read": ("EIO", "EINTR", SHORT),
    "pread": ("EIO", "EINTR", SHORT),
    "ftruncate": ("EIO", "EINTR"),
    "mkdir": _WRITING,
    "syncfs": _WRITING,
    "stat": ("EIO",),
    "list": ("EIO",),
}
ALL = ("EIO", SHORT, "ENOSPC", "EINTR", "EDQUOT")
_STAYS = ("ENOSPC",)
# No failure at all: whoever calls goes on where it was.
_HARMLESS = ("EINTR", SHORT)
# Work that waits for other threads may look more often at what they do in a run than in another.
_MOST = 5000


class Case(NamedTuple):
    """The call that fails in one run: the `number`-th of its kind."""

    scene: str
    call: str
    error: str
    number: int

    @property
    def is_lost_sync(self) -> bool:
        """Whether bytes or names that somebody wanted to be safe may not be so."""
        return self.call in ("fsync", "fdatasync", "syncfs") and self.error not in _HARMLESS

    def __str__(self) -> str:
        return f"--only {self.scene!r} --call {self.call} --error {self.error} --at {self.number}"


@dataclass
class Total:
    """What became of all runs of one scene."""

    runs: Counter[tuple[str, str]] = field(default_factory=Counter)
    codes: Counter[int] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)


def attempt(theatre: Theatre, case: Case) -> tuple[int, str] | None:
    """Carries out a case; returns the exit code and what does not hold; None: nothing failed."""
    scene = theatre.scene(case.scene)
    theatre.reset(scene)
    theatre.start(scene, fail=(case.call, case.number, case.error, case.error in _STAYS))
    code = -1
    try:
        ended = theatre.story.finish(0, 1, 3, 4)
        code = ended.code
        if not theatre.noted()["failed"]:
            return None
        said = ended.err.decode(errors="replace").strip().splitlines()
        if code == 0:
            hold_finished(scene)
            told = not case.is_lost_sync or _is_of_note(theatre, case)
            hold(told, "what a sync could not write was not told")
        else:
            hold(case.error not in _HARMLESS, f"exit code {code}: {said}")
            sentence = said[-1] if said else ""
            is_one = sentence.startswith("imagenet-prep: ") and len(sentence.split()) > 5
            hold(is_one, f"exit code {code} without a sentence: {said}")
            hold_visible(scene)
            theatre.story.undisturbed(scene.words, **scene.told)
            hold_finished(scene)
        theatre.hold_sources(scene)
    except ViolationError as violation:
        return code, str(violation)
    return code, ""


def _is_of_note(theatre: Theatre, case: Case) -> bool:
    """Whether a call syncs the note of the source: without it, the next run compares more."""
    noted = f"{schema.WORK}/source.json"
    number = theatre.counts(case.scene)[case.call]
    # The last two are those of the note and of its folder.
    return (theatre.scene(case.scene).target / noted).exists() and case.number > number - 2


def run(cases: Sequence[Iterable[Case]], jobs: int) -> dict[str, Total]:
    """Carries out cases, and prints what does not hold; returns what happened, by scene.

    Args:
      cases: each row ends early at the first case whose call is never made.
      jobs: rows at a time.
    """
    totals = {name: Total() for name in SCENES}

    def one(row: Iterable[Case]) -> list[tuple[Case, tuple[int, str]]]:
        theatre = free.get()
        found = []
        try:
            for case in row:
                if (outcome := attempt(theatre, case)) is None:
                    break
                found.append((case, outcome))
                if outcome[1]:
                    print(f"VIOLATION ({case}): {outcome[1]}", flush=True)
        finally:
            free.put(theatre)
        if found:
            last = found[-1][0]
            print(f"{last.scene}: {last.call}, {last.error}: {len(found)} runs", flush=True)
        return found

    with theatres(jobs) as free, ThreadPoolExecutor(jobs) as pool:
        for row in [pool.submit(one, row) for row in cases]:
            for case, (code, violation) in row.result():
                total = totals[case.scene]
                total.runs[case.call, case.error] += 1
                total.codes[code] += 1
                if violation:
                    total.violations.append(f"{case}: {violation}")
    return totals


def every(
    names: Iterable[str], kinds: Iterable[str], errors: Iterable[str] = ALL
) -> list[Iterable[Case]]:
    """Returns all cases of some scenes, calls and errors: a row for each, EIO first."""
    return [
        map(partial(Case, name, call, error), range(1, _MOST))
        for error in errors
        for name, call in itertools.product(names, kinds)
        if error in ERRORS[call]
    ]


def sample(theatre: Theatre, name: str, number: int, seed: int) -> list[Case]:
    """Returns some cases of a scene, of as many different calls as it makes."""
    counts = {call: count for call, count in theatre.counts(name).items() if count}
    rng = random.Random(f"{seed} {name}")
    some = itertools.islice(itertools.cycle(rng.sample(sorted(counts), len(counts))), number)
    return [Case(name, c, rng.choice(ERRORS[c]), rng.randint(1, counts[c])) for c in some]


def table(totals: dict[str, Total]) -> str:
    """Returns a line a scene with how many calls of each kind have failed, and one for all."""
    kinds = [kind for kind in ERRORS if any(k == kind for t in totals.values() for k, _ in t.runs)]
    lines = [f"{'scene':12s}" + "".join(f"{kind:>10s}" for kind in (*kinds, "all", "wrong"))]
    sums: Counter[str] = Counter()
    for name, total in totals.items():
        if not total.runs:
            continue
        by_kind: Counter[str] = Counter()
        for (kind, _), number in total.runs.items():
            by_kind[kind] += number
        by_kind.update(all=total.runs.total(), wrong=len(total.violations))
        sums += by_kind
        lines.append(f"{name:12s}" + _row(by_kind, kinds) + f"   exits {dict(total.codes)}")
    lines.append(f"{'all':12s}" + _row(sums, kinds))
    errors: Counter[str] = Counter()
    for total in totals.values():
        for (_, error), number in total.runs.items():
            errors[error] += number
    lines.append(", ".join(f"{error} {number:,}" for error, number in sorted(errors.items())))
    return "\n".join(lines)


def _row(counts: Counter[str], kinds: Sequence[str]) -> str:
    return "".join(f"{counts[kind]:10,d}" for kind in (*kinds, "all", "wrong"))


def main() -> int:
    """Reads the flags; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaign.failing", description=__doc__)
    parser.add_argument("--only", default=",".join(SCENES), help="scenes, separated by commas")
    parser.add_argument("--call", default=",".join(ERRORS), help="calls, separated by commas")
    parser.add_argument("--error", default=",".join(ALL), help="errors, separated by commas")
    parser.add_argument("--at", type=int, default=0, help="this call alone, counted from 1")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    flags = parser.parse_args()
    began = time.monotonic()
    rows = every(*(each.split(",") for each in (flags.only, flags.call, flags.error)))
    if flags.at:
        rows = [
            [case for case in itertools.islice(row, flags.at) if case.number == flags.at]
            for row in rows
        ]
    totals = run(rows, flags.jobs)
    print(table(totals))
    print(f"{time.monotonic() - began:,.0f} s")
    return int(any(total.violations for total in totals.values()))


if __name__ == "__main__":
    sys.exit(main())
