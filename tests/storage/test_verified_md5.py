"""Verified md5s: trusted only for the unchanged file that was verified."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.storage.ledger import MOST_ARCHIVES, NOTES, Ledger, verified_md5
from tests.kit.system import System
from tests.kit.ticks import until_changed

MD5 = "0123456789abcdef0123456789abcdef"


def note(path: Path, md5: str = MD5) -> None:
    Ledger(LocalStore(path.parent), NOTES, MOST_ARCHIVES).add({path.name: path.stat()}, md5=md5)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """A file with a recorded md5."""
    path = tmp_path / "from" / "a.tar"
    path.parent.mkdir()
    path.write_bytes(b"content")
    note(path)
    return path


def test_untouched_file_has_its_recorded_md5(archive: Path) -> None:
    assert verified_md5(archive) == MD5
    assert verified_md5(archive.with_name("b.tar")) is None


def test_unverified_file_is_unknown_and_nothing_is_written(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(b"content")

    assert verified_md5(tmp_path / "a.tar") is None
    assert os.listdir(tmp_path) == ["a.tar"]


def test_last_record_replaces_earlier_ones(archive: Path) -> None:
    note(archive, "f" * 32)

    assert verified_md5(archive) == "f" * 32


@pytest.mark.parametrize("how", ["touched", "written", "truncated", "replaced", "renamed", "gone"])
def test_touched_file_is_unverified_despite_its_old_mtime(archive: Path, how: str) -> None:
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


def test_copied_folder_loses_its_verified_md5(archive: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(archive.parent, tmp_path / "to")

    assert (copy / NOTES).read_bytes() == (archive.parent / NOTES).read_bytes()
    assert verified_md5(copy / "a.tar") is None


def true_note(archive: Path) -> dict[str, object]:
    (line,) = (archive.parent / NOTES).read_text().splitlines()
    found: dict[str, object] = json.loads(line)
    return found


@pytest.mark.parametrize("key", ["num_bytes", "mtime_ns", "ctime_ns", "inode", "md5"])
@pytest.mark.parametrize("value", [None, True, 1.0, -1, 1 << 80, "1", [1], {}, "g" * 32, "0" * 33])
def test_record_with_a_hostile_value_is_ignored(archive: Path, key: str, value: object) -> None:
    hostile = {**true_note(archive), key: value}
    (archive.parent / NOTES).write_text(json.dumps(hostile) + "\n")

    assert verified_md5(archive) is None


@pytest.mark.parametrize("key", ["num_bytes", "mtime_ns", "ctime_ns", "inode"])
def test_record_with_a_number_as_text_is_ignored(archive: Path, key: str) -> None:
    note = true_note(archive)
    (archive.parent / NOTES).write_text(json.dumps({**note, key: str(note[key])}) + "\n")

    assert verified_md5(archive) is None


@pytest.mark.parametrize(
    "content", [b"", b"\xff\xfe\n", b"{\n", b"[1]\n", b"null\n", b"[" * 60_000 + b"\n", b"{}"]
)
def test_damaged_record_is_ignored(archive: Path, content: bytes) -> None:
    (archive.parent / NOTES).write_bytes(content)

    assert verified_md5(archive) is None


def test_truncated_record_does_not_affect_the_next(archive: Path) -> None:
    notes = archive.parent / NOTES
    notes.write_bytes(notes.read_bytes()[:-20])
    assert verified_md5(archive) is None

    note(archive)
    assert verified_md5(archive) == MD5


@pytest.mark.parametrize("what", ["notes", "folder"])
def test_links_are_followed_neither_for_reading_nor_writing(
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


def test_pipe_in_place_of_the_records_is_ignored(archive: Path) -> None:
    notes = archive.parent / NOTES
    notes.unlink()
    os.mkfifo(notes)

    assert verified_md5(archive) is None
    note(archive)
    assert verified_md5(archive) == MD5


def test_records_writable_by_others_are_ignored(archive: Path) -> None:
    (archive.parent / NOTES).chmod(0o664)

    assert verified_md5(archive) is None
    note(archive)
    assert verified_md5(archive) == MD5


def test_records_of_a_different_user_are_ignored(archive: Path, system: System) -> None:
    if os.getuid() == 0:  # everyone trusts records of root
        os.chown(archive.parent / NOTES, 4242, -1)
    else:
        system.instead("geteuid", lambda real: real() + 4242)

    assert verified_md5(archive) is None


def test_records_of_impossible_size_are_replaced(archive: Path) -> None:
    notes = archive.parent / NOTES
    with open(notes, "ab") as file:
        file.truncate(1 << 40)

    assert verified_md5(archive) is None
    note(archive)
    assert verified_md5(archive) == MD5
    assert notes.stat().st_size < 1000
