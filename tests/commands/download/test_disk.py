"""A download to a full or broken disk keeps finished parts, and no file looks complete."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.commands.download.conftest import FILES, MIB, TRAIN, arguments
from tests.kit import command
from tests.kit.faults import disk, remount
from tests.kit.http_server import serve
from tests.kit.messages import says

ONE = {TRAIN: FILES[TRAIN]}


TRAIN_ONLY = ("--what", "train", "--allow-other")


@pytest.mark.root
def test_download_is_refused_if_disk_is_too_small(tmp_path: Path) -> None:
    with disk(tmp_path / "disk", "size=4m"), serve(ONE) as server:
        result = command.run("download", *arguments(tmp_path / "disk", server.url, *TRAIN_ONLY))

        assert (result.code, result.out) == (1, "")
        assert says("left-download-only-free-free", ..., "8.4 MB").search(result.err)
        assert server.reads(f"/{TRAIN}") == []


@pytest.mark.root
def test_missing_bytes_of_unfinished_file_need_space(tmp_path: Path) -> None:
    """Its parts arrive in any order, so the file has its full size from the beginning."""

    def only_the_end(_number: int, _path: str, first: int, _last: int) -> str:
        return "" if first in (0, 8 * MIB) else "404"

    into = tmp_path / "disk"
    with disk(into, "size=12m"), serve(ONE) as server:
        server.plan = only_the_end
        assert command.run("download", *arguments(into, server.url, *TRAIN_ONLY)).code != 0
        (partial,) = into.glob(".work/*.partial")
        assert partial.stat().st_size == len(FILES[TRAIN])
        server.requests.clear()
        remount(into, "size=4m")
        result = command.run("download", *arguments(into, server.url, *TRAIN_ONLY))

        assert (result.code, result.out) == (1, "")
        assert says("left-download-only-free-free").search(result.err)
        assert server.reads(f"/{TRAIN}") == []


@pytest.mark.root
def test_finished_archives_may_be_on_read_only_disk(tmp_path: Path) -> None:
    with disk(tmp_path / "disk", "size=64m"), serve(ONE) as server:
        flags = arguments(tmp_path / "disk", server.url, *TRAIN_ONLY)
        assert command.run("download", *flags).code == 0
        remount(tmp_path / "disk", "ro")
        result = command.run("download", *flags)
        missing = command.run("download", *arguments(tmp_path / "disk" / "new", server.url))

        assert (result.code, result.complaints) == (0, "")
        assert says("nothing-left-download").search(result.out)
        assert (missing.code, missing.out) == (1, "")
        assert "Read-only file system" in missing.err


@pytest.mark.root
def test_old_receipts_are_verified_on_read_only_disk(
    tmp_path: Path,
) -> None:
    with disk(tmp_path / "disk", "size=64m"), serve(ONE) as server:
        into = tmp_path / "disk"
        (into / TRAIN).write_bytes(FILES[TRAIN])
        (into / ".work" / "prove-0123456789abcdef" / "receipts").mkdir(parents=True)
        remount(into, "ro")
        result = command.run("download", *arguments(into, server.url, *TRAIN_ONLY))

        assert (result.code, server.reads(f"/{TRAIN}")) == (0, []), result
        assert says("nothing-left-download").search(result.out)


def test_target_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "into").write_text("precious")
    with serve(ONE) as server:
        result = command.run("download", *arguments(tmp_path / "into", server.url, *TRAIN_ONLY))

    assert result.code in (1, 2), result
    assert str(tmp_path / "into") in result.err
    assert "Traceback" not in result.err
    assert (tmp_path / "into").read_text() == "precious"
