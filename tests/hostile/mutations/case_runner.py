"""Runs cases: scenes that are made once, and an arena that also measures time and reads."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
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
from tests.hostile.mutations.scenes import SCENES
from tests.hostile.mutations.stage import Stage, Verb
from tests.kit import warm
from tests.kit.arena import CANARY, Arena
from tests.kit.command import PATIENCE_S, threads
from tests.kit.hostile import manifests
from tests.kit.http_server import Server, serve
from tests.kit.miniature import Miniature
from tests.kit.warm import Ended, Warm, children

# CPU time of a command on any machine; work on a shared machine may add to it, but less than this.
CPU_S = 20.0
# The kernel ends a command that would fill the machine's memory or disk.
_MOST_BYTES = 4 << 30
_MOST_FILE_BYTES = 1 << 30
# If all threads have slept for this time, the command waits forever, for example for a FIFO.
# TensorFlow may wake up after minutes, if its process was forked while threads ran.
_ASLEEP_S = 15.0
_LOOK_S = 0.5
# The probability that a second file is changed, too.
_SECOND_CHANCE = 0.15
# The probability that the manifest gets the size and digest of the mutated bytes.
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
# Folders of the program's own notes, in which links are not followed. Other links can store a file
# on a different disk, and may be read if only files of this kind are shown.
_OURS = {schema.WORK, remote_path.LISTS_FOLDER, "log"}


class Combination(NamedTuple):
    """The parameters of one case."""

    scene: str
    verb: str
    kind: str
    mutation: str


class Outcome(NamedTuple):
    """The result of a case.

    Attributes:
        what: the changes, and their files.
        code: the exit code; None if a rule was broken.
        violation: the rule that was broken; "" for none.
        cpu_s, peak_bytes: of the command.
    """

    what: str
    code: int | None
    violation: str
    cpu_s: float
    peak_bytes: int


def pairs() -> list[tuple[str, str, str]]:
    """Returns each (scene, verb, kind) of this machine."""
    found = []
    for name, scene in SCENES.items():
        if not scene.needs or importlib.util.find_spec(scene.needs):
            for verb, command in scene.verbs.items():
                found += [(name, verb, kind) for kind in command.kinds or scene.kinds]
    return found


def combination(seed: int, number: int, among: list[tuple[str, str, str]]) -> Combination:
    """Returns the parameters of a case by its number.

    The first cases have each verb and kind once, in random order. The next cases repeat this with
    different mutations, until all combinations have been used.
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
    """An arena that ends commands that sleep forever, and records reads.

    Attributes:
        read: the user's files that the last command has read.
        asleep_s: the time that all threads may sleep before the command is ended.
    """

    read: list[str]
    asleep_s: float

    def finish(self) -> Ended:
        """Waits for the end; ends a command if all its threads keep sleeping."""
        # If the access time of a file is before its change, the next read renews it.
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
        folders = (self.root / "home", self.root / "beside")
        found = itertools.chain.from_iterable(folder.rglob("*") for folder in folders)
        return [path for path in found if path.is_file()]

    def shown_in(self) -> list[str]:
        """Returns the given files that contain content of the user's files."""
        found = [path for path in self.given.rglob("*") if stat.S_ISREG(path.lstat().st_mode)]
        small = [path for path in found if path.stat().st_size < _READ_BYTES]
        return [str(p.relative_to(self.given)) for p in small if CANARY in p.read_bytes()]


def _work_of(pid: int) -> tuple[int, bool]:
    """Returns the CPU ticks of a family of processes, and whether a thread is awake."""
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


class CaseRunner:
    """Runs one case at a time; to be closed."""

    def __init__(self, folder: Path, mini: Miniature) -> None:
        """Takes an empty folder, and a miniature with the images of sources and datasets."""
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
        """Runs one case."""
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
        """Returns the broken rule that the arena does not check; "" for none."""
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
    """Updates the receipt of hashes for the current file; returns this as text."""
    receipt = path.parent / "receipts" / f"{path.stem}.json"
    content = json.loads(receipt.read_bytes())
    for output in content["outputs"]:
        output["num_bytes"] = path.stat().st_size
    receipt.write_text(json.dumps(content, sort_keys=True, separators=(",", ":")))
    return ", as its receipt says"


def _state(path: Path) -> str:
    """Updates the manifest's entry of a small file; returns this as text."""
    beside = path.parent.name if path.parent.name in schema.BESIDE else ""
    root = path.parent.parent if beside else path.parent
    place = root / schema.MANIFEST
    if path.is_symlink() or not path.is_file() or not place.is_file() or place.is_symlink():
        return ""
    with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError, RecursionError):
        content = manifests.json.loads(place.read_bytes())
        size = path.stat().st_size
        # A shard of 8 GB may take a long time.
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
def case_runner(folder: Path, mini: Miniature) -> Iterator[CaseRunner]:
    """Yields a runner in an empty folder."""
    made = CaseRunner(folder, mini)
    try:
        yield made
    finally:
        made.close()
