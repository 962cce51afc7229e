"""Running the same command again: does what is left, refuses to mix, waits for nobody."""

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


def arguments(source: Path, out: Path, *more: str) -> list[str]:
    return ["prepare", "--source", str(source), "--out", str(out), *SETTINGS, *more]


@pytest.fixture
def unfinished(reference: Reference, tmp_path: Path) -> Path:
    """What a run leaves that met more bad images than it was allowed to."""
    out = tmp_path / "unfinished"
    result = command.run(*arguments(reference.source, out, "--max-bad", "0", "--workers", "1"))
    assert result.code == 3, result
    assert not (out / "dataset.json").exists()
    return out


def test_a_second_run_in_json_counts_no_work(reference: Reference, prepared: Path) -> None:
    result = command.run(*arguments(reference.source, prepared, "--json"))

    assert (result.code, result.complaints) == (0, "")
    assert (result.json["written_examples"], result.json["written_bytes"]) == (0, 0)


def test_without_the_work_folder_a_lost_shard_can_still_be_made_again(
    reference: Reference, prepared: Path
) -> None:
    """What verify advises must work for who has tidied up, or holds a copy."""
    shutil.rmtree(prepared / ".work")
    (prepared / "train-00002-of-00008").unlink()
    result = command.run(*arguments(reference.source, prepared))

    assert result.code == 0, result
    assert contents(prepared) == reference.contents


def test_a_data_set_may_be_moved_before_the_next_run(
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
        (("--keep-original",), "short_side", "64", "None"),
        (("--seed", "3"), "seed", "0", "3"),
        (("--label-offset", "0"), "label_offset", "1", "0"),
        (("--train-shards", "4"), "train_shards", "8", "4"),
        (("--subset-per-class", "3"), "subset_per_class", "None", "3"),
        (("--check", "header"), "check", "decode", "header"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_other_settings_over_a_finished_set_are_refused_by_name(
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
def test_other_settings_over_unfinished_work_are_refused_with_both_values(
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


def test_other_archives_over_a_finished_set_are_refused(
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
def test_a_new_data_set_is_not_put_beside_what_readers_would_take_for_it(
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
def test_a_finished_set_with_bad_images_is_refused_where_none_are_allowed(
    reference: Reference, prepared: Path, flags: tuple[str, ...]
) -> None:
    before = everything(prepared)
    result = command.run(*arguments(reference.source, prepared, *flags))

    assert result.code == 3, result
    assert "quarantine.jsonl" in result.err
    assert everything(prepared) == before
