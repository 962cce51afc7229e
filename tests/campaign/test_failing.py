"""Some calls of each verb fail, and the power is lost at some moments of it; both are noticed."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.campaign import failing, power
from tests.campaign.calls import Change, Entry
from tests.campaign.lost_power import Disk, states
from tests.campaign.scenes import SCENES, Theatre

# The tests that are marked `long` go through all scenes.
FEW = ("prepare", "resume", "download", "replicate", "repair", "adopt", "adopt --out")


@pytest.mark.parametrize("scene", FEW)
def test_a_call_that_fails_is_told_and_mended_by_the_next_run(theatre: Theatre, scene: str) -> None:
    cases = failing.sample(theatre, scene, 1, seed=29)
    outcomes = {str(case): failing.attempt(theatre, case) for case in cases}

    assert [f"{case}: {found[1]}" for case, found in outcomes.items() if found and found[1]] == []
    # Threads that wait for each other may look less often than when calls were counted.
    assert sum(found is not None for found in outcomes.values()) > 0


@pytest.mark.parametrize("scene", [*FEW, "resize", "amend", "export --to folder"])
def test_lost_power_loses_nothing_that_was_committed(theatre: Theatre, scene: str) -> None:
    # In the middle, and at the end.
    total = power.lose_power(theatre, scene, 2, seed=29)

    assert total.violations == []
    assert total.states >= 2


@pytest.mark.parametrize("scene", FEW)
def test_lost_power_after_a_kill_and_a_whole_run_loses_nothing(
    theatre: Theatre, scene: str
) -> None:
    total = power.lose_power_later(theatre, scene, 1, seed=29)

    assert total.violations == []
    assert total.states


def test_a_signal_does_not_end_the_making_of_a_sparse_file(theatre: Theatre) -> None:
    case = failing.Case("download", "ftruncate", "EINTR", 2)

    assert failing.attempt(theatre, case) == (0, "")


def test_a_program_that_syncs_nothing_is_found(theatre: Theatre) -> None:
    total = power.lose_power(theatre, "replicate", 8, seed=29, careless=True)

    assert any("other bytes" in violation for violation in total.violations)


def test_a_run_that_ends_well_with_other_bytes_is_found(theatre: Theatre) -> None:
    scene = theatre.scene("replicate")
    whole = scene.after["labels.txt"]
    scene.after["labels.txt"] = b"other"
    try:
        # An interrupted call fails nothing: the run ends with 0.
        outcome = failing.attempt(theatre, failing.Case("replicate", "write", "EINTR", 1))
    finally:
        scene.after["labels.txt"] = whole

    assert outcome == (0, "other bytes, or missing: ['labels.txt']")


def disk_after(tmp_path: Path, *changes: tuple[Change, str, str, bytes]) -> list[dict[str, bytes]]:
    """Returns the files, by name, that each state at the end of some changes of one file has."""
    entries = [
        Entry(change, 7, 0, 0, str(tmp_path / name), str(tmp_path / other), data)
        for change, name, other, data in changes
    ]
    found = []
    for _, state in states(Disk(tmp_path), entries, random.Random(0), {len(entries)}):
        names = {Path(name).name: file for name, file in state.files.items()}
        found.append({name: state.contents[id(file)] for name, file in names.items()})
    return found


CREATED = (Change.CREATED, "new", "", b"")
WRITTEN = (Change.WRITTEN, "", "", b"x" * 5000)
SYNCED = (Change.SYNCED, "", "", b"")
NAMED = (Change.RENAMED, "new", "file", b"")
FOLDER_SYNCED = (Change.FOLDER_SYNCED, "", "", b"")


def test_a_file_that_was_synced_and_named_durably_is_there_in_every_state(tmp_path: Path) -> None:
    found = disk_after(tmp_path, CREATED, WRITTEN, SYNCED, NAMED, FOLDER_SYNCED)

    assert found == [{"file": b"x" * 5000}]


def test_a_name_that_no_sync_of_its_folder_has_covered_may_be_gone(tmp_path: Path) -> None:
    found = disk_after(tmp_path, CREATED, WRITTEN, SYNCED, FOLDER_SYNCED, NAMED)
    names = {tuple(sorted(state)) for state in found}

    assert names == {("new",), ("file",), ("file", "new")}
    assert {data for state in found for data in state.values()} == {b"x" * 5000}


def test_bytes_that_no_sync_has_covered_may_be_gone_or_zeros(tmp_path: Path) -> None:
    found = disk_after(tmp_path, CREATED, WRITTEN, NAMED, FOLDER_SYNCED)
    contents = {state["file"] for state in found}

    assert {b"", bytes(5000), b"x" * 5000} < contents


def test_what_lay_in_a_folder_that_is_gone_is_gone(tmp_path: Path) -> None:
    made = (Change.FOLDER_MADE, "inner", "", b"")
    within = (Change.CREATED, "inner/new", "", b"")
    found = disk_after(tmp_path, made, within, SYNCED, (Change.FOLDER_SYNCED, "inner", "", b""))

    assert found == [{}, {"new": b""}]


def test_a_folder_that_is_renamed_takes_all_that_is_in_it_along(tmp_path: Path) -> None:
    made = (Change.FOLDER_MADE, "inner", "", b"")
    within = (Change.CREATED, "inner/new", "", b"")
    renamed = (Change.RENAMED, "inner", "outer", b"")
    moved = disk_after(tmp_path, made, within, WRITTEN, (Change.ALL_SYNCED, "", "", b""), renamed)
    synced = disk_after(tmp_path, made, within, WRITTEN, renamed, (Change.ALL_SYNCED, "", "", b""))

    assert synced == [{"new": b"x" * 5000}]
    assert moved == synced * 2  # below either name
    lost = disk_after(tmp_path, made, within, WRITTEN, renamed, FOLDER_SYNCED)
    assert {} in lost
    assert {data for state in lost for data in state.values()} >= {b"", bytes(5000)}


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_every_call_that_fails_is_told_and_mended() -> None:
    totals = failing.run(failing.every(SCENES, failing.ERRORS), jobs=1)

    assert not any(total.violations for total in totals.values()), failing.table(totals)
    assert all(total.runs for total in totals.values())


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_nothing_is_lost_at_any_moment() -> None:
    totals = power.run(SCENES, 0, seed=0, jobs=1)

    assert not any(total.violations for total in totals.values()), power.table(totals)
    assert sum(total.states for total in totals.values()) > 1000


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_nothing_is_lost_at_any_moment_after_a_kill() -> None:
    totals = power.run(SCENES, 0, seed=0, jobs=1, lose=power.lose_power_later)

    assert not any(total.violations for total in totals.values()), power.table(totals)
