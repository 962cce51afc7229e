"""Only regular files are read, and never more than their bound."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import pytest

from imagenet_prep.core import small_files
from imagenet_prep.core.errors import DataDamagedError
from tests.kit.system import System


def test_a_small_file_is_read_whole_also_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to("file")
    assert small_files.read(tmp_path / "link", most=7) == b"content"


def test_a_byte_too_many_is_refused_with_both_numbers(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    with pytest.raises(DataDamagedError, match="has 7 bytes, expected at most 6"):
        small_files.read(tmp_path / "file", most=6)


def test_a_sparse_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "sparse").touch()
    os.truncate(tmp_path / "sparse", 8 << 40)
    with pytest.raises(DataDamagedError, match=re.escape(f"has {8 << 40:,} bytes")):
        small_files.read(tmp_path / "sparse")


def test_a_file_whose_size_the_system_does_not_tell_is_bounded_all_the_same() -> None:
    with pytest.raises(DataDamagedError, match="expected at most 2"):
        small_files.read(Path("/proc/self/stat"), most=2)


def test_pipes_and_devices_are_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(
            DataDamagedError, match=f"{path}: is a (named pipe|device|socket), not a file"
        ):
            small_files.read(path)


def test_what_is_absent_or_a_folder_is_the_systems_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        small_files.read(tmp_path / "absent")
    with pytest.raises(IsADirectoryError):
        small_files.read(tmp_path)


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE, errno.EACCES, errno.ENOMEM])
def test_a_link_whose_target_cannot_be_read_is_not_called_broken(
    tmp_path: Path, system: System, code: int
) -> None:
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "link").symlink_to("file")
    system.fails("stat", code)

    small_files.refuse_other_kinds(tmp_path / "link")
