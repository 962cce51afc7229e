"""Takes or cuts a file of a finished product, and runs the same command again.

python -m tests.campaign.losing

Exit code 0 is a promise: the product is sound at that moment. So the second run makes again what is
lost, or says in a sentence what it cannot make. Exit code 1: something did not hold.
"""

from __future__ import annotations

import argparse
import os
import queue
import shutil
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.campaign.scenes import PRODUCTS, SCENES, Scene, Theatre, hold_finished, theatres
from tests.campaign.story import ViolationError, hold

# `resume` and `repair` end as other scenes, and `resize of two splits` does more than `resize`.
NAMES = tuple(name for name in SCENES | PRODUCTS if name not in ("resume", "repair", "resize"))


def lose(theatre: Theatre, name: str) -> list[str]:
    """Loses a file of each kind in turn, and cuts it; returns what does not hold."""
    scene = theatre.scene(name)
    theatre.reset(scene)
    theatre.story.undisturbed(scene.words, **scene.told)
    finished = theatre.begins / "finished"
    shutil.rmtree(finished, ignore_errors=True)
    shutil.copytree(theatre.disk, finished)
    violations = []
    kinds = {_kind(file): file for file in sorted(scene.after, reverse=True)}
    for file in kinds.values():
        for cut in (False, True):
            shutil.rmtree(theatre.disk)
            shutil.copytree(finished, theatre.disk)
            try:
                _attempt(theatre, scene, scene.target / file, cut=cut)
            except ViolationError as violation:
                violations.append(f"{name}, {file} {'cut' if cut else 'lost'}: {violation}")
                print(f"VIOLATION: {violations[-1]}", flush=True)
    return violations


def _attempt(theatre: Theatre, scene: Scene, path: Path, *, cut: bool) -> None:
    data = path.read_bytes()
    if cut and not data:
        return
    # Not cut where it is: another name of it may be a file of the source.
    path.unlink()
    if cut:
        path.write_bytes(data[:-1])
    theatre.story.start(scene.words, **scene.told)
    ended = theatre.story.finish(0, 1, 2, 3, 4)
    if ended.code == 0:
        hold_finished(scene)
    else:
        said = ended.err.decode(errors="replace").strip().splitlines()[-1:]
        hold(said and said[0].startswith("imagenet-prep: "), f"exit code {ended.code}: {said}")
        hold(path.name in said[0], f"exit code {ended.code} does not name {path.name}: {said}")
        theatre.story.faults[f"{scene.words[0]} refuses"] += 1
    theatre.hold_sources(scene)


def _kind(file: str) -> str:
    """Returns what distinguishes a file from its like: its folder, or its name without numbers."""
    folder, _, name = file.rpartition("/")
    return f"{folder.partition('/')[0]}/" if folder else "".join(c for c in name if not c.isdigit())


def run(names: Sequence[str], jobs: int) -> list[str]:
    """Goes through scenes; returns what does not hold."""

    def one(free: queue.SimpleQueue[Theatre], name: str) -> list[str]:
        theatre = free.get()
        try:
            return lose(theatre, name)
        finally:
            free.put(theatre)

    with theatres(jobs) as free, ThreadPoolExecutor(jobs) as pool:
        found = [pool.submit(one, free, name) for name in names]
        return [violation for each in found for violation in each.result()]


def main() -> int:
    """Reads the flags; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaign.losing", description=__doc__)
    parser.add_argument("--only", default=",".join(NAMES), help="scenes, separated by commas")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    flags = parser.parse_args()
    violations = run(flags.only.split(","), flags.jobs)
    print(f"{len(violations)} violations")
    return int(bool(violations))


if __name__ == "__main__":
    sys.exit(main())
