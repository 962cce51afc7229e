from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from imagenet_prep.storage.new_file import new_file, sync
from tests.kit.faults import failing


def test_a_new_file_is_synced_whole_by_who_wrote_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_size))
    with new_file(tmp_path / "new") as file:
        file.write(b"some")
        file.write(b"thing")
        descriptor = file.fileno()

        assert os.readlink(f"/proc/self/fd/{descriptor}") == str(tmp_path / "new")
        assert synced == []
    assert synced == [9]


def test_a_disk_that_fails_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", failing(errno.EIO))

    with pytest.raises(OSError, match="Input/output error"), new_file(tmp_path / "new") as file:
        file.write(b"something")


def test_no_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "there").write_bytes(b"mine")

    with pytest.raises(FileExistsError), new_file(tmp_path / "there"):
        pass
    assert (tmp_path / "there").read_bytes() == b"mine"


def test_what_a_library_has_written_is_synced_with_its_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model" / "variables").mkdir(parents=True)
    (tmp_path / "model" / "variables" / "data").write_bytes(b"weights")
    (tmp_path / "model" / "nowhere").symlink_to("absent")
    os.mkfifo(tmp_path / "model" / "pipe")
    synced = []
    monkeypatch.setattr(
        os, "fsync", lambda descriptor: synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    )
    sync(tmp_path / "model")

    inside = ("", "/model", "/model/variables", "/model/variables/data")
    assert sorted(synced) == [f"{tmp_path}{name}" for name in inside]
