"""The states of a disk after a loss of power."""

from __future__ import annotations

import itertools
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


def contents_of(states: list[dict[str, bytes]]) -> set[bytes]:
    """Returns the contents that the file has in any of the states."""
    return set(itertools.chain.from_iterable(state.values() for state in states))


CREATED = (Change.CREATED, "new", "", b"")
WRITTEN = (Change.WRITTEN, "", "", b"x" * 5000)
SYNCED = (Change.SYNCED, "", "", b"")
NAMED = (Change.RENAMED, "new", "file", b"")
FOLDER_SYNCED = (Change.FOLDER_SYNCED, "", "", b"")


def test_synced_file_with_synced_name_always_exists(tmp_path: Path) -> None:
    found = disk_after(tmp_path, CREATED, WRITTEN, SYNCED, NAMED, FOLDER_SYNCED)

    assert found == [{"file": b"x" * 5000}]


def test_unsynced_name_may_be_lost(tmp_path: Path) -> None:
    found = disk_after(tmp_path, CREATED, WRITTEN, SYNCED, FOLDER_SYNCED, NAMED)
    names = {tuple(sorted(state)) for state in found}

    assert names == {("new",), ("file",), ("file", "new")}
    assert contents_of(found) == {b"x" * 5000}


def test_unsynced_bytes_may_be_lost_or_zeros(tmp_path: Path) -> None:
    found = disk_after(tmp_path, CREATED, WRITTEN, NAMED, FOLDER_SYNCED)
    contents = {state["file"] for state in found}

    assert {b"", bytes(5000), b"x" * 5000} < contents


def test_files_of_a_lost_folder_are_lost(tmp_path: Path) -> None:
    made = (Change.FOLDER_MADE, "inner", "", b"")
    within = (Change.CREATED, "inner/new", "", b"")
    found = disk_after(tmp_path, made, within, SYNCED, (Change.FOLDER_SYNCED, "inner", "", b""))

    assert found == [{}, {"new": b""}]


def test_renamed_folder_keeps_its_contents(tmp_path: Path) -> None:
    made = (Change.FOLDER_MADE, "inner", "", b"")
    within = (Change.CREATED, "inner/new", "", b"")
    renamed = (Change.RENAMED, "inner", "outer", b"")
    moved = disk_after(tmp_path, made, within, WRITTEN, (Change.ALL_SYNCED, "", "", b""), renamed)
    synced = disk_after(tmp_path, made, within, WRITTEN, renamed, (Change.ALL_SYNCED, "", "", b""))

    assert synced == [{"new": b"x" * 5000}]
    assert moved == synced * 2  # below either name
    lost = disk_after(tmp_path, made, within, WRITTEN, renamed, FOLDER_SYNCED)
    assert {} in lost
    assert contents_of(lost) >= {b"", bytes(5000)}
