"""Photographs that come and go, with the commands of photographs.md and amend.md."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.kit import blocks, command
from tests.kit.amended import rows
from tests.kit.photographs import photograph

pytestmark = pytest.mark.slow

ASKED = "cats/2.jpg"
NEW = "dogs/new.jpg"


def typed(name: str, home: Path) -> None:
    """Runs the lines of a block; they must succeed."""
    for line in blocks.block(name).text.splitlines():
        program, *words = shlex.split(line, comments=True)
        assert program == "imagenet-prep"
        done = command.run(*words, cwd=home)
        assert done.code == 0, done


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with `photographs`, and `set` from before the newest photograph."""
    photographs = tmp_path / "photographs"
    for number in range(12):
        path = photographs / ("cats", "dogs")[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(photograph(60, 80, number))
    words = ("--source", "photographs", "--out", "set", "--holdout", "2")
    assert command.run("prepare", *words, cwd=tmp_path).code == 0
    (photographs / NEW).write_bytes(photograph(60, 80, 99))
    return tmp_path


def keys(dataset: Path) -> dict[str, set[str]]:
    return {split: {*rows(dataset, split)} for split in ("train", "holdout")}


def test_page_adds_only_new_photographs(home: Path) -> None:
    typed("$ photographs.md: New photographs", home)

    before, after = keys(home / "set"), keys(home / "set-2")
    assert after == {"train": before["train"] | {NEW}, "holdout": before["holdout"]}


def test_edited_photographs_return_to_their_splits(home: Path) -> None:
    (home / "set").rename(home / "set-2")
    before = keys(home / "set-2")
    edited = [min(names) for names in before.values()]
    (home / "edited.txt").write_text("".join(f"{key}\n" for key in edited))
    for number, key in enumerate(edited):
        path = home / "edited" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(photograph(60, 80, 200 + number))
    typed("$ amend.md: A folder that has grown", home)

    assert keys(home / "set-3") == before
    old, new = (
        {**rows(home / name, "train"), **rows(home / name, "holdout")}
        for name in ("set-2", "set-3")
    )
    assert {key for key in old if old[key] != new[key]} == {*edited}


def test_requests_also_hold_for_a_set_from_scratch(home: Path) -> None:
    (home / "requests.txt").write_text(f"{ASKED}\nunknown/1.jpg\n")
    typed("$ amend.md: Excluded images stay excluded 2", home)
    every = set.union(*keys(home / "set").values())
    assert set.union(*keys(home / "set-2").values()) == (every | {NEW}) - {ASKED}

    (home / "set-2").rename(home / "old-set")
    (home / "photographs" / ASKED).rename(home / "photographs/dogs/renamed.jpg")
    typed("$ amend.md: Excluded images stay excluded", home)
    assert {*rows(home / "new-set", "train")} == (every | {NEW}) - {ASKED}
