"""Runs rounds of faults, prints a line a round and a table; exit code 1: something did not hold."""

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
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tests.campaign.adopt import Adopt
from tests.campaign.amend import Amend, AmendInS3
from tests.campaign.changing import VERBS, Changing, cases
from tests.campaign.download import Download
from tests.campaign.duplicates import Duplicates
from tests.campaign.export import Export
from tests.campaign.prepare import Prepare, PrepareToS3
from tests.campaign.replicate import Replicate, ReplicateToS3
from tests.campaign.resize import Resize
from tests.campaign.story import Story
from tests.kit import foreign, warm
from tests.kit.arena import Arena
from tests.kit.miniature import Miniature, miniature_for_tests
from tests.kit.s3_server import BUCKET, S3Server, serve_s3
from tests.kit.shared import in_memory

# How often a round is of each kind. A round of most kinds takes a second and makes three to eight
# faults; one of s3 takes some seconds, and one of train twenty.
WEIGHTS = {
    "prepare": 30,
    "download": 20,
    "replicate": 40,
    "adopt": 29,
    "amend": 25,
    "resize": 28,
    "export": 25,
    "duplicates": 12,
    "s3": 5,
    "amend-s3": 4,
    "train": 4,
    # A source changes between two runs.
    "changing-prepare": 25,
    "changing-resize": 15,
    "changing-amend": 12,
    "changing-adopt": 8,
    "changing-export": 12,
    "changing-replicate": 8,
    "changing-duplicates": 1,
}

_CHANGING = tuple(f"changing-{verb}" for verb in VERBS)

# The process that carries out the commands of a kind, where it is not that of most.
_WARM = {"s3": "s3", "amend-s3": "s3", "train": "train"}


class Kind(Protocol):
    """What a round can be about."""

    name: str

    def round(self, story: Story) -> None:
        """Carries out one; raises AssertionError where something does not hold."""


@dataclass
class Total:
    """All rounds of one kind."""

    rounds: int = 0
    runs: int = 0
    seconds: float = 0.0
    cpu_s: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)


class Place:
    """Where one round at a time is carried out: an arena, a warm process, what kinds know."""

    def __init__(self, folder: Path, mini: Miniature, server: Callable[[], S3Server]) -> None:
        self._folder, self._mini, self._server = folder, mini, server
        self._beside = folder.with_name(f"{folder.name}-sources")
        self._beside.mkdir()
        self._closing = contextlib.ExitStack()
        self._warm: dict[str, warm.Warm] = {}
        self._arena = Arena(folder, self._process("verbs"))
        self._kinds: dict[str, list[Kind]] = {}

    def close(self) -> None:
        self._closing.close()

    def round(self, kind: str, rng: random.Random) -> Story:
        """Carries out a round; what does not hold is its story's `violation`."""
        of_kind = self._kinds_of(kind)
        story = self._story(kind, rng)
        before = self._arena.look()
        try:
            rng.choice(of_kind).round(story)
            story.hold_outside(before)
        except Exception as error:  # an error in the campaign is one of its rounds', too
            unforeseen = "" if isinstance(error, AssertionError) else traceback.format_exc()
            story.violation = f"{error}\n{unforeseen}".strip()
            story.warm.left(0)
        return story

    def _process(self, which: str) -> warm.Warm:
        if which not in self._warm:
            modules = list(warm.VERBS)
            if which in ("s3", "another"):
                modules += ["boto3", "imagenet_prep.storage.bucket"]
            if which == "train":
                modules = ["imagenet_prep.train", "imagenet_prep.trainer.loop", "tensorflow"]
            self._warm[which] = self._closing.enter_context(warm.Warm(modules))
        return self._warm[which]

    def _story(self, kind: str, rng: random.Random) -> Story:
        self._arena.clear()
        return Story(self._arena, self._process(_WARM.get(kind, "verbs")), rng)

    def _kinds_of(self, kind: str) -> list[Kind]:
        if kind not in self._kinds:

            def story() -> Story:
                return self._story(kind, random.Random(0))

            source = self._mini.root
            if kind == "prepare":
                self._kinds[kind] = [Prepare(story(), source)]
            elif kind == "adopt":
                self._kinds[kind] = [Adopt(story(), self._foreign("aws", first=1))]
            elif kind == "resize":
                self._kinds[kind] = [Resize(story(), self._foreign("slim"))]
            elif kind == "export":
                self._kinds[kind] = [Export(story(), source, self._beside)]
            elif kind == "duplicates":
                self._kinds[kind] = [Duplicates(story(), self._made("duplicates"))]
            elif kind == "download":
                self._kinds[kind] = [Download(story())]
            elif kind == "replicate":
                self._kinds[kind] = [Replicate(story())]
            elif kind == "amend":
                self._kinds[kind] = [Amend(story(), source, self._made("amend"))]
            elif kind == "amend-s3":
                there = self._made(f"amend-{self._folder.name}")
                self._kinds[kind] = [AmendInS3(story(), source, there, self._server())]
            elif kind in _CHANGING:
                verb = kind.removeprefix("changing-")
                of_verb = cases(verb, self._mini, story().undisturbed, self._made(kind))
                self._kinds[kind] = [Changing(kind, of_verb)]
            elif kind == "s3":
                server = self._server()
                to_s3 = PrepareToS3(story(), source, server, lambda: self._process("another"))
                self._kinds[kind] = [to_s3, ReplicateToS3(story(), server)]
            else:
                from tests.campaign.train import Train

                self._kinds[kind] = [Train(story(), _shades(self._folder.parent))]
        return self._kinds[kind]

    def _made(self, name: str) -> Path:
        folder = self._beside / name
        folder.mkdir()
        return folder

    def _foreign(self, writer: str, **how: int) -> Path:
        """Returns shards as another program writes them; read-only."""
        folder = self._beside / writer
        shards = {"train": 5, "validation": 2}
        images = foreign.images(self._mini)
        foreign.write(folder, images, getattr(foreign, writer), num_shards=shards, **how)
        return folder


def _shades(folder: Path) -> Path:
    from tests.kit.training import make_shades

    return make_shades(folder / f"shades-{threading.get_ident()}")


@contextlib.contextmanager
def _server_when_asked(folder: Path) -> Iterator[Callable[[], S3Server]]:
    """Yields what starts a server at its first call, for all."""
    lock = threading.Lock()
    started = []
    with contextlib.ExitStack() as closing:

        def get() -> S3Server:
            with lock:
                if not started:
                    folder.mkdir()
                    started.append(closing.enter_context(serve_s3(folder)))
                    started[0].client().create_bucket(Bucket=BUCKET)
                return started[0]

        yield get


def run(seed: int, numbers: Sequence[int], kinds: Sequence[str], jobs: int) -> dict[str, Total]:
    """Carries out rounds, and prints a line for each; returns what happened, by kind.

    Args:
      seed, numbers: what makes each round random; equal ones are the same round again, as far as
        the system's scheduling lets them be.
      kinds: of `WEIGHTS`.
      jobs: rounds at a time.
    """
    totals = {kind: Total() for kind in kinds}
    printing = threading.Lock()
    with contextlib.ExitStack() as closing:
        folder = Path(closing.enter_context(tempfile.TemporaryDirectory(dir=in_memory())))
        mini = miniature_for_tests(folder, num_train=32, num_validation=8, size=(64, 48))
        server = closing.enter_context(_server_when_asked(folder / "s3"))
        places: queue.SimpleQueue[Place] = queue.SimpleQueue()
        for job in range(jobs):
            (folder / f"job-{job}").mkdir()
            place = Place(folder / f"job-{job}", mini, server)
            closing.callback(place.close)
            places.put(place)

        def one(number: int) -> None:
            rng = random.Random(f"{seed} {number}")
            kind = rng.choices(kinds, [WEIGHTS[kind] for kind in kinds])[0]
            place = places.get()
            began = time.monotonic()
            try:
                story = place.round(kind, rng)
            finally:
                places.put(place)
            with printing:
                _add(totals[kind], story, number, time.monotonic() - began)
                shown = ", ".join(f"{count} {what}" for what, count in story.faults.items())
                print(f"round {number:5d} {kind:19s} {story.runs:3d} runs: {shown}", flush=True)
                if story.violation:
                    again = f"--seed {seed} --first {number} --rounds 1 --only {','.join(kinds)}"
                    print(f"VIOLATION ({again}): {story.violation}", flush=True)

        with ThreadPoolExecutor(jobs) as pool:
            for finished in [pool.submit(one, number) for number in numbers]:
                finished.result()
    return totals


def _add(total: Total, story: Story, number: int, seconds: float) -> None:
    total.rounds += 1
    total.runs += story.runs
    total.seconds += seconds
    total.cpu_s += story.cpu_s
    total.faults += story.faults
    if story.violation:
        total.violations.append(f"round {number}: {story.violation.splitlines()[0][:200]}")


def table(totals: dict[str, Total]) -> str:
    """Returns a line a kind and one for all."""
    lines = [f"{'kind':19s} {'rounds':>7s} {'faults':>7s} {'runs':>7s} {'violations':>11s}"]
    for kind, total in totals.items():
        lines.append(
            f"{kind:19s} {total.rounds:7d} {total.faults.total():7d} {total.runs:7d} "
            f"{len(total.violations):11d}   {total.seconds:,.0f} s, CPU {total.cpu_s:,.0f} s"
        )
        lines += [f"    {count:6d} {what}" for what, count in sorted(total.faults.items())]
    rounds, faults, runs, wrong = (
        sum(each(total) for total in totals.values())
        for each in (
            lambda t: t.rounds,
            lambda t: t.faults.total(),
            lambda t: t.runs,
            lambda t: len(t.violations),
        )
    )
    lines.append(f"{'all':19s} {rounds:7d} {faults:7d} {runs:7d} {wrong:11d}")
    return "\n".join(lines)


def main() -> int:
    """Reads the flags; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaign", description=__doc__)
    parser.add_argument("--rounds", type=int, default=100, help="a handful of faults each")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first round")
    parser.add_argument("--only", default=",".join(WEIGHTS), help="kinds, separated by commas")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    flags = parser.parse_args()
    kinds = flags.only.split(",")
    if unknown := set(kinds) - set(WEIGHTS):
        parser.error(f"--only {','.join(sorted(unknown))}: expected some of {', '.join(WEIGHTS)}")
    began = time.monotonic()
    totals = run(flags.seed, range(flags.first, flags.first + flags.rounds), kinds, flags.jobs)
    print(table(totals))
    print(f"seed {flags.seed}, {time.monotonic() - began:,.0f} s")
    return int(any(total.violations for total in totals.values()))


if __name__ == "__main__":
    sys.exit(main())
