"""Takes the power away at each moment of a run, and lets the same command run again.

python -m tests.campaign.power

The library of calls.c records what a run writes, syncs and names. `lost_power` lays out what a disk
may hold after a crash at any moment of it. In none of these states may a file have its final name
with other bytes, or a manifest be there without what it names; the same command must bring the set
to its end, and what a run has left that ended with exit code 0 must be there. Exit code 1:
something did not hold.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from tests.campaign.calls import Entry
from tests.campaign.lost_power import Disk, State, last_states, states
from tests.campaign.scenes import SCENES, Scene, Theatre, hold_finished, hold_visible, theatres
from tests.campaign.story import ViolationError


@dataclass
class Total:
    """What became of the states of one scene.

    Attributes:
      changes: that a whole run makes.
      moments: at which the power was lost: before the first change, between two, after the last.
      states: of the disk that the command was run on.
      violations: what did not hold.
    """

    changes: int = 0
    moments: int = 0
    states: int = 0
    violations: list[str] = field(default_factory=list)


def lose_power(theatre: Theatre, name: str, most: int, seed: int, **told: object) -> Total:
    """Goes through states that a crash may leave of a scene; prints what does not hold.

    Args:
      theatre: where.
      name: of the scene.
      most: moments, evenly over the run, the last at its end; 0 is all. A random state of each,
        and all states of the end.
      seed: decides what is random about them.
      **told: to the command while it is recorded, as `commands` reads it.
    """
    scene = theatre.scene(name)
    theatre.reset(scene)
    disk = Disk(theatre.disk)
    record = theatre.record(scene, **told)
    rng = random.Random(seed)
    end = len(record)
    moments = {(number + 1) * end // most for number in range(most)} or range(end + 1)
    found = list(states(disk, record, rng, moments))
    if most:
        rng.shuffle(found)
        # At the end, which must be complete, no command has to follow.
        found = [*dict(f for f in found if f[0] < end).items(), *(f for f in found if f[0] == end)]
    total = Total(len(record), len({moment for moment, _ in found}), len(found))
    for moment, state in found:
        try:
            _attempt(theatre, scene, state, is_over=moment == end, again=moment < end or not most)
        except ViolationError as violation:
            after = _said(record[moment - 1], theatre) if moment else "nothing"
            total.violations.append(
                f"{name}, after change {moment} of {len(record)} ({after}): {violation}; "
                f"{state.story}"
            )
            print(f"VIOLATION (--seed {seed}) {total.violations[-1]}", flush=True)
    return total


def lose_power_later(theatre: Theatre, name: str, most: int, seed: int) -> Total:
    """Kills a run at each of its changes, lets another finish, and takes the power away then.

    What the killed one had not synced is in memory, where the next run sees it as if it were on
    the disk. What that leaves with exit code 0 must be there all the same.

    Args:
      theatre, name, seed: as for `lose_power`.
      most: changes at which it is killed, evenly over the run; 0 is all.
    """
    scene = theatre.scene(name)
    theatre.reset(scene)
    begin = Disk(theatre.disk)
    record = theatre.record(scene)
    total = Total(changes=len(record))
    number = min(most or len(record), len(record))
    for place in range(number):
        moment = 1 + place * (len(record) - 1) // max(1, number - 1)
        disk = begin.copy()
        for entry in record[:moment]:
            disk.goes_on(entry)
        disk.as_it_is(theatre.disk)
        for entry in theatre.record(scene):
            disk.goes_on(entry)
        total.moments += 1
        for state in last_states(disk, random.Random(seed)):
            total.states += 1
            state.lay_out(theatre.disk)
            try:
                hold_finished(scene)
            except ViolationError as violation:
                after = _said(record[moment - 1], theatre)
                total.violations.append(
                    f"{name}, killed after change {moment} of {len(record)} ({after}), finished by "
                    f"the next run: {violation}; {state.story}"
                )
                print(f"VIOLATION (--later --seed {seed}) {total.violations[-1]}", flush=True)
    return total


def _attempt(theatre: Theatre, scene: Scene, state: State, *, is_over: bool, again: bool) -> None:
    """Looks at what a crash has left, and runs the command again on it."""
    state.lay_out(theatre.disk)
    hold_visible(scene)
    if is_over:
        hold_finished(scene)
    if again:
        theatre.story.undisturbed(scene.words, **scene.told)
        hold_finished(scene)
        theatre.hold_sources(scene)


def _said(entry: Entry, theatre: Theatre) -> str:
    names = f"{entry.name} {entry.other}".replace(f"{theatre.disk}/", "").strip()
    return f"{entry.change.name} {names or entry.offset}"


def run(
    names: Iterable[str],
    most: int,
    seed: int,
    jobs: int,
    lose: Callable[[Theatre, str, int, int], Total] = lose_power,
) -> dict[str, Total]:
    """Takes the power away in several scenes; returns what happened, by scene."""
    with theatres(jobs) as free, ThreadPoolExecutor(jobs) as pool:

        def one(name: str) -> Total:
            theatre = free.get()
            try:
                return lose(theatre, name, most, seed)
            finally:
                free.put(theatre)

        running = {name: pool.submit(one, name) for name in names}
        return {name: total.result() for name, total in running.items()}


def table(totals: dict[str, Total]) -> str:
    """Returns a line a scene and one for all."""
    lines = [f"{'scene':12s} {'changes':>8s} {'moments':>8s} {'states':>8s} {'violations':>11s}"]
    everything = Total()
    for name, total in totals.items():
        lines.append(f"{name:12s} {_numbers(total)}")
        everything.changes += total.changes
        everything.moments += total.moments
        everything.states += total.states
        everything.violations += total.violations
    lines.append(f"{'all':12s} {_numbers(everything)}")
    return "\n".join(lines)


def _numbers(total: Total) -> str:
    return (
        f"{total.changes:8,d} {total.moments:8,d} {total.states:8,d} {len(total.violations):11,d}"
    )


def main() -> int:
    """Reads the flags; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaign.power", description=__doc__)
    parser.add_argument("--only", default=",".join(SCENES), help="scenes, separated by commas")
    parser.add_argument(
        "--states", type=int, default=0, help="of each scene at most, or kills; 0 is all"
    )
    parser.add_argument("--later", action="store_true", help="after a kill, and a run to the end")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    flags = parser.parse_args()
    began = time.monotonic()
    lose = lose_power_later if flags.later else lose_power
    totals = run(flags.only.split(","), flags.states, flags.seed, flags.jobs, lose)
    print(table(totals))
    print(f"seed {flags.seed}, {time.monotonic() - began:,.0f} s")
    return int(any(total.violations for total in totals.values()))


if __name__ == "__main__":
    sys.exit(main())
