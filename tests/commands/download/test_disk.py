"""Disks that fill up or refuse: what is finished is kept, and nothing looks whole that is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.commands.download.conftest import FILES, MIB, TRAIN, archives, arguments, finished
from tests.kit import command
from tests.kit.faults import disk, remount
from tests.kit.http_server import serve
from tests.kit.lengths import long_but

ONE = {TRAIN: FILES[TRAIN]}
TRAIN_ONLY = ("--what", "train", "--allow-other")

# The program as it is, but for the estimate: a disk may also fill up behind its back.
BLIND = (
    "import sys\n"
    "from imagenet_prep.storage.folder import LocalStore\n"
    "LocalStore.free_bytes = lambda self: 1 << 50\n"
    "from imagenet_prep.core import program\n"
    "program.main('imagenet_prep.download', sys.argv[1:])\n"
)


@pytest.mark.root
@pytest.mark.parametrize("kilobytes", long_but([40, 3000], [4, 40, 1500, 3000, 6000]))
def test_a_disk_that_fills_up_keeps_what_is_finished(tmp_path: Path, kilobytes: int) -> None:
    with disk(tmp_path / "disk", "size=64m"), serve(ONE) as server:
        into = tmp_path / "disk" / "into"
        into.mkdir()
        remount(tmp_path / "disk", f"size={kilobytes}k")
        flags = arguments(into, server.url, *TRAIN_ONLY)
        result = command.run(*flags, program=("-c", BLIND))

        assert (result.code, result.out) == (4, ""), result
        assert "No space left on device" in result.err
        assert "again to resume" in result.err
        assert "Traceback" not in result.err
        assert archives(into) == {}

        kept = finished(into)
        del server.requests[:]
        remount(tmp_path / "disk", "size=64m")
        again = command.run("download", *flags)
        assert again.code == 0, again
        assert archives(into) == ONE
        assert {r.first for r in server.reads(f"/{TRAIN}")} & set(kept) == set()


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


@pytest.mark.root
def test_every_part_has_its_receipt_only_on_the_disk(tmp_path: Path) -> None:
    """After a full disk, the bytes behind every receipt are those of the server."""
    into = tmp_path / "disk"

    def plan(_number: int, _path: str, first: int, _last: int) -> str:
        # Six parts fill the disk: without a receipt, when all arrive at the same time.
        if first >= 3 * MIB:
            command.wait_until(lambda: len(finished(into)) == 3, "the first three parts")
        return ""

    with disk(into, "size=6000k"), serve(ONE, plan=plan) as server:
        result = command.run(*arguments(into, server.url, *TRAIN_ONLY), program=("-c", BLIND))
        partial = (into / ".work" / f"{TRAIN}.partial").read_bytes()
        kept = finished(into)

    assert result.code == 4
    assert kept.keys() >= {0, MIB, 2 * MIB}
    for start, size in kept.items():
        assert partial[start : start + size] == FILES[TRAIN][start : start + size]
    assert max(kept.values()) == MIB
