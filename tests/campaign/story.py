"""One round: runs of one verb with faults in them and between them, then one without."""

from __future__ import annotations

import errno
import json
import math
import os
import random
import shutil
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.campaign import commands
from tests.kit import faults
from tests.kit.arena import Arena, Look
from tests.kit.command import PATIENCE_S
from tests.kit.dataset import contents
from tests.kit.warm import Ended, Warm

CALL = "tests.campaign.commands:main"
INTERRUPTED = 130

# How runs are disturbed: by changes that fail, else by a signal, most often at a certain change.
_FAILING_CHANCE = 0.35
_BY_PLACE_CHANCE = 0.8

KILL, TERM, INT = signal.SIGKILL, signal.SIGTERM, signal.SIGINT


class ViolationError(AssertionError):
    """Something that must hold does not."""


def hold(condition: object, what: str) -> None:
    """Raises ViolationError unless `condition` is true."""
    if not condition:
        raise ViolationError(what)


@dataclass
class Story:
    """The progress of one round.

    Attributes:
      arena: folders for the output, next to a home that must stay unchanged.
      warm: forks the commands.
      rng: decides everything that is random.
      faults: that happened, by kind.
      runs: commands that were started.
      cpu_s: processor time of theirs.
      codes: exit codes that a command may have besides 0; () if each call of `finish` names all.
      ended: the last command that has ended.
    """

    arena: Arena
    warm: Warm
    rng: random.Random
    faults: Counter[str] = field(default_factory=Counter)
    runs: int = 0
    cpu_s: float = 0.0
    codes: tuple[int, ...] = ()
    ended: Ended | None = None

    @property
    def folder(self) -> Path:
        return self.arena.given

    def start(self, words: Sequence[str | Path], **settings: object) -> None:
        """Starts a command; keywords are those that `commands` reads, and `env`."""
        self.start_beside(self.warm, words, note=str(self.folder / "changes"), **settings)

    def start_beside(self, warm: Warm, words: Sequence[str | Path], **settings: object) -> None:
        """Starts a command by a second process, during the first one."""
        self.runs += 1
        env = settings.pop("env", {})
        assert isinstance(env, dict)
        settings.setdefault("note", str(self.folder / "changes-beside"))
        tmp = self.folder / "tmp"
        tmp.mkdir(exist_ok=True)
        home = {"HOME": str(self.arena.root / "home"), "TMPDIR": str(tmp)}
        cache = {"IMAGENET_PREP_CACHE": str(self.folder / "cache")}
        env = {**home, **cache, **env, commands.SETTINGS: json.dumps(settings)}
        warm.start(*words, env=env, cwd=self.folder, call=CALL)

    def finish(self, *codes: int) -> Ended:
        """Waits for the end, and checks the rules that hold for every command."""
        return self.finish_beside(self.warm, *codes)

    def finish_beside(self, warm: Warm, *codes: int) -> Ended:
        """The same for a command of a second process."""
        self.ended = ended = warm.finish(PATIENCE_S)
        self.cpu_s += ended.cpu_s
        said = (ended.out[-500:] + ended.err[-2500:]).decode(errors="replace")
        hold(not ended.hung, f"still running after {PATIENCE_S} s: {said}")
        left = warm.left(PATIENCE_S)
        hold(not left, f"left running: {left}; {said}")
        hold(b"Traceback" not in ended.err, f"a traceback: {said}")
        expected = [code for code in codes if not (code and self.codes) or code in self.codes]
        hold(ended.code in expected, f"exit code {ended.code}, expected {expected}: {said}")
        return ended

    def end(self) -> None:
        """Ends a command that still runs after a violation."""
        self.warm.send(KILL)
        if self.warm.running:
            self.warm.finish()

    def undisturbed(self, words: Sequence[str | Path], **settings: object) -> Ended:
        """Runs a command that nothing happens to."""
        self.start(words, **settings)
        return self.finish(0)

    def ended_early(
        self,
        words: Sequence[str | Path],
        changes: int,
        seconds: float,
        refusals: Sequence[int] = (),
        **settings: object,
    ) -> bool:
        """Runs a command that is ended by a signal, or meets a broken disk; returns whether it did.

        Args:
          words: verb and flags.
          changes: of files that a whole run makes.
          seconds: that a whole run takes.
          refusals: exit codes that it may end with, too.
          **settings: as for `start`.
        """
        if self.rng.random() < _FAILING_CHANCE:
            return self._meets_a_broken_disk(words, changes, refusals, **settings)
        signum = self.rng.choice((KILL, KILL, TERM, INT))
        if signum != KILL or self.rng.random() < _BY_PLACE_CHANCE:
            self.start(words, at=self.place(changes), signum=int(signum), **settings)
        else:
            self.start(words, **settings)
            if not self.warm.ended(self.rng.uniform(0, seconds)):
                self.warm.send(KILL)
        ended = self.finish(0, INTERRUPTED, -KILL, *refusals)
        if ended.code in (0, *refusals):
            return False
        self.faults[signal.Signals(signum).name] += 1
        return True

    def _meets_a_broken_disk(
        self, words: Sequence[str | Path], changes: int, refusals: Sequence[int], **settings: object
    ) -> bool:
        """Runs a command some of whose changes of files fail; returns whether one did."""
        error = self.rng.choice((errno.EIO, errno.ENOSPC, errno.EDQUOT))
        how = {"at": self.place(changes), "times": self.rng.randint(1, 4), "errno": error}
        self.start(words, **how, below=str(self.folder), **settings)
        # The failed change may have been optional; then the run has done all the rest.
        self.finish(0, 1, 4, *refusals)
        failed = int((self.folder / "changes").read_text().split()[1])
        self.faults["failing change"] += bool(failed)
        return bool(failed)

    def place(self, changes: int) -> int:
        """Returns which change of a file is the one; a run that resumes makes fewer than all."""
        if self.rng.random() < 0.5:
            return self.rng.randint(1, changes)
        return math.ceil(changes ** self.rng.random())

    def changes(self) -> int:
        """Returns the changes of files that the last command has made; it was not killed."""
        return int((self.folder / "changes").read_text().split()[0])

    def manifest_change(self) -> int:
        """Returns the number of the change that gave the manifest its name; 0 if none did."""
        return int((self.folder / "changes").read_text().split()[2])

    def hold_outside(self, before: Look) -> None:
        """Checks that everything outside the given folder is unchanged."""
        after = self.arena.look()
        changed = sorted(k for k in before | after if before.get(k) != after.get(k))
        hold(not changed, f"changed outside the given folders: {changed}")

    @contextmanager
    def disk(self) -> Iterator[Path]:
        """Yields a folder; as root one that `little_room` can make a full disk of."""
        place = self.folder / "disk"
        if os.geteuid():
            place.mkdir()
            yield place
            return
        with faults.disk(place, "size=256m"):
            yield place

    def little_room(self, place: Path, most: int) -> None:
        """Leaves less than `most` bytes of room on a disk."""
        used = shutil.disk_usage(place).used
        faults.remount(place, f"size={(used + self.rng.randrange(0, most)) // 1024 + 4}k")

    def much_room(self, place: Path) -> None:
        """Makes a disk large again."""
        faults.remount(place, "size=256m")


def hold_whole_or_absent(there: Path, reference: dict[str, bytes], *but: str) -> None:
    """Checks that each final name has its complete file, and that a manifest is there last.

    Args:
      there: a dataset, finished or not.
      reference: bytes of a finished one, by name.
      *but: names that were damaged on purpose since.
    """
    found = contents(there) if there.is_dir() else {}
    strange = sorted(set(found) - set(reference))
    hold(not strange, f"{there}: {strange}")
    partial = [name for name in found if name not in but and found[name] != reference[name]]
    hold(not partial, f"{there}: other bytes in {partial}")
    if "dataset.json" in found:
        missing = sorted(set(reference) - set(found) - set(but))
        hold(not missing, f"{there}: a manifest without {missing}")
