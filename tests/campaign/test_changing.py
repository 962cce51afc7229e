"""Sources change as they should, and a wrong output of a changed source is found."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.campaign import sources
from tests.campaign.changing import Case, Changing
from tests.campaign.sources import Changes, Folders, settle
from tests.campaign.story import Story, ViolationError
from tests.kit import command
from tests.kit.arena import Arena


def test_output_of_old_source_is_a_violation(tmp_path: Path) -> None:
    def words(place: Path, out: Path) -> list[str]:
        # As if the command did not see any change.
        first = place.with_name("first")
        if not first.exists():
            Folders().lay(Folders().images(), first)
        source = first if out.name == "out" else place
        return ["prepare", "--source", str(source), "--out", str(out), *sources.PREPARE]

    folders = Folders()
    folders.kinds = ("moved",)
    warm = command.warm_process()
    arena = Arena(tmp_path / "arena", warm)
    arena.clear()
    story = Story(arena, warm, random.Random(1))
    with pytest.raises(ViolationError, match=r"exit code 0, and other bytes.*moved"):
        Changing([Case("prepare folders", folders, words)]).round(story)


@pytest.mark.parametrize("kind", Folders.kinds)
def test_each_change_does_what_its_name_says(kind: str) -> None:
    images = Folders().images()
    changes = Changes(images, own_names=False)
    changes.apply(kind, 0)
    now = changes.images
    names = {path.rpartition("/")[2] for path in images}, {p.rpartition("/")[2] for p in now}

    sizes = [sorted(map(len, each.values())) for each in (images, now)]
    assert (sizes[0] == sizes[1]) == (kind not in ("added", "removed"))
    assert (now == images) == (kind in ("back", "touched"))
    assert (names[0] == names[1]) == (kind not in ("added", "removed", "renamed"))
    changes.apply("back", 0)
    assert changes.images == images


@pytest.mark.parametrize("how", ["in place", "replaced", "swapped"])
@pytest.mark.parametrize("keep_times", [False, True])
def test_changed_source_replaces_the_old_one(tmp_path: Path, how: str, *, keep_times: bool) -> None:
    place = tmp_path / "place"
    new = tmp_path / "new"
    for folder, files in ((place, "abc"), (new, "abd")):
        folder.mkdir()
        for name in files:
            (folder / name).write_text(f"{name}{folder.name if name == 'b' else ''}")
    before = {path.name: path.stat() for path in place.iterdir()}

    settle(new, place, how, keep_times=keep_times)
    after = {path.name: path.stat() for path in place.iterdir()}
    assert not new.exists()
    assert {path.name: path.read_text() for path in place.iterdir()} == {
        "a": "a",
        "b": "bnew",
        "d": "d",
    }
    assert (after["b"].st_ino == before["b"].st_ino) == (how == "in place")
    assert (after["a"].st_ino == before["a"].st_ino) == (how != "swapped")
    assert not keep_times or after["b"].st_mtime_ns == before["b"].st_mtime_ns
