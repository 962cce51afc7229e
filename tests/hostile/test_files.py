"""Pipes, devices and sparse files in place of a dataset's files, for all verbs."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from imagenet_prep.dataset import schema
from tests.hostile import files
from tests.hostile.readers import READ
from tests.kit.arena import Arena
from tests.kit.lengths import long_except

ONE = ("--workers", "1")
VERBS: dict[str, tuple[str, ...]] = {
    "verify": ("verify", "set", *ONE),
    "verify if changed": ("verify", "set", "--if-changed", *ONE),
    "report": ("report", "set", "--out", "page.html"),
    "replicate": ("replicate", "set", "--to", "copy", "--connections", "1"),
    "replicate to": ("replicate", "sound", "--to", "set", "--connections", "1"),
    "read": ("set",),
    "export": ("export", "set", "--out", "copy"),
    "show": ("show", f"set/{files.SHARD}"),
    "resize": ("resize", "-i", "set", "-o", "out", "--short-side", "16", *ONE),
    "resize to": ("resize", "-i", "sound", "-o", "set", "--short-side", "16", *ONE),
    "adopt": ("adopt", "set", "--allow-subset", *ONE),
    "adopt again": ("adopt", "set", "--rewrite", "--out", "out", "--allow-subset", *ONE),
    "duplicates": ("duplicates", "set", "--out", "found", *ONE),
}
# These verbs refuse a folder that has a manifest.
WITHOUT_MANIFEST = ("adopt", "adopt again")
# In `make test` each verb gets a different part of the files, and each file is used by one verb.
PARTS = len(VERBS)


def _run(arena: Arena, sound: Path, verb: str, plant: Callable[[], None]) -> int:
    for name in ("set", "sound"):
        shutil.copytree(sound, arena.given / name)
    if verb in WITHOUT_MANIFEST:
        (arena.given / "set" / schema.MANIFEST).unlink()
        shutil.rmtree(arena.given / "set" / schema.INDEX)
        (arena.given / "set" / schema.LABELS).unlink()
    plant()
    return arena.run(*VERBS[verb], **({"call": READ} if verb == "read" else {})).code


@pytest.mark.parametrize(
    ("verb", "part"),
    long_except(
        [(verb, number % PARTS) for number, verb in enumerate(VERBS)],
        [*itertools.product(VERBS, range(PARTS))],
    ),
)
def test_wrong_kind_of_file_ends_in_a_sentence(
    arena: Arena, sound: Path, verb: str, part: int
) -> None:
    plants = list(files.plants(arena.given / "set"))
    # The kinds of neighbouring files differ, so that a part has all kinds and all files.
    chosen = [
        each for at, each in enumerate(plants) if (at + at // len(files.KINDS)) % PARTS == part
    ]
    arena.each(chosen, lambda plant: _run(arena, sound, verb, plant))


# The verbs that read a file as one piece.
READ_WHOLE = [
    *((verb, schema.MANIFEST) for verb in ("verify", "report", "replicate", "read", "export")),
    *((verb, schema.MANIFEST) for verb in ("resize", "resize to", "verify if changed")),
    *((verb, schema.PLACEMENT) for verb in ("verify", "replicate", "read", "export")),
    *((verb, schema.LABELS) for verb in ("verify", "replicate", "read", "export", "resize")),
    ("adopt", f"{schema.WORK}/adopt.json"),
    ("resize to", f"{schema.WORK}/run.json"),
]


@pytest.mark.parametrize(("verb", "name"), READ_WHOLE)
def test_huge_sparse_file_is_not_read(arena: Arena, sound: Path, verb: str, name: str) -> None:
    path = arena.given / "set" / name
    assert _run(arena, sound, verb, lambda: files.plant(path, "sparse")) == 3
    arena.clear()
    # A pipe must not block verbs that only look for such a file.
    _run(arena, sound, verb, lambda: files.plant(path, "pipe"))
