"""Files of every kind with something wrong in them, before every verb; and that wrongs are seen."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hostile.mutations import __main__ as mutations
from tests.hostile.mutations import changes, formats, room, scenes
from tests.hostile.mutations.room import Combination, Room, Watched, combination, pairs
from tests.hostile.mutations.scenes import SCENES, Scene, Verb
from tests.kit.miniature import Miniature
from tests.kit.tfrecords import picture, plain, write_set

# In `make test` most verbs meet some kinds of files, each with something wrong.
QUICK = [name for name, scene in SCENES.items() if not scene.needs]
CASES = 24


def test_whatever_is_wrong_with_a_file_a_verb_ends_in_a_sentence() -> None:
    totals = mutations.run(11, range(CASES), 1, QUICK)

    assert totals.violations == [], mutations.table(totals)


@pytest.mark.long
@pytest.mark.tf
@pytest.mark.timeout(7200)
def test_whatever_is_wrong_in_thousands_of_cases_a_verb_ends_in_a_sentence() -> None:
    totals = mutations.run(12, range(4_000), 1)

    assert totals.violations == [], mutations.table(totals)


def test_the_numbers_reach_each_mutation_of_each_kind_before_each_verb() -> None:
    among = pairs()[::9]  # of each scene
    turns = len(changes.MUTATIONS)
    met = {combination(3, number, among) for number in range(turns * len(among))}

    assert met == {Combination(*pair, mutation) for pair in among for mutation in changes.MUTATIONS}
    # The first cases meet each kind before each verb.
    first = [combination(3, number, among)[:3] for number in range(len(among))]
    assert sorted(first) == sorted(among)
    assert combination(3, 77, among) == combination(3, 77, among) != combination(4, 77, among)


def test_what_is_taken_apart_is_put_together_the_same(tmp_path: Path, tiny: Miniature) -> None:
    """Else a part that means harm would be refused for its container."""
    write_set(tmp_path / "set", {"train": [[picture(0, plain(0))]]}, num_classes=1)
    shard = (tmp_path / "set" / "train-00000-of-00001").read_bytes()
    devkit = next(tiny.root.glob("*devkit*")).read_bytes()

    (record,) = formats.parts("tfrecord", shard)
    assert formats.CONTAINERS["tfrecord"].join([record]) == shard
    fields = formats.parts("example", record.data)
    assert formats.CONTAINERS["example"].join(fields) == record.data
    (tar,) = formats.parts("tar.gz", devkit)
    files = formats.parts("tar", tar.data)
    assert any(file.format == "mat" for file in files)
    again = formats.CONTAINERS["tar"].join(files)
    assert formats.parts("tar", again) == files


def _make_file(stage: scenes.Stage) -> None:
    (stage.arena.given / "file").write_bytes(b"1\n" * 100)


PLANTED = Scene(
    _make_file,
    {"file": "file"},
    {"read": Verb(("read", "file", "left"), call="tests.hostile.planted:read")},
)


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory, tiny: Miniature) -> Iterator[Room]:
    """A room with a verb that believes whatever it reads."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SCENES, "planted", PLANTED)
        patch.setattr(Watched, "patience_s", 0.0)
        patch.setattr(room, "_MOST_BYTES", 1200 << 20)
        patch.setattr(room, "_ASLEEP_S", 2.0)
        with room.room(tmp_path_factory.mktemp("room"), tiny) as made:
            yield made


@pytest.mark.parametrize(
    ("mutation", "violation"),
    [
        ("fifo", "waits for something"),
        ("link to a device", "bytes of memory|MemoryError|Traceback"),
        ("link outside", "shows a file of the user's"),
        ("control characters", "goes to the terminal"),
        ("not text", "a traceback"),
        ("nothing", "no name of what is wrong"),
        ("link to itself", "left running"),
        ("empty", "changed outside"),
        ("folder", "what the user's files hold is in"),
    ],
)
def test_a_flaw_that_is_planted_is_a_violation(
    planted: Room, mutation: str, violation: str
) -> None:
    outcome = planted.case(Combination("planted", "read", "file", mutation), random.Random(1))

    assert re.search(violation, outcome.violation), outcome
