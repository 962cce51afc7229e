"""The states of a disk after a loss of power."""

from __future__ import annotations

import random
from pathlib import Path

from tests.campaign.calls import Change, Entry
from tests.campaign.lost_power import Disk, last_states


def disk_after(tmp_path: Path, *changes: tuple[Change, str, str, bytes]) -> list[dict[str, bytes]]:
    """Returns the files, by name, that each state at the end of some changes of one file has."""
    entries = [
        Entry(change, 7, 0, 0, str(tmp_path / name), str(tmp_path / other), data)
        for change, name, other, data in changes
    ]
    found = []
    disk = Disk(tmp_path)
    for entry in entries:
        disk.goes_on(entry)
    for state in last_states(disk, random.Random(0)):
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
