"""Mutated files of all kinds, for all verbs; and planted flaws are detected."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hostile.mutations import __main__ as mutations
from tests.hostile.mutations import case_runner, changes, formats
from tests.hostile.mutations.case_runner import CaseRunner, Combination, Watched, combination, pairs
from tests.hostile.mutations.scenes import SCENES
from tests.hostile.mutations.stage import Scene, Stage, Verb
from tests.kit.miniature import Miniature
from tests.kit.tfrecords import picture, plain, write_dataset

# In `make test` most verbs get some kinds of files, each with one mutation.
QUICK = [name for name, scene in SCENES.items() if not scene.needs]
CASES = 24


def test_mutated_file_ends_in_a_sentence() -> None:
    totals = mutations.run(11, range(CASES), 1, QUICK)

    assert totals.violations == [], mutations.table(totals)


@pytest.mark.long
@pytest.mark.tf
@pytest.mark.timeout(7200)
def test_thousands_of_mutated_files_end_in_a_sentence() -> None:
    totals = mutations.run(12, range(4_000), 1)

    assert totals.violations == [], mutations.table(totals)


def test_case_numbers_reach_all_mutations_kinds_and_verbs() -> None:
    among = pairs()[::9]  # of each scene
    turns = len(changes.MUTATIONS)
    met = {combination(3, number, among) for number in range(turns * len(among))}

    pairs_and_mutations = itertools.product(among, changes.MUTATIONS)
    assert met == {Combination(*pair, mutation) for pair, mutation in pairs_and_mutations}
    # The first cases have each kind with each verb.
    first = [combination(3, number, among)[:3] for number in range(len(among))]
    assert sorted(first) == sorted(among)
    assert combination(3, 77, among) == combination(3, 77, among) != combination(4, 77, among)


def test_split_and_joined_containers_are_equal(tmp_path: Path, tiny: Miniature) -> None:
    """Otherwise a hostile part would be refused because of its container."""
    write_dataset(tmp_path / "set", {"train": [[picture(0, plain(0))]]}, num_classes=1)
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


def _make_file(stage: Stage) -> None:
    (stage.arena.given / "file").write_bytes(b"1\n" * 100)


PLANTED = Scene(
    _make_file,
    {"file": "file"},
    {"read": Verb(("read", "file", "left"), call="tests.hostile.planted:read")},
)


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory, tiny: Miniature) -> Iterator[CaseRunner]:
    """A runner with a verb that trusts all input."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SCENES, "planted", PLANTED)
        patch.setattr(Watched, "patience_s", 0.0)
        patch.setattr(case_runner, "_MOST_BYTES", 1200 << 20)
        patch.setattr(case_runner, "_ASLEEP_S", 2.0)
        with case_runner.case_runner(tmp_path_factory.mktemp("cases"), tiny) as made:
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
def test_planted_flaw_is_a_violation(planted: CaseRunner, mutation: str, violation: str) -> None:
    outcome = planted.case(Combination("planted", "read", "file", mutation), random.Random(1))

    assert re.search(violation, outcome.violation), outcome
