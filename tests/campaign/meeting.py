"""Stops a command at a call, lets a second one run to its end, and lets the first go on.

python -m tests.campaign.meeting --rounds 200 --seed 1

Whichever of the two ends with exit code 0 has left the product that an undisturbed run leaves, at
that moment; and so do both, run once more. Exit code 1: something did not hold.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
from collections.abc import Sequence

from tests.campaign.calls import STOP
from tests.campaign.losing import NAMES
from tests.campaign.scenes import Scene, Theatre, hold_finished, theatres
from tests.campaign.story import ViolationError, hold
from tests.kit.command import warm_process
from tests.kit.warm import Ended

# `download` needs no second run: its server and its archives are those of `failing`.
NAMES = tuple(name for name in NAMES if name != "download")
# What a command may be stopped before.
_CALLS = ("write", "fsync", "rename", "link", "unlink", "create", "mkdir", "open")


def meet(theatre: Theatre, name: str, call: str, number: int) -> str:
    """Carries out one round; returns what does not hold, or ""."""
    scene = theatre.scene(name)
    theatre.reset(scene)
    theatre.start(scene, fail=(call, number, STOP, False))
    first = theatre.story.warm
    other = warm_process()
    try:
        is_stopped = first.stopped()
        theatre.story.start_beside(other, scene.words, **scene.told)
        _hold(scene, theatre.story.finish_beside(other, 0, 1, 2, 4, 75))
        if is_stopped:
            first.send(signal.SIGCONT)
        _hold(scene, theatre.story.finish(0, 1, 2, 4, 75))
        for _ in range(2):
            theatre.story.undisturbed(scene.words, **scene.told)
            hold_finished(scene)
        theatre.hold_sources(scene)
        hold(not [*scene.target.rglob("*.partial")], "a temporary file is left")
        hold(not [*scene.target.glob(".work/temporary/*")], "a temporary file is left")
    except ViolationError as violation:
        first.send(signal.SIGKILL)
        if first.running:
            first.finish()
        return f"--only {name!r} --call {call} --at {number}: {violation}"
    return ""


def _hold(scene: Scene, ended: Ended) -> None:
    if ended.code == 0:
        hold_finished(scene)
    else:
        hold(b"imagenet-prep: " in ended.err, f"exit code {ended.code} without a sentence")


def sample(theatre: Theatre, name: str, number: int, seed: int) -> list[tuple[str, int]]:
    """Returns some calls of a scene, of as many kinds as it makes."""
    rng = random.Random(f"{seed} {name}")
    counts = {call: count for call, count in theatre.counts(name).items() if count}
    calls = [call for call in _CALLS if call in counts]
    chosen = [rng.choice(calls) for _ in range(number)]
    return [(call, rng.randint(1, counts[call])) for call in chosen]


def run(names: Sequence[str], rounds: int, seed: int) -> list[str]:
    """Carries out rounds, the same number of each scene; returns what does not hold."""
    violations = []
    with theatres(1) as free:
        theatre = free.get()
        for name in names:
            for call, number in sample(theatre, name, max(1, rounds // len(names)), seed):
                if violation := meet(theatre, name, call, number):
                    violations.append(violation)
                    print(f"VIOLATION: {violation}", flush=True)
            print(f"{name}: done", flush=True)
    return violations


def main() -> int:
    """Reads the flags; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaign.meeting", description=__doc__)
    parser.add_argument("--only", default=",".join(NAMES), help="scenes, separated by commas")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--call", choices=_CALLS, help="with --at: this call alone")
    parser.add_argument("--at", type=int, default=1)
    flags = parser.parse_args()
    names = flags.only.split(",")
    if flags.call is None:
        violations = run(names, flags.rounds, flags.seed)
    else:
        with theatres(1) as free:
            violations = [each for each in [meet(free.get(), *names, flags.call, flags.at)] if each]
    print("\n".join([*violations, f"{len(violations)} violations"]))
    return int(bool(violations))


if __name__ == "__main__":
    sys.exit(main())
