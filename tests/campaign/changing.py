"""Sources that change between two runs of one command, or while it runs.

Exit code 0 means that the output is the one that an undisturbed run makes of the source at that
moment. A product of the source as it was is refused with exit code 2, and stays as it is.
"""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tests.campaign import sources
from tests.campaign.scenes import seen
from tests.campaign.sources import Changes, Source
from tests.campaign.story import Story, ViolationError, hold
from tests.kit.miniature import Miniature
from tests.kit.warm import Ended

_RESIZE = ("-s", "train,validation", "-r", "12", "--workers", "2")
_FORMATS = ("folder", "tfds", "webdataset", "parquet", "recordio")
_WAYS = ("in place", "replaced", "swapped")
_MEANWHILE_CHANCE = 0.2
_COMPLETE_CHANCE = 0.15
_STAYS_CHANCE = 0.15
_BACK_CHANCE = 0.25
_LOOK_CHANCE = 0.3
_VERIFY_CHANCE = 0.3

VERBS = ("prepare", "resize", "amend", "adopt", "export", "replicate", "duplicates")

Words = Callable[[Path, Path], list[str]]


class Outcome(NamedTuple):
    """The end of an undisturbed run into an empty folder: its exit code, and all files."""

    code: int
    files: dict[str, bytes]
    said: str


@dataclass
class Case:
    """One command over one source.

    Attributes:
      name: of both.
      source: the source that changes.
      words: the command, from the place of the source and that of the product.
      ways: how changes may be made; not "in place" if the product has links to the source.
      known: outcomes, by digest of the source.
      changes: of files that an undisturbed run makes.
      seconds: that it takes.
    """

    name: str
    source: Source
    words: Words
    ways: tuple[str, ...] = _WAYS
    known: dict[str, Outcome] = field(default_factory=dict)
    changes: int = 0
    seconds: float = 0.0

    @property
    def verb(self) -> str:
        return self.name.partition(" ")[0]


class Changing:
    """Rounds of one verb over sources that change."""

    def __init__(self, cases: Sequence[Case]) -> None:
        """Takes the cases; their outputs are made when they are needed."""
        self._cases = cases

    def round(self, story: Story) -> None:
        """Disturbs one command, and changes its source, until nothing happens any more."""
        _Round(story, story.rng.choice(self._cases)).go_on()


class _Round:
    def __init__(self, story: Story, case: Case) -> None:
        self.story, self.case, self.rng = story, case, story.rng
        self.place = story.folder / "source"
        self.out = story.folder / "out"
        self.words = case.words(self.place, self.out)
        source = case.source
        self.changes = Changes(source.images(), source.own_names)
        source.lay(self.changes.images, self.place)
        # The outputs of undisturbed runs for each source that this round has had.
        self.outcomes: dict[str, Outcome] = {}
        self.states = {sources.digest(self.changes.images)}
        self.steps: list[str] = []
        # Whether files of unfinished work may be of two sources.
        self.mixed = False

    def go_on(self) -> None:
        try:
            self.expected()
            for _ in range(self.rng.randint(3, 9)):
                self._act()
                if self.rng.random() > _STAYS_CHANCE:
                    self._change()
            self._end(self._run())
        except ViolationError as violation:
            steps = "; ".join(self.steps)
            raise ViolationError(f"{self.case.name}: {violation} [{steps}]") from None

    def _act(self) -> None:
        chance = self.rng.random()
        if chance < _MEANWHILE_CHANCE:
            self._change_meanwhile()
        elif chance < _MEANWHILE_CHANCE + _COMPLETE_CHANCE:
            self._run()
        else:
            case = self.case
            self.story.ended_early(self.words, case.changes, case.seconds, (2, 3))
            ended = self._ended()
            self.steps.append(f"ended with {ended.code}")
            if ended.code in (0, 2, 3):
                self._hold(ended)
            elif self.rng.random() > _LOOK_CHANCE and not self._is_known():
                # An undisturbed run for comparison takes as long as the run.
                self.mixed = True
            self._hold_visible()

    def _run(self) -> Ended:
        self.story.start(self.words)
        self.story.finish(0, 1, 2, 3, 4)
        ended = self._ended()
        self.steps.append(f"run: {ended.code}")
        self._hold(ended)
        self._hold_visible()
        return ended

    def _ended(self) -> Ended:
        ended = self.story.ended
        assert ended is not None
        return ended

    def _change(self) -> None:
        self._settle(self._new())

    def _new(self) -> tuple[str, bool]:
        """Makes a changed source next to the one that is there; returns how it replaces that."""
        rng, case = self.rng, self.case
        kind = "back" if rng.random() < _BACK_CHANCE else rng.choice(case.source.kinds)
        how = rng.choice(case.ways)
        keeps = rng.random() < 0.5 and kind != "touched"
        self.steps.append(f"{kind}, {how}{', times kept' if keeps else ''}")
        self.story.faults[f"source {kind}{', times kept' if keeps else ''}"] += 1
        self.changes.apply(kind, rng.randrange(2))
        self.states.add(sources.digest(self.changes.images))
        case.source.lay(self.changes.images, self.story.folder / "new")
        return how, keeps

    def _settle(self, drawn: tuple[str, bool]) -> None:
        how, keeps = drawn
        sources.settle(self.story.folder / "new", self.place, how, keep_times=keeps)

    def _change_meanwhile(self) -> None:
        """Changes the source while the command is stopped."""
        at = self.story.place(self.case.changes)
        before = self.expected()
        # The process that forks commands makes no other one meanwhile.
        drawn = self._new()
        self.story.start(self.words, at=at, signum=int(signal.SIGSTOP))
        if is_stopped := self.story.warm.stopped():
            self._settle(drawn)
            self.story.warm.send(signal.SIGCONT)
        self.story.finish(0, 1, 2, 3, 4)
        ended = self._ended()
        self.steps.append(f"{f'stopped at {at}' if is_stopped else 'not stopped'}: {ended.code}")
        if not is_stopped:
            self._hold(ended)
            self._settle(drawn)
            return
        self.story.faults["source changed meanwhile"] += 1
        if ended.code == 0:
            found = seen(self.out)
            either = (before.files, self.expected().files)
            hold(found in either, "exit code 0, and a product of neither source")
        else:
            hold(b"imagenet-prep: " in ended.err, "no sentence")
            self.mixed = True
        self._hold_visible()

    def _is_known(self) -> bool:
        return sources.digest(seen(self.place)) in self.case.known

    def expected(self) -> Outcome:
        """Returns the outcome of an undisturbed run with the source as it is now."""
        case, story = self.case, self.story
        key = sources.digest(seen(self.place))
        if key not in case.known:
            there = story.folder / "undisturbed"
            shutil.rmtree(there, ignore_errors=True)
            began = time.monotonic()
            story.start(case.words(self.place, there))
            ended = story.finish(0, 1, 2, 3)
            said = ended.err.decode(errors="replace")
            files = seen(there) if ended.code == 0 else {}
            case.known[key] = Outcome(ended.code, files, said)
            if not case.changes:
                hold(ended.code == 0, f"undisturbed: {said}")
                case.changes = story.changes()
                case.seconds = time.monotonic() - began
            shutil.rmtree(there, ignore_errors=True)
        self.outcomes[key] = case.known[key]
        return case.known[key]

    def _hold(self, ended: Ended) -> None:
        """Holds the end of a run that saw one source against an undisturbed one."""
        now = self.expected()
        found = seen(self.out)
        said = ended.err.decode(errors="replace").strip()[-1500:]
        if ended.code == 0:
            hold(now.code == 0, f"exit code 0, and undisturbed {now.code}: {now.said}")
            names = found.keys() | now.files.keys()
            self.mixed = False
            wrong = sorted(name for name in names if found.get(name) != now.files.get(name))
            hold(not wrong, f"exit code 0, and other bytes in {wrong}")
        elif ended.code == now.code:
            return
        else:
            hold(ended.code == 2, f"exit code {ended.code}, undisturbed {now.code}: {said}")
            hold(found != now.files, f"an equal product is refused: {said}")
            hold("hoose" in said, f"no remedy: {said}")
            self.story.faults["refused"] += 1
            hold(len(self.states) > 1, f"refused, and nothing has changed: {said}")
            if self.case.verb == "prepare":
                hold("dataset.json" in found, f"unfinished work is refused: {said}")
            if "--force" in said:
                self._force()
            elif self.rng.random() < _LOOK_CHANCE:
                shutil.rmtree(self.out)
                self.steps.append("removed")

    def _force(self) -> None:
        """Follows the advice of a refusal."""
        if self.rng.random() < 0.5:
            return
        self.story.undisturbed([*self.words, "--force"])
        self.steps.append("--force")
        hold(seen(self.out) == self.expected().files, "--force makes a different output")

    def _hold_visible(self) -> None:
        """Each visible file is one of an undisturbed run; a manifest names only existing files."""
        found = seen(self.out)
        if not self.mixed:
            self.expected()
        for name, data in found.items():
            whole = self.mixed or any(
                outcome.files.get(name) == data for outcome in self.outcomes.values()
            )
            hold(whole or name == "dataset.json" or self._is_of_split(name), f"half of {name}")
        if self.rng.random() < _VERIFY_CHANCE:
            self._verify(found, "crc")

    @property
    def _commits_splits(self) -> bool:
        """Whether splits are committed one after the other."""
        return self.case.verb == "resize" or "--rewrite" in self.words

    def _is_of_split(self, name: str) -> bool:
        """Whether a file differs until all splits are committed."""
        return self._commits_splits and not name.endswith(("-of-00001", "-of-00002"))

    def _verify(self, found: dict[str, bytes], level: str) -> None:
        """Holds a finished dataset against its manifest."""
        is_whole = any(found == outcome.files for outcome in self.outcomes.values())
        # The shards of the next split are not in the manifest yet.
        if "dataset.json" not in found or (self._commits_splits and not is_whole):
            return
        self.story.start(["verify", str(self.out), "--level", level, "--workers", "2"])
        ended = self.story.finish(0, 3)
        said = ended.err.decode(errors="replace")[-800:]
        hold(ended.code == 0, f"verify --level {level}: {said}")

    def _end(self, ended: Ended) -> None:
        """Checks the output and the temporary files after an undisturbed run."""
        now = self.expected()
        if ended.code == 2 and not self.out.exists():
            return
        for level in ("crc", "decode"):
            self._verify(seen(self.out), level)
        if ended.code == 0:
            left = [*self.out.glob(".work/temporary/*"), *self.out.rglob("*.partial")]
            hold(not left or b"nothing was left" in ended.out, f"temporary files: {left}")
        elif ended.code == 2 and now.code == 0:
            there = self.story.folder / "another"
            self.story.undisturbed(self.case.words(self.place, there))
            hold(seen(there) == now.files, "a different folder gets a different output")


def cases(verb: str, mini: Miniature, run: sources.Run, scratch: Path) -> list[Case]:
    """Returns the cases of a verb.

    Args:
      verb: of `VERBS`.
      mini: the archives that some are made of.
      run: carries out a command undisturbed.
      scratch: made here, for the datasets that are sources.
    """
    datasets = {
        "prepared": sources.Prepared(run, scratch / "prepared"),
        "amended": sources.Amended(run, scratch / "amended"),
        "adopted": sources.Adopted(run, scratch / "adopted"),
    }
    for name in datasets:
        (scratch / name).mkdir(parents=True)
    linked = _WAYS[1:]
    found = []
    if verb == "prepare":
        found += _prepares(mini)
    elif verb == "adopt":
        shards = sources.Shards()
        found += [Case("adopt shards", shards, _adopt, linked)]
        found += [Case("adopt --rewrite shards", shards, _rewrite)]
    elif verb == "resize":
        found += [Case("resize shards", sources.Shards(), _resize)]
        found += [Case(f"resize {name}", source, _resize) for name, source in datasets.items()]
    elif verb == "amend":
        found += [Case(f"amend {name}", each, _amend, linked) for name, each in datasets.items()]
    elif verb == "replicate":
        found += [Case(f"replicate {name}", each, _replicate) for name, each in datasets.items()]
    elif verb == "duplicates":
        found += [Case(f"duplicates {name}", each, _duplicates) for name, each in datasets.items()]
    else:
        for name, source in datasets.items():
            for to in _FORMATS:
                found.append(Case(f"export {name} to {to}", source, partial(_export, to=to)))
    return found


def _prepares(mini: Miniature) -> list[Case]:
    def case(name: str, source: Source, *flags: str) -> Case:
        def words(place: Path, out: Path) -> list[str]:
            where = ["prepare", "--source", str(place), "--out", str(out), "--workers", "2"]
            return [*where, *(flags or sources.PREPARE[:-2])]

        return Case(f"prepare {name}", source, words)

    kept = ("--keep-original", "--allow-subset", "--train-shards", "2", "--validation-shards", "1")
    return [
        case("folders", sources.Folders()),
        case("folders, kept", sources.Folders(), *kept),
        case("folders, held out", sources.Folders(), *kept[:-2], "--holdout", "2"),
        case("archives", sources.Archives(mini)),
        case("archives, kept", sources.Archives(mini), *kept),
        case("class tars", sources.ClassTars(mini), *kept[:-2], "--splits", "train"),
        case("RecordIO", sources.RecordIO()),
        case("Parquet", sources.Parquet(mini)),
    ]


def _resize(place: Path, out: Path) -> list[str]:
    return ["resize", "-i", str(place / "set"), "-o", str(out), *_RESIZE]


def _amend(place: Path, out: Path) -> list[str]:
    more = ["--add", str(place / "add"), "--workers", "2"]
    return ["amend", str(place / "set"), "--out", str(out), *more]


def _adopt(place: Path, out: Path) -> list[str]:
    more = ["--out", str(out), "--allow-subset", "--workers", "2"]
    return ["adopt", str(place / "set"), *more]


def _rewrite(place: Path, out: Path) -> list[str]:
    return [*_adopt(place, out), "--rewrite"]


def _replicate(place: Path, out: Path) -> list[str]:
    return ["replicate", str(place / "set"), "--to", str(out), "--connections", "2"]


def _duplicates(place: Path, out: Path) -> list[str]:
    return ["duplicates", str(place / "set"), "--out", str(out), "--workers", "2"]


def _export(place: Path, out: Path, to: str) -> list[str]:
    more = ["--split", "train", "--allow-empty-class"] if to == "folder" else []
    words = ["export", str(place / "set"), "--to", to, "--out", str(out), "--workers", "2"]
    return [*words, *more]
