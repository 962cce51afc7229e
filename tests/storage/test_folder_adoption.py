"""Files that a folder adopts from a different one: hard links, symbolic links, and refusals."""

from __future__ import annotations

import errno
import hashlib
from pathlib import Path

import pytest

from imagenet_prep.core.errors import (
    DataDamagedError,
    IncompleteError,
    UsageError,
)
from imagenet_prep.dataset.manifest import DatasetFile
from imagenet_prep.storage.folder import TEMPORARY, LocalStore
from imagenet_prep.storage.remote import Stat
from tests.kit.messages import says
from tests.kit.system import System


@pytest.fixture
def two_files(tmp_path: Path) -> tuple[LocalStore, list[DatasetFile]]:
    """A folder with a file, and a subfolder with a file."""
    root = tmp_path / "there"
    (root / "index").mkdir(parents=True)
    files = []
    for name, data in (("a", b"one"), ("index/b", b"three")):
        (root / name).write_bytes(data)
        files.append(DatasetFile(name, len(data), hashlib.sha256(data).hexdigest()))
    return LocalStore(root), files


def test_files_of_a_different_folder_are_hard_linked(
    two_files: tuple[LocalStore, list[DatasetFile]], tmp_path: Path
) -> None:
    there, files = two_files
    here = LocalStore(tmp_path / "here")
    for _ in range(2):  # the second time changes nothing
        here.adopt_files(there, files)
        for file in files:
            assert here.path(file.name).samefile(there.path(file.name))
            assert here.path(file.name).stat().st_nlink == 2
    # An existing file of that name is replaced, and never written into.
    here.path("a").unlink()
    here.path("a").write_bytes(b"two")
    here.adopt_files(there, files)
    assert here.path("a").samefile(there.path("a"))
    assert there.read("a") == b"one"


def test_adopted_files_and_links_are_synced(
    two_files: tuple[LocalStore, list[DatasetFile]], tmp_path: Path, system: System
) -> None:
    """A different program may have just copied a file there without a sync."""
    there, files = two_files
    here = LocalStore(tmp_path / "here")
    for folder in ("index", TEMPORARY):
        here.make_folder(folder)
    events = system.noted("fsync", "link", "replace", below=tmp_path)
    here.adopt_files(there, files)

    assert events == [
        "fsync there/a",
        "link there/a",
        "replace here/a",
        "fsync here",
        "fsync there/index/b",
        "link there/index/b",
        "replace here/index/b",
        "fsync here/index",
    ]


def test_symbolic_links_are_followed_and_not_linked(
    two_files: tuple[LocalStore, list[DatasetFile]], tmp_path: Path
) -> None:
    there, files = two_files
    for file in files:
        there.path(file.name).rename(real := tmp_path / file.name.replace("/", "-"))
        there.path(file.name).symlink_to(real)
    here = LocalStore(tmp_path / "here")
    for _ in range(2):  # the second time, the files exist
        here.adopt_files(there, files)
        for file in files:
            assert not here.path(file.name).is_symlink()
            assert here.path(file.name).samefile(there.path(file.name))
            here.path(file.name).unlink()
            here.path(file.name).write_bytes(b"two")


@pytest.mark.parametrize("damage", ["missing", "replaced", "replaced meanwhile"])
def test_file_changed_since_listing_is_not_adopted(
    two_files: tuple[LocalStore, list[DatasetFile]],
    tmp_path: Path,
    system: System,
    damage: str,
) -> None:
    there, files = two_files
    stats = {file.name: Stat.of(there.path(file.name).stat()) for file in files}

    def replace() -> None:
        there.path("a").unlink()
        if damage != "missing":
            there.path("a").write_bytes(b"two")

    if damage == "replaced meanwhile":
        system.before("link", replace)
    else:
        replace()
    here = LocalStore(tmp_path / "here")
    with pytest.raises(IncompleteError, match=says("changed-since-run-began-run", "a")):
        here.adopt_files(there, files, stats)
    assert not here.path("a").exists()
    assert not here.names(".work/temporary")


@pytest.mark.parametrize("damage", ["missing", "cut", "folder"])
def test_file_of_a_different_size_is_not_adopted(
    two_files: tuple[LocalStore, list[DatasetFile]], tmp_path: Path, damage: str
) -> None:
    there, files = two_files
    there.path("a").unlink()
    if damage == "cut":
        there.path("a").write_bytes(b"on")
    elif damage == "folder":
        there.path("a").mkdir()
    with pytest.raises(DataDamagedError, match="Run verify"):
        LocalStore(tmp_path / "here").adopt_files(there, files)
    assert not (tmp_path / "here" / "a").exists()


@pytest.mark.parametrize("code", [errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK])
def test_file_system_without_links_is_refused(
    two_files: tuple[LocalStore, list[DatasetFile]],
    tmp_path: Path,
    system: System,
    code: int,
) -> None:
    there, files = two_files
    system.fails("link", code)
    with pytest.raises(UsageError, match=says("cannot-create-hard-link-choose")):
        LocalStore(tmp_path / "here").adopt_files(there, files)
