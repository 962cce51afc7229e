"""Disks that fill up or refuse: what is finished is kept, and nothing looks whole that is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.commands.download.conftest import FILES, TRAIN, arguments
from tests.kit import command
from tests.kit.faults import disk, remount
from tests.kit.http_server import serve

ONE = {TRAIN: FILES[TRAIN]}
TRAIN_ONLY = ("--what", "train", "--allow-other")


@pytest.mark.root
def test_a_disk_that_is_too_small_is_refused_before_anything_is_fetched(tmp_path: Path) -> None:
    with disk(tmp_path / "disk", "size=4m"), serve(ONE) as server:
        result = command.run("download", *arguments(tmp_path / "disk", server.url, *TRAIN_ONLY))

        assert (result.code, result.out) == (1, "")
        assert "8.4 MB left to download" in result.err
        assert server.reads(f"/{TRAIN}") == []


@pytest.mark.root
def test_finished_archives_on_a_read_only_disk_need_no_writing(tmp_path: Path) -> None:
    with disk(tmp_path / "disk", "size=64m"), serve(ONE) as server:
        flags = arguments(tmp_path / "disk", server.url, *TRAIN_ONLY)
        assert command.run("download", *flags).code == 0
        remount(tmp_path / "disk", "ro")
        result = command.run("download", *flags)
        missing = command.run("download", *arguments(tmp_path / "disk" / "new", server.url))

        assert (result.code, result.complaints) == (0, "")
        assert "nothing was left" in result.out
        assert (missing.code, missing.out) == (1, "")
        assert "Read-only file system" in missing.err


@pytest.mark.root
def test_what_an_older_version_has_proven_is_proven_again_on_a_read_only_disk(
    tmp_path: Path,
) -> None:
    with disk(tmp_path / "disk", "size=64m"), serve(ONE) as server:
        into = tmp_path / "disk"
        (into / TRAIN).write_bytes(FILES[TRAIN])
        (into / ".work" / "prove-0123456789abcdef" / "receipts").mkdir(parents=True)
        remount(into, "ro")
        result = command.run("download", *arguments(into, server.url, *TRAIN_ONLY))

        assert (result.code, server.reads(f"/{TRAIN}")) == (0, []), result
        assert "nothing was left" in result.out


def test_a_target_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "into").write_text("precious")
    with serve(ONE) as server:
        result = command.run("download", *arguments(tmp_path / "into", server.url, *TRAIN_ONLY))

    assert result.code in (1, 2), result
    assert str(tmp_path / "into") in result.err
    assert "Traceback" not in result.err
    assert (tmp_path / "into").read_text() == "precious"
