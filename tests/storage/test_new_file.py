from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from imagenet_prep.core.errors import IncompleteError, StoreError
from imagenet_prep.storage.local_file import FolderSync, complete_file, new_file, sync
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


def test_errors_of_the_system_are_errors_of_this_program(tmp_path: Path, system: System) -> None:
    with pytest.raises(StoreError, match="No such file"), complete_file(tmp_path / "no/file", None):
        pass
    system.fails("fsync", errno.ENOSPC)
    with pytest.raises(IncompleteError), complete_file(tmp_path / "page.html", None):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("code", [0, errno.EIO, errno.ENOSPC])
def test_a_folder_that_the_disk_could_not_write_is_an_error(
    tmp_path: Path, system: System, code: int
) -> None:
    synced = []
    descriptors = []

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
