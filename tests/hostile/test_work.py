"""Planted files below `.work`: links to the user's files, and false notes."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from imagenet_prep.dataset import schema
from tests.hostile import files, links, lists
from tests.kit.arena import Arena
from tests.kit.lengths import long_except
from tests.kit.miniature import Miniature

Plant = Callable[[], None]
Begun = Callable[[str], tuple[tuple[str, ...], Path]]


@pytest.fixture(scope="session")
def foreign(sound: Path, memory: Path) -> Path:
    """Shards of other programs, without index, manifest and class list."""
    root = memory / "foreign" / "set"
    root.mkdir(parents=True)
    for path in sound.glob("*-of-*"):
        shutil.copy2(path, root)
    return root


class Verbs:
    """Runs each verb on `given/out`, from the start or after an interrupted run."""

    def __init__(self, arena: Arena, sound: Path, foreign: Path, tiny: Miniature) -> None:
        self._arena = arena
        few = ("--train-shards", "2", "--validation-shards", "1", "--short-side", "24")
        one = ("--workers", "1")
        source = ("--source", str(tiny.root), "--allow-subset", *few, *one)
        into = ("--splits", "train,validation", "--short-side", "24", *one)
        self.words = {
            "prepare": ("prepare", *source, "--out", "out"),
            "resize": ("resize", "-i", str(sound), "-o", "out", *into),
            "adopt": ("adopt", "out", "--allow-subset", *one),
            "adopt out": ("adopt", str(foreign), "--out", "out", "--allow-subset", *one),
            "rewrite": ("adopt", str(foreign), "--rewrite", "--out", "out", "--allow-subset", *one),
            "replicate": ("replicate", str(sound), "--to", "out", "--connections", "1"),
            "replicate from": ("replicate", "out", "--to", "copy", "--connections", "1"),
            "verify": ("verify", "out", "--if-changed", *one),
        }
        # The files before the run.
        self.there = {"adopt": foreign, "replicate from": sound, "verify": sound}

    def begin(self, verb: str) -> Path:
        """Leaves `out` in the state of a verb that is killed just before the end."""
        out = self._arena.given / "out"
        if verb in self.there:
            shutil.copytree(self.there[verb], out)
        assert self._arena.run(*self.words[verb]).code == 0
        if verb not in self.there:
            (out / schema.MANIFEST).unlink()
            (out / "train-00000-of-00002").unlink()
        return out


@pytest.fixture(scope="session")
def interrupted(
    arena_of_worker: Arena, sound: Path, foreign: Path, tiny: Miniature, memory: Path
) -> Begun:
    """Returns the arguments of a verb, and a read-only copy of its output; each made once."""
    verbs = Verbs(arena_of_worker, sound, foreign, tiny)
    made: dict[str, Path] = {}

    def get(verb: str) -> tuple[tuple[str, ...], Path]:
        if verb not in made:
            arena_of_worker.clear()
            kept = memory / "interrupted" / verb.replace(" ", "-")
            shutil.copytree(verbs.begin(verb), kept)
            arena_of_worker.clear()
            made[verb] = kept
        return verbs.words[verb], made[verb]

    return get


NAMES = (
    "prepare",
    "resize",
    "adopt",
    "adopt out",
    "rewrite",
    "replicate",
    "replicate from",
    "verify",
)


# In `make test` each verb gets a different part of the plants, and each plant one verb.
PARTS = len(NAMES)
MANY = pytest.mark.parametrize(
    ("verb", "part"),
    long_except(
        [(verb, number % PARTS) for number, verb in enumerate(NAMES)],
        [*itertools.product(NAMES, range(PARTS))],
    ),
)


@MANY
def test_links_in_the_work_folder_lead_nowhere(
    arena: Arena, interrupted: Begun, verb: str, part: int
) -> None:
    words, left = interrupted(verb)
    shutil.copytree(left, arena.given / "out")
    _each(arena, words, left, list(links.plants(arena.given / "out", arena.root))[part::PARTS])


@MANY
def test_false_notes_in_the_work_folder_are_harmless(
    arena: Arena, interrupted: Begun, verb: str, part: int
) -> None:
    words, left = interrupted(verb)
    shutil.copytree(left, arena.given / "out")
    _each(arena, words, left, list(links.journals(arena.given / "out"))[part::PARTS])


def test_false_lists_of_images_are_harmless(arena: Arena, interrupted: Begun, memory: Path) -> None:
    words, left = interrupted("prepare")
    unwritten = memory / "unwritten"
    shutil.copytree(left, unwritten)
    for path in (*unwritten.glob("*-of-*"), *unwritten.glob(f"{schema.INDEX}/*")):
        path.unlink()
    shutil.copytree(left, arena.given / "out")
    _each(arena, words, unwritten, list(lists.plants(arena.given / "out")))


@MANY
def test_wrong_kinds_of_work_files_are_not_read(
    arena: Arena, interrupted: Begun, verb: str, part: int
) -> None:
    words, left = interrupted(verb)
    shutil.copytree(left, arena.given / "out")
    _each(arena, words, left, list(files.work_plants(arena.given / "out"))[part::PARTS])


def _each(
    arena: Arena, words: tuple[str, ...], left: Path, plants: Iterable[tuple[str, Plant]]
) -> None:
    def attempt(plant: Plant) -> None:
        shutil.copytree(left, arena.given / "out")
        plant()
        arena.run(*words)

    arena.each(plants, attempt)
