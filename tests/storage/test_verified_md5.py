"""A proven md5 is believed of the very file that was proven, and of no other."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.storage.ledger import MOST_ARCHIVES, NOTES, Ledger, verified_md5
from tests.kit.system import System

MD5 = "0123456789abcdef0123456789abcdef"


def note(path: Path, md5: str = MD5) -> None:
    Ledger(LocalStore(path.parent), NOTES, MOST_ARCHIVES).add({path.name: path.stat()}, md5=md5)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """A file whose md5 was noted."""
    path = tmp_path / "from" / "a.tar"
    path.parent.mkdir()
    path.write_bytes(b"content")
    note(path)
    return path


def until_changed(path: Path, change: Callable[[], object]) -> None:
    """Does something until the file system's clock has gone on: it ticks in milliseconds."""
    before = path.stat().st_ctime_ns
    while path.stat().st_ctime_ns == before:
        change()


def test_an_untouched_file_has_the_md5_that_was_noted(archive: Path) -> None:
    assert verified_md5(archive) == MD5
    assert verified_md5(archive.with_name("b.tar")) is None


def test_a_file_that_was_never_proven_is_unknown_and_nothing_is_written(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(b"content")

    assert verified_md5(tmp_path / "a.tar") is None
    assert os.listdir(tmp_path) == ["a.tar"]


def test_the_last_note_counts(archive: Path) -> None:
    note(archive, "f" * 32)

    assert verified_md5(archive) == "f" * 32


@pytest.mark.parametrize("how", ["touched", "written", "truncated", "replaced", "renamed", "gone"])
def test_a_file_that_was_touched_is_unproven_even_if_its_mtime_was_set_back(
    archive: Path, how: str
) -> None:
    before = archive.stat()

    def set_back() -> None:
        os.utime(archive, ns=(before.st_atime_ns, before.st_mtime_ns))

    if how == "gone":
        archive.unlink()
    elif how == "renamed":
        until_changed(archive, lambda: archive.rename(archive.with_name("b")).rename(archive))
    else:
        if how == "written":
            archive.write_bytes(b"CONTENT")
        elif how == "truncated":
            os.truncate(archive, 3)
        elif how == "replaced":
            shutil.copy2(archive, archive.with_name("b"))
            archive.with_name("b").replace(archive)
        until_changed(archive, set_back) if how != "replaced" else set_back()

    assert how == "gone" or archive.stat().st_mtime_ns == before.st_mtime_ns
    assert verified_md5(archive) is None


def test_a_copied_folder_brings_no_proof_along(archive: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(archive.parent, tmp_path / "to")

    assert (copy / NOTES).read_bytes() == (archive.parent / NOTES).read_bytes()
    assert verified_md5(copy / "a.tar") is None


def true_note(archive: Path) -> dict[str, object]:
    (line,) = (archive.parent / NOTES).read_text().splitlines()
    found: dict[str, object] = json.loads(line)
    return found


@pytest.mark.parametrize("key", ["num_bytes", "mtime_ns", "ctime_ns", "inode", "md5"])
@pytest.mark.parametrize("value", [None, True, 1.0, -1, 1 << 80, "1", [1], {}, "g" * 32, "0" * 33])
def test_a_note_with_a_hostile_value_counts_for_nothing(
    archive: Path, key: str, value: object
) -> None:
    hostile = {**true_note(archive), key: value}
    (archive.parent / NOTES).write_text(json.dumps(hostile) + "\n")

    assert verified_md5(archive) is None


@pytest.mark.parametrize("key", ["num_bytes", "mtime_ns", "ctime_ns", "inode"])
def test_a_note_of_the_right_number_in_another_type_counts_for_nothing(
    archive: Path, key: str
) -> None:
    note = true_note(archive)
    (archive.parent / NOTES).write_text(json.dumps({**note, key: str(note[key])}) + "\n")

    assert verified_md5(archive) is None


@pytest.mark.parametrize(
    "content", [b"", b"\xff\xfe\n", b"{\n", b"[1]\n", b"null\n", b"[" * 60_000 + b"\n", b"{}"]
)
def test_a_damaged_note_counts_for_nothing(archive: Path, content: bytes) -> None:
    (archive.parent / NOTES).write_bytes(content)

    assert verified_md5(archive) is None


def test_a_note_that_was_cut_off_is_no_obstacle_to_the_next(archive: Path) -> None:
    notes = archive.parent / NOTES
    notes.write_bytes(notes.read_bytes()[:-20])
    assert verified_md5(archive) is None

    note(archive)
    assert verified_md5(archive) == MD5


@pytest.mark.parametrize("what", ["notes", "folder"])
def test_no_link_is_followed_neither_to_read_nor_to_write(
    archive: Path, tmp_path: Path, what: str
) -> None:
    linked = archive.parent / (NOTES if what == "notes" else ".work")
    elsewhere = tmp_path / "elsewhere"
    linked.rename(elsewhere)
    linked.symlink_to(elsewhere)
    notes = elsewhere if what == "notes" else elsewhere / "proven.jsonl"
    content = notes.read_bytes()

    assert verified_md5(archive) is None
    note(archive)
    assert elsewhere.is_dir() == (what == "folder")
    assert notes.read_bytes() == content
    assert verified_md5(archive) == (MD5 if what == "notes" else None)


def test_a_pipe_in_the_place_of_notes_is_not_waited_for(archive: Path) -> None:
    notes = archive.parent / NOTES
    notes.unlink()
    os.mkfifo(notes)

    assert verified_md5(archive) is None
    note(archive)
    assert verified_md5(archive) == MD5


def test_notes_that_others_may_write_count_for_nothing(archive: Path) -> None:
    (archive.parent / NOTES).chmod(0o664)

    assert verified_md5(archive) is None
    note(archive)
    assert verified_md5(archive) == MD5


def test_notes_of_another_user_count_for_nothing(archive: Path, system: System) -> None:
    if os.getuid() == 0:  # notes of root count for everyone
        os.chown(archive.parent / NOTES, 4242, -1)
    else:
        system.instead("geteuid", lambda real: real() + 4242)

    assert verified_md5(archive) is None


def test_notes_of_a_size_that_this_program_never_writes_are_replaced(archive: Path) -> None:
    notes = archive.parent / NOTES
    with open(notes, "ab") as file:
        file.truncate(1 << 40)

    assert verified_md5(archive) is None
    note(archive)
    assert verified_md5(archive) == MD5
    assert notes.stat().st_size < 1000
