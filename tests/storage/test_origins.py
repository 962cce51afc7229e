"""Where a source lies is believed of the user's own notes alone."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from imagenet_prep.core.errors import UsageError
from imagenet_prep.dataset import schema
from imagenet_prep.storage.ledger import SourceLocation, find_source, note_source
from tests.kit.system import System

DIGEST = "0a" * 32
ORIGIN = SourceLocation("/in", {"a.tar": "/elsewhere/a.tar"})


@pytest.fixture
def noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a note."""
    monkeypatch.setenv(schema.CACHE, str(tmp_path / "cache"))
    before = os.umask(0)
    try:
        note_source(DIGEST, ORIGIN)
    finally:
        os.umask(before)
    (note,) = (tmp_path / "cache" / "origins").iterdir()
    return note


def test_a_note_is_found_again_of_its_own_set_alone(noted: Path) -> None:
    assert find_source(DIGEST) == ORIGIN
    assert find_source("0b" * 32) is None


def test_the_last_note_counts(noted: Path) -> None:
    note_source(DIGEST, SourceLocation("/moved", {}))

    assert find_source(DIGEST) == SourceLocation("/moved", {})


def test_a_note_of_another_set_does_not_count_under_this_name(noted: Path) -> None:
    shutil.copy(noted, noted.with_name(f"{'0b' * 32}.json"))

    assert find_source("0b" * 32) is None


@pytest.mark.parametrize("how", ["written by all", "link", "pipe", "junk", "deep", "huge", "list"])
def test_what_another_user_may_have_left_there_is_no_note(noted: Path, how: str) -> None:
    if how == "written by all":
        noted.chmod(0o666)
    elif how == "huge":
        os.truncate(noted, 1 << 40)
    elif how in ("junk", "deep", "list"):
        noted.write_bytes({"junk": b"\xff{", "deep": b"[" * 100_000, "list": b"[]"}[how])
    else:
        noted.rename(noted.with_name("kept"))
        if how == "link":
            noted.symlink_to("kept")
        else:
            os.mkfifo(noted)

    assert find_source(DIGEST) is None


@pytest.mark.root
def test_a_note_that_belongs_to_another_user_does_not_count(noted: Path) -> None:
    if os.geteuid():
        pytest.skip("needs root, to give a file away")
    os.chown(noted, 12345, 12345)

    assert find_source(DIGEST) is None


def test_where_nothing_can_be_noted_nothing_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv(schema.CACHE, str(tmp_path / "file"))
    note_source(DIGEST, ORIGIN)

    assert find_source(DIGEST) is None


def test_a_user_without_a_home_folder_has_no_notes(system: System) -> None:
    """The note is optional: it must not end a run whose dataset is already finished."""
    system.has_no_home()
    note_source(DIGEST, ORIGIN)

    assert find_source(DIGEST) is None


def test_the_cache_folder_of_a_user_without_a_home_folder(
    system: System, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    system.has_no_home()
    with pytest.raises(UsageError, match=r"no home folder.* Set HOME, or IMAGENET_PREP_CACHE"):
        schema.cache_folder()
    monkeypatch.setenv(schema.CACHE, str(tmp_path))
    assert schema.cache_folder() == tmp_path
    monkeypatch.delenv(schema.CACHE)
    monkeypatch.setenv("HOME", "/home/any")
    assert schema.cache_folder() == Path("/home/any/.cache/imagenet-prep")
    assert schema.expanded("~/wheels") == Path("/home/any/wheels")
