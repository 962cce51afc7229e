"""Locations of sources: only the user's own records are trusted."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from imagenet_prep.core.errors import UsageError
from imagenet_prep.dataset import schema
from imagenet_prep.storage.ledger import SourceLocation, find_source, note_source
from tests.kit.messages import says
from tests.kit.system import System

DIGEST = "0a" * 32
ORIGIN = SourceLocation("/in", {"a.tar": "/elsewhere/a.tar"})


@pytest.fixture
def noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a record."""
    monkeypatch.setenv(schema.CACHE, str(tmp_path / "cache"))
    before = os.umask(0)
    try:
        note_source(DIGEST, ORIGIN)
    finally:
        os.umask(before)
    (note,) = (tmp_path / "cache" / "origins").iterdir()
    return note


def test_location_is_found_for_its_dataset_only(noted: Path) -> None:
    assert find_source(DIGEST) == ORIGIN
    assert find_source("0b" * 32) is None


def test_last_location_replaces_earlier_ones(noted: Path) -> None:
    note_source(DIGEST, SourceLocation("/moved", {}))

    assert find_source(DIGEST) == SourceLocation("/moved", {})


def test_record_of_a_different_dataset_is_ignored(noted: Path) -> None:
    shutil.copy(noted, noted.with_name(f"{'0b' * 32}.json"))

    assert find_source("0b" * 32) is None


@pytest.mark.parametrize("how", ["written by all", "link", "pipe", "junk", "deep", "huge", "list"])
def test_record_writable_by_others_or_damaged_is_ignored(noted: Path, how: str) -> None:
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
def test_record_of_a_different_user_is_ignored(noted: Path) -> None:
    if os.geteuid():
        pytest.skip("needs root, to give a file away")
    os.chown(noted, 12345, 12345)

    assert find_source(DIGEST) is None


def test_failure_to_record_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv(schema.CACHE, str(tmp_path / "file"))
    note_source(DIGEST, ORIGIN)

    assert find_source(DIGEST) is None


def test_user_without_a_home_folder_has_no_records(system: System) -> None:
    """The record is optional: it must not end a run if the dataset is already finished."""
    system.has_no_home()
    note_source(DIGEST, ORIGIN)

    assert find_source(DIGEST) is None


def test_cache_folder_without_home_needs_a_variable(
    system: System, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    system.has_no_home()
    with pytest.raises(
        UsageError, match=says("user-id-no-home-folder", ..., ..., "IMAGENET_PREP_CACHE")
    ):
        schema.cache_folder()
    monkeypatch.setenv(schema.CACHE, str(tmp_path))
    assert schema.cache_folder() == tmp_path
    monkeypatch.setenv(schema.CACHE, "")
    monkeypatch.setenv("HOME", "/home/any")
    assert schema.cache_folder() == Path("/home/any/.cache/imagenet-prep")
    assert schema.expanded("~/wheels") == Path("/home/any/wheels")
