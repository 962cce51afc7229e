from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from imagenet_prep.core.errors import IncompleteError, StoreError, UsageError
from imagenet_prep.storage.new_file import FolderSync, complete_file, new_file, sync
from tests.kit.system import System


def test_a_new_file_is_synced_whole_by_who_wrote_it(tmp_path: Path, system: System) -> None:
    synced = []
    system.instead("fsync", lambda _, descriptor: synced.append(os.fstat(descriptor).st_size))
    with new_file(tmp_path / "new") as file:
        file.write(b"some")
        file.write(b"thing")
        descriptor = file.fileno()

        assert os.readlink(f"/proc/self/fd/{descriptor}") == str(tmp_path / "new")
        assert synced == []
    assert synced == [9]


def test_a_disk_that_fails_is_told(tmp_path: Path, system: System) -> None:
    system.fails("fsync", errno.EIO)

    with pytest.raises(OSError, match="Input/output error"), new_file(tmp_path / "new") as file:
        file.write(b"something")


def test_no_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "there").write_bytes(b"mine")

    with pytest.raises(FileExistsError), new_file(tmp_path / "there"):
        pass
    assert (tmp_path / "there").read_bytes() == b"mine"


def test_what_a_library_has_written_is_synced_with_its_folders(
    tmp_path: Path, system: System
) -> None:
    (tmp_path / "model" / "variables").mkdir(parents=True)
    (tmp_path / "model" / "variables" / "data").write_bytes(b"weights")
    (tmp_path / "model" / "nowhere").symlink_to("absent")
    os.mkfifo(tmp_path / "model" / "pipe")
    synced = system.noted("fsync", below=tmp_path)
    sync(tmp_path / "model")

    inside = (".", "model", "model/variables", "model/variables/data")
    assert sorted(synced) == [f"fsync {name}" for name in inside]


def test_a_complete_file_replaces_an_older_one_or_a_link_when_it_is_left(tmp_path: Path) -> None:
    page, mine = tmp_path / "page.html", tmp_path / "mine"
    page.write_bytes(b"older")
    mine.write_bytes(b"my own")
    (tmp_path / "link").symlink_to(mine)

    for name in ("page.html", "link"):
        with complete_file(tmp_path / name) as file:
            file.write(b"new")
            file.flush()
            assert page.read_bytes() in (b"older", b"new")
            assert (tmp_path / name).read_bytes() in (b"older", b"my own")
        assert (tmp_path / name).read_bytes() == b"new"
    assert mine.read_bytes() == b"my own"
    assert not (tmp_path / "link").is_symlink()
    assert len(list(tmp_path.iterdir())) == 3


def test_what_fails_or_is_interrupted_leaves_the_older_file_alone(
    tmp_path: Path, system: System
) -> None:
    page = tmp_path / "page.html"
    page.write_bytes(b"older")
    with pytest.raises(KeyboardInterrupt), complete_file(page) as file:
        file.write(b"new")
        raise KeyboardInterrupt
    system.fails("fsync", errno.ENOSPC)
    with pytest.raises(IncompleteError), complete_file(page) as file:
        file.write(b"new")

    assert page.read_bytes() == b"older"
    assert list(tmp_path.iterdir()) == [page]


def test_files_of_killed_runs_are_removed_and_those_in_work_are_not(tmp_path: Path) -> None:
    page, left = tmp_path / "page.html", tmp_path / ".page.html.0.partial"
    left.write_bytes(b"of a killed run")
    pipe = tmp_path / ".page.html.1.partial"
    os.mkfifo(pipe)
    with complete_file(page) as first:
        first.write(b"first")
        assert not left.exists()
        with complete_file(page) as second:
            second.write(b"second")
        assert page.read_bytes() == b"second"

    assert page.read_bytes() == b"first"
    assert sorted(tmp_path.iterdir()) == [pipe, page]


def test_a_file_that_waits_for_its_name_is_not_removed(tmp_path: Path, system: System) -> None:
    page = tmp_path / "page.html"

    def meanwhile() -> None:
        with complete_file(page) as other:
            other.write(b"other")
        assert page.read_bytes() == b"other"

    system.before("replace", meanwhile)
    with complete_file(page) as file:
        file.write(b"new")

    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"new"]


def test_a_file_that_another_run_has_just_removed_is_made_again(
    tmp_path: Path, system: System
) -> None:
    lost = []

    def another_run_removes_it() -> None:
        lost.extend(tmp_path.iterdir())
        lost[0].unlink()

    system.before("flock", another_run_removes_it)
    with complete_file(tmp_path / "page.html") as file:
        file.write(b"new")

    assert len(lost) == 1
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"new"]


def test_a_disk_that_locks_nothing_takes_files_too(tmp_path: Path, system: System) -> None:
    system.fails("flock", errno.ENOLCK)
    with complete_file(tmp_path / "page.html") as file:
        file.write(b"new")

    assert (tmp_path / "page.html").read_bytes() == b"new"


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_no_folder_and_no_pipe_is_replaced(tmp_path: Path, make: object) -> None:
    assert callable(make)
    make(tmp_path / "there")

    for name, kind in (("there", UsageError), ("no/file", StoreError)):
        with pytest.raises(kind), complete_file(tmp_path / name):
            pass


@pytest.mark.parametrize("code", [0, errno.EIO, errno.ENOSPC])
def test_a_folder_that_the_disk_could_not_write_is_an_error(
    tmp_path: Path, system: System, code: int
) -> None:
    synced, descriptors = [], []

    def syncfs(descriptor: int) -> int:
        descriptors.append(descriptor)
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        return code

    system.syncs_file_systems(syncfs)
    settle = FolderSync(tmp_path)
    if code:
        with pytest.raises(OSError, match=os.strerror(code)) as failed:
            settle()
        assert (failed.value.errno, failed.value.filename) == (code, str(tmp_path))
    else:
        settle()
    assert synced == [str(tmp_path)]
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptors[0])
