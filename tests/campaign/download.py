"""Faults over `download`: a server that truncates, lies and changes its files; killed runs."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

from imagenet_prep.dataset import schema
from imagenet_prep.download import ARCHIVES
from tests.campaign import commands
from tests.campaign.story import Story, hold
from tests.kit.http_server import SeededFaults, Server, serve

TRAIN, DEVKIT = (ARCHIVES[what][0].name for what in ("train", "devkit"))
# 20 ranges of 64 kB, and one that is smaller.
_SIZES = {TRAIN: 20 * (1 << 16) + 4321, DEVKIT: 3000}
_FLAGS = ("--what", "train,devkit", "--part-size", "1", "--connections", "4")
_PATIENT = ("--retries", "200", "--timeout", "1")
_KINDS = ("cut", "429", "503", "wrong range", "no range", "reset", "short")


class Download:
    """Rounds of `download`."""

    def __init__(self, story: Story) -> None:
        """Measures an undisturbed run."""
        files = _files(0)
        with serve(files) as server:
            began = time.monotonic()
            story.undisturbed(_words(story, server), **_told(files))
            self.seconds = time.monotonic() - began
        self.changes = story.changes()

    def round(self, story: Story) -> None:
        """Brings the archives through several disturbed runs, and a last patient one."""
        version = 0
        files = _files(version)
        with serve(files, stall_s=30.0) as server:
            for _ in range(story.rng.randint(2, 6)):
                what = story.rng.choice(("signal", "signal", "signal", "changed", "flip"))
                if what == "changed" and not (story.folder / "into" / TRAIN).exists():
                    # The server now has a different file of that name; the two must not be mixed.
                    version += 1
                    files = _files(version)
                    server.files.update({f"/{name}": data for name, data in files.items()})
                    (story.folder / "into" / DEVKIT).unlink(missing_ok=True)
                    story.faults["changed file"] += 1
                self._disturb(story, server, files, "flip" if what == "flip" else "")
            server.plan = _plan(story, 6)
            story.undisturbed(_words(story, server), **_told(files))
            _count(story, server)
        into = story.folder / "into"
        found = {path.name: path.read_bytes() for path in into.iterdir() if path.is_file()}
        hold(found == files, f"other bytes in {[n for n in files if found.get(n) != files[n]]}")
        partial = [path.name for path in (into / schema.WORK).glob("*.partial")]
        hold(not partial, f"left over: {partial}")

    def _disturb(self, story: Story, server: Server, files: dict[str, bytes], lie: str) -> None:
        before = _ranges(story)
        server.requests.clear()
        if lie:
            server.plan = SeededFaults(story.rng.getrandbits(32), 1, rate=0.2, kinds=(lie,))
            story.start(_words(story, server), **_told(files))
            # Wrong bytes are only found at the end, and then none of them may be kept. A lie may
            # also have gone to a request of a killed run: visible files are checked below.
            ended = story.finish(0, 3)
            lied = any(request.fault for request in server.requests)
            hold(lied or ended.code == 0, "exit code 3, although the server did not lie")
        else:
            server.plan = _plan(story, story.rng.randint(0, 8))
            story.ended_early(_words(story, server), self.changes, self.seconds, **_told(files))
        _count(story, server)
        for name, data in files.items():
            path = story.folder / "into" / name
            hold(not path.exists() or path.read_bytes() == data, f"{name} is visible, and wrong")
        fetched = {r.first for r in server.reads(f"/{TRAIN}") if not r.fault}
        again = sorted(before[1] & fetched) if before[0] == _ranges(story)[0] else []
        hold(not again, f"ranges that were finished are fetched again: {again}")


def _words(story: Story, server: Server) -> list[str]:
    into = str(story.folder / "into")
    return ["download", "--into", into, "--base-url", server.url, *_FLAGS, *_PATIENT]


def _told(files: dict[str, bytes]) -> dict[str, object]:
    return {"small": True, "official": {name: commands.md5(data) for name, data in files.items()}}


def _files(version: int) -> dict[str, bytes]:
    return {n: random.Random(f"{n} {version}").randbytes(size) for n, size in _SIZES.items()}


def _plan(story: Story, count: int) -> SeededFaults:
    kinds = _KINDS + ("stall",) * (story.rng.random() < 0.1)
    return SeededFaults(story.rng.getrandbits(32), count, rate=0.4, kinds=kinds)


def _count(story: Story, server: Server) -> None:
    for request in server.requests:
        if request.fault:
            story.faults[f"server: {request.fault}"] += 1
    server.requests.clear()


def _ranges(story: Story) -> tuple[str, set[int]]:
    """Returns the folder with the fetched ranges of the large archive, and the ranges."""
    work = story.folder / "into" / schema.WORK
    for folder in work.glob(f"fetch-{TRAIN}-*"):
        paths = list((folder / "receipts").glob("*.json"))
        return folder.name, {_start(path) for path in paths}
    return "", set()


def _start(path: Path) -> int:
    return int(json.loads(path.read_bytes())["start"])
