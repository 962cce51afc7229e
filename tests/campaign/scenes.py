"""Small runs of each command: the disk before, the command, and the disk after it.

The means that go through every call of a run, or through every moment of it, run a scene hundreds
of times. So it is as small as it can be with all that its verb does.
"""

from __future__ import annotations

import contextlib
import json
import random
import shutil
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.campaign import calls, commands
from tests.campaign.calls import Entry
from tests.campaign.lost_power import Disk
from tests.campaign.story import KILL, Story, hold
from tests.kit import faults, foreign, warm
from tests.kit.amended import make_changes
from tests.kit.arena import Arena
from tests.kit.columns import make_column
from tests.kit.dataset import all_files, contents
from tests.kit.http_server import serve
from tests.kit.miniature import miniature_for_tests
from tests.kit.replicas import make_dataset

_SHARDS = ("--train-shards", "2", "--validation-shards", "1")
_PREPARE = (*_SHARDS, "--short-side", "32", "--allow-subset", "--workers", "1")
_ARCHIVES = {"ILSVRC2012_img_train.tar": 3 * (1 << 16) + 4321, "ILSVRC2012_devkit_t12.tar.gz": 3000}


@dataclass
class Scene:
    """A run that can be repeated.

    Attributes:
      words: the command.
      begin: the disk before the run; copied for each run.
      target: the folder that the command fills.
      settings: of the command; see `commands`.
      before: bytes of all files of `target` at the beginning, but for `.work`.
      after: the same at the end of an undisturbed run.
      sources: bytes of all files outside `target`.
    """

    words: list[str]
    begin: Path
    target: Path
    settings: dict[str, Any] = field(default_factory=lambda: {"small": True})
    before: dict[str, bytes] = field(default_factory=dict)
    after: dict[str, bytes] = field(default_factory=dict)
    sources: dict[str, bytes] = field(default_factory=dict)
    source: Path = Path()
    changes: int = 0
    manifest_change: int = 0

    def has_manifest(self) -> bool:
        """Returns whether the target has the manifest of a complete run."""
        path = self.target / "dataset.json"
        return path.exists() and path.read_bytes() == self.after["dataset.json"]


class Theatre:
    """One arena, one warm process with the library of calls.c, and the scenes there."""

    def __init__(self, folder: Path, library: Path) -> None:
        """Starts the process, and the server that `download` fetches from; to be closed."""
        self.closing = contextlib.ExitStack()
        # Each page of a report would import Matplotlib.
        plots = ("imagenet_prep.reporting.plots",) if find_spec("matplotlib") else ()
        modules = (*warm.VERBS, *plots, "tests.campaign.commands")
        preload = {"LD_PRELOAD": str(library)}
        self._warm = self.closing.enter_context(warm.Warm(modules, env=preload))
        self._arena = Arena(folder, self._warm)
        self.begins = folder / "begins"
        self.begins.mkdir()
        self.given = self._arena.clear()
        self.disk = self.given / "disk"
        self.note = folder / "calls.json"
        self.story = Story(self._arena, self._warm, random.Random(0))
        self._scenes: dict[str, Scene] = {}
        self._counts: dict[tuple[str, str], dict[str, int]] = {}
        self.recordings: dict[str, tuple[Disk, list[Entry]]] = {}

    def close(self) -> None:
        self.closing.close()

    def scene(self, name: str) -> Scene:
        """Returns a scene of `SCENES` or `PRODUCTS`, with the files of an undisturbed run."""
        if name not in self._scenes:
            self._scenes[name] = self._make(name)
        return self._scenes[name]

    def _make(self, name: str) -> Scene:
        shutil.rmtree(self.disk, ignore_errors=True)
        self.disk.mkdir()
        make = partial(_reader, name=name) if name in READERS else (SCENES | PRODUCTS)[name]
        scene = make(self)
        scene.source = scene.begin
        scene.begin = self.begins / name.replace(" ", "-")
        scene.sources = self._sources(scene.target)
        scene.before = seen(scene.target)
        shutil.copytree(self.disk, scene.begin)
        self.story.undisturbed(scene.words, **scene.settings)
        scene.changes = self.story.changes()
        scene.manifest_change = self.story.manifest_change()
        scene.after = seen(scene.target)
        hold(name in READERS or scene.after != scene.before, f"{name}: nothing was done")
        self.hold_sources(scene)
        return scene

    def _sources(self, target: Path) -> dict[str, bytes]:
        others = (path for path in self.disk.iterdir() if path != target)
        found = {}
        for path in others:
            found.update({f"{path.name}/{name}": data for name, data in contents(path).items()})
        return found

    def remove(self, output: Path) -> None:
        """Removes an output, which may be a file, a folder or absent."""
        if output.is_dir():
            shutil.rmtree(output)
        output.unlink(missing_ok=True)

    def reset(self, scene: Scene) -> None:
        """Lays out how a scene begins."""
        shutil.rmtree(self.disk, ignore_errors=True)
        shutil.copytree(scene.begin, self.disk)

    def reset_finished(self, scene: Scene) -> None:
        """Lays out how a scene ends."""
        finished = scene.begin.with_name(f"{scene.begin.name}-finished")
        if not finished.exists():
            self.reset(scene)
            self.story.undisturbed(scene.words, **scene.settings)
            shutil.copytree(self.disk, finished)
        shutil.rmtree(self.disk)
        shutil.copytree(finished, self.disk)

    def start(self, scene: Scene, **what: object) -> None:
        """Starts the scene's command; `what` arms the library, see `calls.arm`."""
        settings = {"folder": str(self.given), "note": str(self.note), **what}
        self.story.start(scene.words, calls=settings, **scene.settings)

    def record(self, scene: Scene, **settings: object) -> list[Entry]:
        """Runs the scene's command; returns all changes that it made on the disk."""
        path = self.note.with_name("record")
        path.unlink(missing_ok=True)
        library = {"folder": str(self.disk), "note": str(self.note), "record": str(path)}
        self.story.undisturbed(scene.words, calls=library, **scene.settings, **settings)
        return list(calls.entries(path))

    def recorded(self, name: str) -> tuple[Disk, list[Entry]]:
        """Returns a disk as a scene finds it, and all changes of an undisturbed run there."""
        if name not in self.recordings:
            scene = self.scene(name)
            self.reset(scene)
            disk = Disk(self.disk)
            self.recordings[name] = (disk, self.record(scene))
        disk, record = self.recordings[name]
        return disk.copy(), record

    def hold_sources(self, scene: Scene) -> None:
        """Checks that all files outside the target are unchanged."""
        hold(self._sources(scene.target) == scene.sources, "the source is different")

    def counts(self, name: str, **what: object) -> dict[str, int]:
        """Returns how many calls of each kind an undisturbed run of a scene makes."""
        key = (name, repr(what))
        if key not in self._counts:
            scene = self.scene(name)
            self.reset(scene)
            self.start(scene, **what)
            self.story.finish(0)
            self._counts[key] = self.noted()["counts"]
        return self._counts[key]

    def noted(self) -> dict[str, Any]:
        """Returns the counts of the library for the last command."""
        found: dict[str, Any] = json.loads(self.note.read_bytes())
        return found


def seen(target: Path) -> dict[str, bytes]:
    """Returns the visible files of an output; all complete pages are equal."""
    # Some formats use folders with a name and a version, each with its own notes.
    found = {n: data for n, data in all_files(target).items() if ".work" not in Path(n).parts}
    found = {name: data for name, data in found.items() if not name.endswith(".partial")}
    for name, data in found.items():
        if name.endswith(".html") and data.rstrip().endswith(b"</html>"):
            found[name] = b"a complete page"
    return found


def hold_visible(scene: Scene, but: Collection[str] = ()) -> None:
    """Checks an unfinished output: old files or complete new ones, and a manifest only with all
    files that it names; those of `but` may be missing."""
    found = seen(scene.target)
    wrong = sorted(n for n in found if found[n] not in (scene.before.get(n), scene.after.get(n)))
    hold(not wrong, f"other bytes in {wrong}")
    if "dataset.json" in found and found != scene.before:
        hold_finished(scene, found, but)


def hold_finished(
    scene: Scene, found: dict[str, bytes] | None = None, but: Collection[str] = ()
) -> None:
    """Checks a complete output: the bytes of an undisturbed run."""
    found = seen(scene.target) if found is None else found
    names = (found.keys() | scene.after.keys()).difference(but)
    wrong = sorted(name for name in names if found.get(name) != scene.after.get(name))
    hold(not wrong, f"other bytes, or missing: {wrong}")


def _prepare(theatre: Theatre) -> Scene:
    """Makes `prepare` of two train shards and one of validation, with odd images among them."""
    mini = miniature_for_tests(
        theatre.given.parent / "minis", num_train=20, num_validation=4, num_classes=2, size=(64, 48)
    )
    source = theatre.disk / "source"
    out = theatre.disk / "out"
    shutil.copytree(mini.root, source)
    (source / "truth.json").unlink()
    return Scene(["prepare", "--source", str(source), "--out", str(out), *_PREPARE], source, out)


def _resume(theatre: Theatre) -> Scene:
    """Makes the same after a run that was killed after half of its changes."""
    scene = _prepare(theatre)
    theatre.story.undisturbed(scene.words)
    half = theatre.story.changes() // 2
    shutil.rmtree(scene.target)
    theatre.story.start(scene.words, at=half, signum=int(KILL))
    theatre.story.finish(-KILL)
    return scene


def _download(theatre: Theatre) -> Scene:
    """Makes `download` of two archives, in four parts and in one."""
    files = {name: random.Random(name).randbytes(size) for name, size in _ARCHIVES.items()}
    server = theatre.closing.enter_context(serve(files))
    into = theatre.disk / "into"
    words = ["download", "--into", str(into), "--base-url", server.url, "--what", "train,devkit"]
    words += ["--part-size", "1", "--connections", "2", "--retries", "2"]
    official = {name: commands.md5(data) for name, data in files.items()}
    return Scene(words, into, into, {"small": True, "official": official})


def _replicate(theatre: Theatre) -> Scene:
    """Makes `replicate` of three shards from folder to folder."""
    source = theatre.disk / "set"
    copy = theatre.disk / "copy"
    make_dataset(source, shards=3)
    words = ["replicate", str(source), "--to", str(copy), "--connections", "2"]
    return Scene(words, source, copy)


def _repair(theatre: Theatre) -> Scene:
    """Makes `replicate --repair` of a replica with a flipped bit, a cut file and a lost one."""
    scene = _replicate(theatre)
    theatre.story.undisturbed(scene.words)
    shards = sorted(scene.target.glob("*-of-*"))
    faults.flip_bit(shards[0], 1000)
    faults.cut(shards[1], 1000)
    shards[2].unlink()
    scene.words.append("--repair")
    return scene


def _foreign(theatre: Theatre, folder: str) -> Path:
    mini = miniature_for_tests(
        theatre.given.parent / "minis", num_train=20, num_validation=4, num_classes=2, size=(64, 48)
    )
    root = theatre.disk / folder
    shards = {"train": 2, "validation": 1}
    stored = foreign.images(mini)
    foreign.write(root, stored, foreign.aws, num_shards=shards, first=1, below=True)
    return root


def _adopt(theatre: Theatre) -> Scene:
    """Makes `adopt` in place: in folders per split, with names that count from 1."""
    root = _foreign(theatre, "set")
    return Scene(["adopt", str(root), "--allow-subset", "--workers", "1"], root, root)


def _adopt_links(theatre: Theatre) -> Scene:
    """Makes `adopt --out` of the same set, by links."""
    root = _foreign(theatre, "foreign")
    out = theatre.disk / "set"
    words = ["adopt", str(root), "--out", str(out), "--allow-subset", "--workers", "1"]
    return Scene(words, root, out)


def dataset(theatre: Theatre) -> Path:
    """Returns a finished set on the disk; it is prepared once."""
    kept = theatre.begins / "a-set"
    root = theatre.disk / "set"
    if not kept.exists():
        scene = _prepare(theatre)
        theatre.story.undisturbed(scene.words)
        shutil.rmtree(scene.target / ".work")
        scene.target.rename(kept)
        shutil.rmtree(theatre.disk / "source")
    shutil.copytree(kept, root)
    return root


def _resize(theatre: Theatre, splits: str) -> Scene:
    """Makes `resize` of some splits, which are committed one after the other."""
    root = dataset(theatre)
    out = theatre.disk / "out"
    words = ["resize", "-i", str(root), "-o", str(out), "-s", splits, "-r", "24"]
    return Scene([*words, "--workers", "1"], root, out)


def _add_split(theatre: Theatre) -> Scene:
    """Makes `resize` of a second split into a finished dataset of the first one."""
    scene = _resize(theatre, "train")
    theatre.story.undisturbed(scene.words)
    scene.words[scene.words.index("train")] = "validation"
    return scene


def _replace(theatre: Theatre) -> Scene:
    """Makes `resize --force` with other settings, over a finished dataset."""
    scene = _resize(theatre, "train")
    theatre.story.undisturbed(scene.words)
    scene.words[scene.words.index("24")] = "20"
    scene.words.append("--force")
    return scene


def _rewrite(theatre: Theatre) -> Scene:
    """Makes `adopt --rewrite`."""
    scene = _adopt_links(theatre)
    scene.words.append("--rewrite")
    return scene


def _amend(theatre: Theatre) -> Scene:
    """Makes `amend` that removes one image, and changes the class of another one."""
    root = dataset(theatre)
    out = theatre.disk / "out"
    changes = make_changes(root, theatre.disk / "changes")
    words = ["amend", str(root), "--out", str(out), "--workers", "1"]
    words += ["--exclude", str(changes.exclude), "--relabel", str(changes.relabel)]
    return Scene(words, root, out)


def _forgotten(theatre: Theatre) -> tuple[Path, Path]:
    """Returns a version without one image, whose salt later versions have, and a list of keys."""
    root = dataset(theatre)
    changes = make_changes(root, theatre.disk / "changes")
    version = theatre.disk / "version"
    words = ["forget", str(root), "--keys", str(changes.exclude), "--exact", "--out", str(version)]
    theatre.story.undisturbed(words)
    listed = changes.exclude.with_name("asked")
    listed.write_text(f"{changes.relabelled}\n")
    return version, listed


def _forget(theatre: Theatre) -> Scene:
    """Makes `forget` of one image of a version."""
    root, listed = _forgotten(theatre)
    out = theatre.disk / "out"
    words = ["forget", str(root), "--keys", str(listed), "--exact", "--out", str(out)]
    return Scene([*words, "--search", str(theatre.disk), "--workers", "1"], root, out)


def _replace_version(theatre: Theatre) -> Scene:
    """Makes `replicate --replace` of a dataset by the version without one image."""
    root, _ = _forgotten(theatre)
    copy = theatre.disk / "copy"
    theatre.story.undisturbed(["replicate", str(theatre.disk / "set"), "--to", str(copy)])
    return Scene(["replicate", str(root), "--to", str(copy), "--replace"], root, copy)


def _export(theatre: Theatre, to: str) -> Scene:
    """Makes `export` in one format."""
    root = dataset(theatre)
    out = theatre.disk / "out"
    words = ["export", str(root), "--to", to, "--out", str(out), "--workers", "1"]
    if to == "folder":
        words.append("--allow-empty-class")
    return Scene(words, root, out)


def _duplicates(theatre: Theatre) -> Scene:
    """Makes `duplicates` of a set."""
    root = dataset(theatre)
    out = theatre.disk / "found"
    return Scene(["duplicates", str(root), "--out", str(out), "--workers", "1"], root, out)


def _diff(theatre: Theatre) -> Scene:
    """Makes `diff` of a set and an amended one."""
    scene = _amend(theatre)
    theatre.story.undisturbed(scene.words)
    found = theatre.disk / "found"
    found.mkdir()
    words = ["diff", str(scene.begin), str(scene.target), "--out", str(found / "differences.csv")]
    return Scene(words, scene.begin, found)


def _report(theatre: Theatre) -> Scene:
    """Makes `report` outside of the set."""
    root = dataset(theatre)
    found = theatre.disk / "found"
    found.mkdir()
    return Scene(["report", str(root), "--out", str(found / "page.html")], root, found)


def _reader(theatre: Theatre, name: str) -> Scene:
    """Makes a command that reads a dataset with a column, and perhaps its replica."""
    root = dataset(theatre)
    make_column(root)
    copy = theatre.disk / "copy"
    theatre.story.undisturbed(["replicate", str(root), "--to", str(copy)])
    words = [word.format(set=root, copy=copy) for word in READERS[name].split()]
    return Scene(words, root, theatre.disk / "out")


SCENES: dict[str, Callable[[Theatre], Scene]] = {
    "prepare": _prepare,
    "prepare, resumed": _resume,
    "download": _download,
    "replicate": _replicate,
    "replicate --repair": _repair,
    "adopt": _adopt,
    "adopt --out": _adopt_links,
    "resize": partial(_resize, splits="train"),
    "resize, second split": _add_split,
    "resize --force": _replace,
    "amend": _amend,
    "forget": _forget,
    "replicate --replace": _replace_version,
    "export --to folder": partial(_export, to="folder"),
    "export --to webdataset": partial(_export, to="webdataset"),
    "duplicates": _duplicates,
}
# Commands that only read. `{set}` has a column; `{copy}` is its replica.
READERS = {
    "verify": "verify {set} --workers 1",
    "verify --level decode": "verify {set} --level decode --workers 1",
    "verify --level manifest": "verify {set} --level manifest --workers 1",
    "verify --if-changed": "verify {set} --if-changed --workers 1",
    "replicate --check": "replicate {set} --to {copy} --check",
    "show --keys": "show {set} --keys",
}
# More that verbs make, of which only losses and meetings are tried.
PRODUCTS: dict[str, Callable[[Theatre], Scene]] = {
    "resize of two splits": partial(_resize, splits="train,validation"),
    "adopt --rewrite": _rewrite,
    **{f"export --to {to}": partial(_export, to=to) for to in ("tfds", "parquet", "recordio")},
    "diff": _diff,
    "report": _report,
}
