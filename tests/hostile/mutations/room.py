"""Where cases are carried out: scenes that are made once, an arena that also times and traces."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import random
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from imagenet_prep.dataset import schema
from imagenet_prep.storage import remote_path
from tests.hostile.mutations import changes, formats, scenes
from tests.hostile.mutations.scenes import SCENES, Stage, Verb
from tests.kit import warm
from tests.kit.arena import CANARY, Arena
from tests.kit.command import PATIENCE_S, threads
from tests.kit.hostile import manifests
from tests.kit.http_server import Server, serve
from tests.kit.miniature import Miniature
from tests.kit.warm import Ended, Warm, children

# A command's own, on whichever machine: a machine of other work makes it longer, not by this much.
CPU_S = 20.0
# The kernel ends what would take the machine's memory, and files that would fill its disk.
_MOST_BYTES = 4 << 30
_MOST_FILE_BYTES = 1 << 30
# All threads sleep, and have slept for so long: whoever waits for a FIFO waits for ever. Only where
# it was forked beside threads, TensorFlow wakes up after minutes.
_ASLEEP_S = 15.0
_LOOK_S = 0.5
# Beside the one file, another one is changed in so many cases.
_SECOND_CHANCE = 0.15
# A mutation whose bytes the manifest states as its own, with size and digest.
_STATED_CHANCE = 0.5
_STATED = (
    "class list",
    "quarantine",
    "TFDS's features",
    "TFDS's info",
    "TFDS's labels",
    "shard",
    "index file",
    "table",
)
_READ_BYTES = 64 << 20
# Folders of this program's own notes, where no link is followed. Elsewhere a link is a way to keep
# a file on another disk, and may be read as long as nothing else than its kind is shown.
_OURS = {schema.WORK, remote_path.LISTS_FOLDER, "log"}


class Combination(NamedTuple):
    """What one case is about."""

    scene: str
    verb: str
    kind: str
    mutation: str


class Outcome(NamedTuple):
    """What became of a case.

    Attributes:
      what: what was done to which files.
      code: the exit code; None where a rule was broken.
      violation: the rule that was broken; "" for none.
      cpu_s, peak_bytes: of the command.
    """

    what: str
    code: int | None
    violation: str
    cpu_s: float
    peak_bytes: int


def pairs() -> list[tuple[str, str, str]]:
    """Returns each (scene, verb, kind) that there is on this machine."""
    return [
        (name, verb, kind)
        for name, scene in SCENES.items()
        if not scene.needs or importlib.util.find_spec(scene.needs)
        for verb, told in scene.verbs.items()
        for kind in told.kinds or scene.kinds
    ]


def combination(seed: int, number: int, among: list[tuple[str, str, str]]) -> Combination:
    """Returns what the case of a number is about.

    The first cases meet each verb and kind once, in random order, the next ones once more with
    another mutation: after as many rounds as there are mutations, all combinations are met.
    """
    turn, place = divmod(number, len(among))
    order = random.Random(f"order {seed} {turn}")
    shuffled = order.sample(among, len(among))
    pair = shuffled[place]
    mutations = random.Random(f"mutations {seed} {turn // len(changes.MUTATIONS)} {pair}").sample(
        changes.MUTATIONS, len(changes.MUTATIONS)
    )
    return Combination(*pair, mutations[turn % len(mutations)])


class Watched(Arena):
    """An arena that ends what sleeps for ever, and sees what is read.

    Attributes:
      read: which of the user's files the last command has read.
      asleep_s: how long all threads may sleep before the command is said to wait for ever.
    """

    read: list[str]
    asleep_s: float

    def finish(self) -> Ended:
        """Waits for the end; ends a command all of whose threads sleep and go on sleeping."""
        # A file whose access time is before its change gets another one when it is read.
        for path in self._users():
            os.utime(path, ns=(0, path.stat().st_mtime_ns))
        began = worked = time.monotonic()
        before = -1
        while not self.warm.ended(_LOOK_S):
            ticks, awake = _work_of(self.warm.pid)
            now = time.monotonic()
            if awake or ticks != before:
                worked = now
            before = ticks
            if now - worked > self.asleep_s or now - began > PATIENCE_S:
                break
        ended = self.warm.finish(0)
        read = [path for path in self._users() if path.stat().st_atime_ns]
        self.read = [str(path.relative_to(self.root)) for path in read]
        return ended

    def _users(self) -> list[Path]:
        found = [path for name in ("home", "beside") for path in (self.root / name).rglob("*")]
        return [path for path in found if path.is_file()]

    def shown_in(self) -> list[str]:
        """Returns the given files that hold what only the user's files held."""
        found = [path for path in self.given.rglob("*") if stat.S_ISREG(path.lstat().st_mode)]
        small = [path for path in found if path.stat().st_size < _READ_BYTES]
        return [str(p.relative_to(self.given)) for p in small if CANARY in p.read_bytes()]


def _work_of(pid: int) -> tuple[int, bool]:
    """Returns the ticks that a family of processes has worked, and whether a thread is awake."""
    ticks = 0
    awake = False
    family = [pid]
    for member in family:
        family += children(member)
        for thread in threads(member):
            with contextlib.suppress(OSError):
                fields = (thread / "stat").read_text(errors="replace").rpartition(")")[2].split()
                awake |= fields[0] in "RD"
                ticks += int(fields[11]) + int(fields[12])
    return ticks, awake


class Room:
    """Carries out one case at a time; to be closed."""

    def __init__(self, folder: Path, mini: Miniature) -> None:
        """Takes an empty folder, and a miniature whose images go into sources and sets."""
        self._folder, self._mini = folder, mini
        self._closing = contextlib.ExitStack()
        self._warm: dict[str, Warm] = {}
        self._made: dict[str, tuple[Path, Server]] = {}
        self._others = scenes.others()
        (folder / "made").mkdir()
        (folder / "arena").mkdir()
        self.arena = Watched(folder / "arena", self._process(""))

    def close(self) -> None:
        self._closing.close()

    def case(self, chosen: Combination, rng: random.Random) -> Outcome:
        """Carries out one case."""
        scene = SCENES[chosen.scene]
        verb = scene.verbs[chosen.verb]
        self.arena.warm = self._process(scene.needs)
        self.arena.asleep_s = PATIENCE_S if scene.needs else _ASLEEP_S
        made, server = self._scene(chosen.scene)
        given = self.arena.clear()
        given.rmdir()
        shutil.copytree(made, given, symlinks=True)
        kinds = [chosen.kind]
        if rng.random() < _SECOND_CHANCE:
            kinds.append(rng.choice(sorted(verb.kinds or scene.kinds)))
        what = []
        for number, kind in enumerate(dict.fromkeys(kinds)):
            found = sorted(given.glob(scene.kinds[kind]))
            if not found:
                assert number, f"there is no {kind}"
                continue
            path = rng.choice(found)
            mutation = chosen.mutation if not number else rng.choice(changes.MUTATIONS)
            what.append(f"{path.relative_to(given)}: {self._change(path, kind, mutation, rng)}")
        words = [word.replace("{server}", server.url) for word in verb.words]
        env = {name: value.replace("{given}", str(given)) for name, value in verb.env}
        try:
            ended = self._run(words, verb.call, env)
        except AssertionError as error:
            return Outcome("; ".join(what), None, str(error), 0.0, 0)
        wrong = self._wrong(ended, what, verb)
        code = None if wrong else ended.code
        return Outcome("; ".join(what), code, wrong, ended.cpu_s, ended.peak_bytes)

    def _run(self, words: list[str], call: str, env: dict[str, str]) -> Ended:
        limits = {"cpu_s": int(3 * CPU_S), "file_bytes": _MOST_FILE_BYTES}
        if self.arena.warm is self._process(""):
            limits["map_bytes"] = _MOST_BYTES
        return self.arena.run(*words, call=call, env=env, **limits)

    def _wrong(self, ended: Ended, what: list[str], verb: Verb) -> str:
        """Returns which rule an end breaks that the arena does not know; "" for none."""
        whole = (ended.out + ended.err).decode(errors="replace")
        said = whole[-500:]
        if ended.cpu_s > CPU_S:
            return f"took {ended.cpu_s:.1f} s of a processor\n{said}"
        if not verb.copies and (shown := self.arena.shown_in()):
            return f"what the user's files hold is in {shown}\n{said}"
        changed = {Path(name): done for name, _, done in (text.partition(": ") for text in what)}
        linked = {path for path, done in changed.items() if done.startswith("link")}
        if self.arena.read and all(set(path.parts) & _OURS for path in linked):
            return f"has read the user's {', '.join(self.arena.read)}\n{said}"
        names = {path.name for path in (*changed, *self.arena.given.rglob("*"))}
        names |= {word for word in verb.words if word[0] != "-"}
        if ended.code and not verb.tells and not any(name in whole for name in names):
            return f"exit code {ended.code}, and no name of what is wrong\n{said}"
        return ""

    def _change(self, path: Path, kind: str, mutation: str, rng: random.Random) -> str:
        if path.is_dir() and mutation in changes.CONTENTS:
            mutation = rng.choice(sorted(changes.PLACES))
        if mutation == "sparse" and path.is_dir():
            mutation = "fifo"
        victim = changes.Victim(path, formats.of(path.name), self.arena.root, self._others)
        done = changes.apply(mutation, victim, rng)
        if kind == "hashes" and path.is_file() and rng.random() < _STATED_CHANCE:
            done += _receive(path)
        if kind in _STATED and rng.random() < _STATED_CHANCE:
            done += _state(path)
        return done

    def _scene(self, name: str) -> tuple[Path, Server]:
        if name not in self._made:
            server = self._closing.enter_context(serve({}))
            self.arena.clear()
            scene = SCENES[name]
            scene.make(Stage(self.arena, self._mini, server))
            kept = self._folder / "made" / name.replace(" ", "-")
            self.arena.given.rename(kept)
            self._made[name] = kept, server
        return self._made[name]

    def _process(self, needs: str) -> Warm:
        if needs not in self._warm:
            modules = [*warm.VERBS, "imagenet_prep.reporting.plots"]
            modules += [
                "imagenet_prep.pipelines.launch",
                "imagenet_prep.run_on_hosts",
                "imagenet_prep.export",
            ]
            if needs:
                modules = ["imagenet_prep.train", "imagenet_prep.trainer.loop", needs]
            self._warm[needs] = self._closing.enter_context(Warm(modules))
        return self._warm[needs]


def _receive(path: Path) -> str:
    """Has the receipt of hashes state their file as it is now; says so."""
    receipt = path.parent / "receipts" / f"{path.stem}.json"
    content = json.loads(receipt.read_bytes())
    for output in content["outputs"]:
        output["num_bytes"] = path.stat().st_size
    receipt.write_text(json.dumps(content, sort_keys=True, separators=(",", ":")))
    return ", as its receipt says"


def _state(path: Path) -> str:
    """Has the manifest state a file as it is now, where that is a small one; says so."""
    beside = path.parent.name if path.parent.name in schema.BESIDE else ""
    root = path.parent.parent if beside else path.parent
    place = root / schema.MANIFEST
    if path.is_symlink() or not path.is_file() or not place.is_file() or place.is_symlink():
        return ""
    with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError, RecursionError):
        content = manifests.json.loads(place.read_bytes())
        size = path.stat().st_size
        # A shard of 8 GB may take as long as 8 GB take.
        small = size < _READ_BYTES
        digest = manifests.sha256(path.read_bytes()) if small else "0" * 64
        if beside or schema.looks_like_shard(path.name):
            if not small:
                return ""
            for split in content["splits"].values():
                for shard in split["shards"]:
                    if shard["name"] == path.name.removesuffix(".csv"):
                        if beside == schema.SAMPLES:
                            more = path.read_bytes().count(b"\n") - 1 - shard["examples"]
                            shard["examples"] += more
                            shard["num_bytes"] += max(0, more) << 10
                            split["examples"] += more
                            split["examples_per_class"][0] += more
                        shard[f"{beside}_sha256" if beside else "sha256"] = digest
                        shard[f"{beside}_bytes" if beside else "num_bytes"] = size
                split["num_bytes"] = sum(shard["num_bytes"] for shard in split["shards"])
        else:
            for file in content["files"]:
                if file["name"] == path.name:
                    file.update(num_bytes=size, sha256=digest)
        place.write_bytes(manifests.render(content))
        return ", as the manifest says"
    return ""


@contextlib.contextmanager
def room(folder: Path, mini: Miniature) -> Iterator[Room]:
    """Yields a room in an empty folder."""
    made = Room(folder, mini)
    try:
        yield made
    finally:
        made.close()
