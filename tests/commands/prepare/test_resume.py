"""A repeated command does the remaining work, refuses to mix, and never waits."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.kit import command
from tests.kit.dataset import (
    SETTINGS,
    Reference,
    contents,
    everything,
    shard_names,
    stamps,
)


def arguments(source: Path, out: Path, *more: str) -> list[str | Path]:
    words = ("prepare", "--source", source, "--out", out, *SETTINGS)
    return command.with_flags(words, more)


@pytest.fixture
def unfinished(reference: Reference, tmp_path: Path) -> Path:
    """The files of a run that ended because of too many bad images."""
    out = tmp_path / "unfinished"
    result = command.run(*arguments(reference.source, out, "--max-bad", "0", "--workers", "1"))
    assert result.code == 3, result
    assert not (out / "dataset.json").exists()
    return out


def test_second_run_counts_no_work_in_json(reference: Reference, prepared: Path) -> None:
    result = command.run(*arguments(reference.source, prepared, "--json"))

    assert (result.code, result.complaints) == (0, "")
    assert (result.json["written_examples"], result.json["written_bytes"]) == (0, 0)


def test_lost_shard_is_restored_without_work_folder(reference: Reference, prepared: Path) -> None:
    """The advice of verify must also work for copies and after a cleanup."""
    shutil.rmtree(prepared / ".work")
    (prepared / "train-00002-of-00008").unlink()
    result = command.run(*arguments(reference.source, prepared))

    assert result.code == 0, result
    assert contents(prepared) == reference.contents


def test_dataset_may_be_moved_before_the_next_run(
    reference: Reference, prepared: Path, tmp_path: Path
) -> None:
    moved = prepared.rename(tmp_path / "moved")
    before = stamps(moved)
    (moved / "train-00001-of-00008").unlink()
    result = command.run(*arguments(reference.source, moved))

    after = stamps(moved)
    assert result.code == 0, result
    assert contents(moved) == reference.contents
    changed = {name for name in shard_names(before) if after[name] != before[name]}
    assert changed == {"train-00001-of-00008"}


@pytest.mark.parametrize(
    ("flags", "setting", "old", "new"),
    [
        (("--quality", "80"), "quality", "90", "80"),
        (("--short-side", "48"), "short_side", "64", "48"),
        (("--keep-original",), "short_side", "64", "not set"),
        (("--seed", "3"), "seed", "0", "3"),
        (("--label-offset", "0"), "label_offset", "1", "0"),
        (("--train-shards", "4"), "train_shards", "8", "4"),
        (("--subset-per-class", "3"), "subset_per_class", "not set", "3"),
        (("--check", "header"), "check", "decode", "header"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_different_settings_for_finished_dataset_are_refused(
    reference: Reference,
    prepared: Path,
    flags: tuple[str, ...],
    setting: str,
    old: str,
    new: str,
) -> None:
    before = everything(prepared)
    result = command.run(*arguments(reference.source, prepared, *flags))

    assert (result.code, result.out) == (2, "")
    assert setting in result.err
    assert old in result.err
    assert new in result.err
    assert everything(prepared) == before


@pytest.mark.parametrize(
    ("flags", "setting", "old", "new"),
    [
        (("--quality", "80"), "quality", "90", "80"),
        (("--validation-shards", "2"), "validation_shards", "3", "2"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_different_settings_for_unfinished_dataset_are_refused(
    reference: Reference,
    unfinished: Path,
    flags: tuple[str, ...],
    setting: str,
    old: str,
    new: str,
) -> None:
    before = contents(unfinished)
    result = command.run(*arguments(reference.source, unfinished, *flags))

    assert (result.code, result.out) == (2, "")
    assert setting in result.err
    assert old in result.err
    assert new in result.err
    assert contents(unfinished) == before


def test_different_archives_for_finished_dataset_are_refused(
    reference: Reference, prepared: Path, source: Path
) -> None:
    with (source / "ILSVRC2012_img_val.tar").open("ab") as archive:
        archive.write(bytes(10240))
    before = everything(prepared)
    result = command.run(*arguments(source, prepared))

    assert (result.code, result.out) == (2, "")
    assert "ILSVRC2012_img_val.tar" in result.err
    assert everything(prepared) == before


@pytest.mark.parametrize("stray", ["train-foo", "validation", "train.tfrecord", "valid/"])
def test_files_that_readers_would_read_are_refused(
    reference: Reference, tmp_path: Path, stray: str
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    if stray.endswith("/"):
        (out / stray).mkdir()
    else:
        (out / stray).write_text("something else")
    result = command.run(*arguments(reference.source, out))

    assert (result.code, result.out) == (2, "")
    assert stray.rstrip("/") in result.err
    assert {path.name for path in out.iterdir()} <= {stray.rstrip("/"), ".work"}


@pytest.mark.parametrize("flags", [("--on-bad-image", "fail"), ("--max-bad", "0")], ids=" ".join)
def test_finished_dataset_with_disallowed_bad_images_is_refused(
    reference: Reference, prepared: Path, flags: tuple[str, ...]
) -> None:
    before = everything(prepared)
    result = command.run(*arguments(reference.source, prepared, *flags))

    assert result.code == 3, result
    assert "quarantine.jsonl" in result.err
    assert everything(prepared) == before
