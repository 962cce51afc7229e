"""Disks that are too small, out of inodes, read-only, or not a folder at all."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.kit import command
from tests.kit.dataset import SETTINGS, Reference, contents, everything
from tests.kit.faults import disk, remount
from tests.kit.messages import says


def arguments(source: Path, out: Path, *more: str) -> list[str]:
    return ["--source", str(source), "--out", str(out), *SETTINGS, *more]


def assert_finished(flags: list[str], out: Path, reference: Reference) -> None:
    """Runs prepare again, which finishes the dataset."""
    again = command.run("prepare", *flags)
    assert again.code == 0, again
    assert contents(out) == reference.contents


@pytest.mark.root
def test_too_small_disk_is_refused_before_writing(reference: Reference, tmp_path: Path) -> None:
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
def test_read_only_disk_is_named(reference: Reference, tmp_path: Path) -> None:
    with disk(tmp_path / "disk", "size=64m"):
        remount(tmp_path / "disk", "ro")
        out = tmp_path / "disk" / "out"
        result = command.run("prepare", *arguments(reference.source, out))

        assert (result.code, result.out) == (1, "")
        assert str(out) in result.err
        assert "Read-only file system" in result.err
        assert "Traceback" not in result.err


@pytest.mark.root
def test_finished_dataset_may_be_on_read_only_disk(reference: Reference, tmp_path: Path) -> None:
    with disk(tmp_path / "disk", "size=64m"):
        out = shutil.copytree(reference.out, tmp_path / "disk" / "out")
        remount(tmp_path / "disk", "ro")
        result = command.run("prepare", *arguments(reference.source, out))

        assert (result.code, result.complaints) == (0, "")
        assert says("run-nothing-left").search(result.out)


@pytest.mark.parametrize("place", ["out", "out/below"])
def test_output_that_is_a_file_is_named(reference: Reference, tmp_path: Path, place: str) -> None:
    (tmp_path / "out").write_text("precious")
    before = everything(tmp_path)
    result = command.run("prepare", *arguments(reference.source, tmp_path / place))

    assert result.code in (1, 2), result
    assert result.out == ""
    assert str(tmp_path / place) in result.err
    assert "Traceback" not in result.err
    assert everything(tmp_path) == before


def test_parent_folders_of_the_output_are_made(reference: Reference, tmp_path: Path) -> None:
    out = tmp_path / "a" / "b" / "c"
    result = command.run("prepare", *arguments(reference.source, out))

    assert result.code == 0, result
    assert contents(out) == reference.contents


def test_output_behind_a_link_is_its_target(reference: Reference, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "real")
    result = command.run("prepare", *arguments(reference.source, tmp_path / "out"))

    assert result.code == 0, result
    assert contents(tmp_path / "real") == reference.contents
