"""Disks that are too small, out of inodes, read-only, or not a folder at all."""

from __future__ import annotations

import itertools
import re
import shutil
from pathlib import Path

import pytest

from tests.kit import command
from tests.kit.dataset import SETTINGS, Reference, assert_nothing_half_visible, contents, everything
from tests.kit.faults import disk, remount
from tests.kit.lengths import long_but

# The program as it is, but for the estimate: a disk may also fill up behind its back.
BLIND = (
    "import sys\n"
    "from imagenet_prep.storage.folder import LocalStore\n"
    "LocalStore.free_bytes = lambda self: 1 << 50\n"
    "from imagenet_prep.core import program\n"
    "program.main('imagenet_prep.pipelines.prepare', sys.argv[1:])\n"
)


def arguments(source: Path, out: Path, *more: str) -> list[str]:
    return ["--source", str(source), "--out", str(out), *SETTINGS, *more]


def assert_resumable(result: command.Result, out: Path, reference: Reference) -> None:
    assert (result.code, result.out) == (4, ""), result
    assert "No space left on device" in result.err or "disk is full" in result.err
    assert "again to resume" in result.err
    assert "Traceback" not in result.err
    assert_nothing_half_visible(out, reference.contents)


def assert_finished(flags: list[str], out: Path, reference: Reference) -> None:
    """Runs prepare again, which finishes the data set."""
    again = command.run("prepare", *flags)
    assert again.code == 0, again
    assert contents(out) == reference.contents


@pytest.mark.root
def test_a_disk_that_is_too_small_is_refused_before_anything_is_written(
    reference: Reference, tmp_path: Path
) -> None:
    with disk(tmp_path / "disk", "size=256k"):
        out = tmp_path / "disk" / "out"
        result = command.run("prepare", *arguments(reference.source, out))

        assert (result.code, result.out) == (1, "")
        assert re.search(r"Free \d+\.\d kB", result.err)
        assert str(out) in result.err
        assert contents(out) == {}

        remount(tmp_path / "disk", "size=64m")
        assert_finished(arguments(reference.source, out), out, reference)


@pytest.mark.root
def test_what_is_finished_needs_no_room_again(reference: Reference, tmp_path: Path) -> None:
    needed = sum(map(len, reference.contents.values()))
    with disk(tmp_path / "disk", "size=64m"):
        out = shutil.copytree(reference.out, tmp_path / "disk" / "out")
        (out / "train-00003-of-00008").unlink()
        there = shutil.disk_usage(out)
        remount(tmp_path / "disk", f"size={(there.used + needed // 2) // 1024}k")
        result = command.run("prepare", *arguments(reference.source, out))

        assert result.code == 0, result
        assert contents(out) == reference.contents


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.parametrize(
    ("percent", "workers"),
    long_but(
        [(0, "2"), (16, "1"), (100, "2")],
        itertools.product([0, 4, 8, 12, 16, 20, 30, 45, 60, 75, 90, 100], ["1", "2"]),
    ),
)
def test_a_disk_that_fills_up_during_the_run_leaves_nothing_half_visible(
    reference: Reference, tmp_path: Path, percent: int, workers: str
) -> None:
    """From nothing at all to all but the last files, so that every stage meets the end."""
    needed = sum(map(len, reference.contents.values()))
    with disk(tmp_path / "disk", "size=64m"):
        out = tmp_path / "disk" / "out"
        out.mkdir()
        remount(tmp_path / "disk", f"size={max(4, needed * percent // 100_000)}k")
        flags = arguments(reference.source, out, "--workers", workers)
        result = command.run(*flags, program=("-c", BLIND))

        assert_resumable(result, out, reference)

        remount(tmp_path / "disk", "size=64m")
        assert_finished(flags, out, reference)


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.parametrize("inodes", long_but([3, 30], [3, 5, 8, 12, 20, 30, 40, 55]))
def test_a_disk_that_runs_out_of_inodes_is_a_full_disk(
    reference: Reference, tmp_path: Path, inodes: int
) -> None:
    with disk(tmp_path / "disk", f"size=64m,nr_inodes={inodes}"):
        out = tmp_path / "disk" / "out"
        result = command.run("prepare", *arguments(reference.source, out))

        assert_resumable(result, out, reference)

        remount(tmp_path / "disk", "size=64m,nr_inodes=2000")
        assert_finished(arguments(reference.source, out), out, reference)


@pytest.mark.root
def test_worker_processes_meet_a_full_disk_too(reference: Reference, tmp_path: Path) -> None:
    needed = sum(map(len, reference.contents.values()))
    with disk(tmp_path / "disk", f"size={needed // 2048}k"):
        out = tmp_path / "disk" / "out"
        flags = arguments(reference.source, out, "--workers", "2", "--worker-kind", "processes")
        result = command.run(*flags, program=("-c", BLIND))

        assert_resumable(result, out, reference)

        remount(tmp_path / "disk", "size=64m")
        assert_finished(arguments(reference.source, out), out, reference)


@pytest.mark.root
def test_a_read_only_disk_is_named(reference: Reference, tmp_path: Path) -> None:
    with disk(tmp_path / "disk", "size=64m"):
        remount(tmp_path / "disk", "ro")
        out = tmp_path / "disk" / "out"
        result = command.run("prepare", *arguments(reference.source, out))

        assert (result.code, result.out) == (1, "")
        assert str(out) in result.err
        assert "Read-only file system" in result.err
        assert "Traceback" not in result.err


@pytest.mark.root
def test_a_finished_set_on_a_read_only_disk_needs_no_writing(
    reference: Reference, tmp_path: Path
) -> None:
    with disk(tmp_path / "disk", "size=64m"):
        out = shutil.copytree(reference.out, tmp_path / "disk" / "out")
        remount(tmp_path / "disk", "ro")
        result = command.run("prepare", *arguments(reference.source, out))

        assert (result.code, result.complaints) == (0, "")
        assert "nothing was left" in result.out


@pytest.mark.parametrize("place", ["out", "out/below"])
def test_an_output_that_is_a_file_is_named(
    reference: Reference, tmp_path: Path, place: str
) -> None:
    (tmp_path / "out").write_text("precious")
    before = everything(tmp_path)
    result = command.run("prepare", *arguments(reference.source, tmp_path / place))

    assert result.code in (1, 2), result
    assert result.out == ""
    assert str(tmp_path / place) in result.err
    assert "Traceback" not in result.err
    assert everything(tmp_path) == before


def test_folders_above_the_output_are_made(reference: Reference, tmp_path: Path) -> None:
    out = tmp_path / "a" / "b" / "c"
    result = command.run("prepare", *arguments(reference.source, out))

    assert result.code == 0, result
    assert contents(out) == reference.contents


def test_an_output_behind_a_link_is_written_where_it_points(
    reference: Reference, tmp_path: Path
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "real")
    result = command.run("prepare", *arguments(reference.source, tmp_path / "out"))

    assert result.code == 0, result
    assert contents(tmp_path / "real") == reference.contents
