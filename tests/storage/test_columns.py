"""`verify` and columns: complete, incomplete, damaged, foreign, and surplus files."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from imagenet_prep.core import strict_json
from imagenet_prep.core.errors import DataDamagedError, IncompleteError, UsageError
from imagenet_prep.dataset import column
from imagenet_prep.storage import columns
from imagenet_prep.storage.dataset_store import open_dataset
from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.verify import VerifyConfig, verify
from tests.kit.columns import NAME, SHARD, begin, change, mark, record_of, rows_of, write
from tests.kit.faults import flip_bit
from tests.kit.messages import says
from tests.kit.reading import colours

__all__ = ["colours"]
FOLDER = f"columns/{NAME}"


@pytest.fixture
def marked(colours: Path, tmp_path: Path) -> Path:
    """A copy of `colours` with a column of its train split."""
    root = Path(shutil.copytree(colours, tmp_path / "set"))
    write(root)
    return root


def checked(root: Path, level: str = "crc", **more: Any) -> Any:
    return verify(VerifyConfig(str(root), level=level, workers=1, json=True, **more))


@pytest.mark.parametrize("level", ["manifest", "crc"])
def test_complete_column_is_sound(marked: Path, level: str) -> None:
    result = checked(marked, level)
    assert result["problems"] == []
    assert result["columns"] == [NAME]
    assert result["incomplete_columns"] == {}


def test_incomplete_column_is_named(marked: Path) -> None:
    shutil.rmtree(marked / FOLDER)
    with begin(marked) as writer:
        for batch in writer:
            writer.write(rows_of(batch))
            if batch["number"][0] >= 24:
                assert not checked(marked)["problems"]  # while a file is written
                break
    result = checked(marked)
    assert result["problems"] == []
    assert result["columns"] == []
    assert result["incomplete_columns"] == {NAME: 3}


def test_second_split_being_written_is_no_damage(marked: Path) -> None:
    with pytest.raises(KeyboardInterrupt), begin(marked, "validation", batch_size=1) as writer:
        for batch in writer:
            writer.write(rows_of(batch))
            if batch["number"][0] >= 6:
                raise KeyboardInterrupt
    result = checked(marked)
    assert result["problems"] == []
    assert result["columns"] == []
    assert [*result["incomplete_columns"]] == [NAME]
    made, left = columns.complete_columns(open_dataset(str(marked)))
    assert [[*each.splits] for each in made] == [["train"]]
    assert left == [NAME]
    with pytest.raises(IncompleteError, match=says("column-not-complete-yet-rerun")):
        columns.open_column(open_dataset(str(marked)), NAME, "validation")
    write(marked, "validation")
    assert checked(marked)["columns"] == [NAME]


@pytest.mark.parametrize("name", [".DS_Store", "a b"])
@pytest.mark.parametrize("make", [Path.touch, Path.mkdir])
def test_invalid_column_name_is_damage_for_every_verb(
    marked: Path, name: str, make: Callable[[Path], None]
) -> None:
    make(marked / "columns" / name)
    dataset = open_dataset(str(marked))
    for verb in (columns.complete_columns, lambda each: columns.differences(each, each)):
        with pytest.raises(DataDamagedError, match=says("column-name-up-100-letters")):
            verb(dataset)
    with pytest.raises(UsageError, match=says("column-name-up-100-letters")):
        columns.complete_columns(dataset, ["a b"])


def flipped(root: Path) -> None:
    flip_bit(root / column.file_name(NAME, SHARD), 140)


def cut(root: Path) -> None:
    path = root / column.file_name(NAME, SHARD)
    path.write_bytes(path.read_bytes()[:-1])


def edited(root: Path) -> None:
    path = root / column.record_name(NAME)
    path.write_text(path.read_text().replace("in a test", "by a thief"))


def foreign(root: Path) -> None:
    there = record_of(root)
    files = [replace(rows, samples_sha256="e" * 64) for rows in there.splits["train"]]
    change(root, there.with_files("train", files))


def too_few(root: Path) -> None:
    there = record_of(root)
    change(root, there.with_files("train", there.splits["train"][:-1]))


def of_an_unknown_split(root: Path) -> None:
    there = record_of(root)
    rows = replace(there.splits["train"][0], shard="test-00000-of-00001")
    change(root, there.with_files("test", [rows]))


def too_many(root: Path) -> None:
    np.save(root / FOLDER / "more.npy", np.zeros(3))


def linked_folder(root: Path) -> None:
    os.rename(root / "columns", root / "elsewhere")
    (root / "columns").symlink_to(root / "elsewhere")


def linked_file(root: Path) -> None:
    path = root / column.file_name(NAME, SHARD)
    os.rename(path, root / "elsewhere.npy")
    path.symlink_to(root / "elsewhere.npy")


def a_file(root: Path) -> None:
    (root / "columns" / "notes").write_text("x")


def odd_name(root: Path) -> None:
    (root / "columns" / ".hidden").mkdir()


@pytest.mark.parametrize(
    ("spoil", "said", "seen_by_sizes"),
    [
        (flipped, f"{FOLDER}/{SHARD}.npy: sha256 ", False),
        (cut, f"{FOLDER}/{SHARD}.npy: missing or of the wrong size", True),
        (edited, f"{FOLDER}/column.json: damaged", True),
        (foreign, f"{FOLDER}: was not made for the records of train-00000", True),
        (too_few, f"{FOLDER}: was not made for the records of train-00004", True),
        (of_an_unknown_split, f"{FOLDER}: was not made for the records of test", True),
        (too_many, f"{FOLDER}/more.npy: not in column.json", True),
        (linked_folder, "columns: the file, or a folder above it, is a link", True),
        (linked_file, f"{SHARD}.npy: the file, or a folder above it, is a link", True),
        (a_file, "columns/notes: is not a column folder", True),
        (odd_name, "columns/.hidden: a column name has", True),
    ],
)
def test_damaged_or_foreign_column_is_named(
    marked: Path, spoil: Callable[[Path], None], said: str, seen_by_sizes: bool
) -> None:
    spoil(marked)
    for level in ("manifest", "crc"):
        problems = checked(marked, level)["problems"]
        assert bool(problems) == (seen_by_sizes or level == "crc")
        assert not problems or said in problems[0]
        assert columns.remedy([*problems, "labels.txt: missing"], "Copy.").startswith("Copy.")
        assert not problems or says("repair-each-column-remove-folder").match(
            columns.remedy(problems, "Copy.")
        )


def test_change_after_a_verification_is_noticed(marked: Path) -> None:
    checked(marked, if_changed=True)
    assert checked(marked, if_changed=True)["unchanged_since"]
    flipped(marked)
    result = checked(marked, if_changed=True)
    assert result["unchanged_since"] is None
    assert len(result["problems"]) == 1


def test_receipts_belong_to_the_shard_of_their_name(marked: Path) -> None:
    """A receipt that was copied to a different name would mark rows of other images as finished."""
    store = open_dataset(str(marked)).store
    rows = record_of(marked).splits["train"]
    path = marked / column.receipt_name(NAME, SHARD)
    assert columns.receipt(store, NAME, SHARD) is None
    for each in rows:
        path.write_bytes(strict_json.dumps(each))
        if each.shard == SHARD:
            assert columns.receipt(store, NAME, SHARD) == each
        else:
            with pytest.raises(DataDamagedError) as refused:
                columns.receipt(store, NAME, SHARD)
            assert str(path) in str(refused.value)


def test_differences_of_columns_are_named(marked: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(marked, tmp_path / "other"))
    a = open_dataset(str(marked))
    b = open_dataset(str(other))
    assert columns.differences(a, b) == {}
    there = record_of(other)
    files = there.splits["train"]
    change(other, there.with_files("train", [replace(files[0], sha256="e" * 64), *files[1:]]))
    assert [*columns.differences(a, b)] == [NAME]
    assert " 1 file;" in columns.differences(a, b)[NAME]
    change(other, there.with_files("train", files[2:]))
    text = columns.differences(a, b)[NAME]
    assert says("different-rows-equal-records-different", "0 files", "2 files", 0).search(text)
    change(other, replace(there, about={"made": "otherwise"}))
    assert "about" in columns.differences(a, b)[NAME]
    shutil.rmtree(other / "columns")
    assert columns.differences(a, b)[NAME].endswith("A")
    assert columns.differences(b, a)[NAME].endswith("B")


def test_rows_of_single_records_are_read(marked: Path) -> None:
    dataset = open_dataset(str(marked))
    stored = record_of(marked)
    number = 0
    for shard in dataset.shards("train"):
        for record in range(shard.examples):
            data = columns.row(dataset, stored, "train", shard, record)
            assert np.frombuffer(data or b"", "<i4").tolist() == mark(number)
            number += 1
    (shard,) = dataset.shards("validation")[:1]
    assert columns.row(dataset, stored, "validation", shard, 0) is None
    cut(marked)
    with pytest.raises(DataDamagedError):
        columns.row(dataset, stored, "train", dataset.shards("train")[1], 0)


def test_incomplete_columns_count_their_finished_files(marked: Path) -> None:
    there = record_of(marked)
    folder = marked / FOLDER
    (folder / "column.json").unlink()
    (folder / "begun.json").write_bytes(there.begun().dumps())
    for number, rows in enumerate(there.splits["train"]):
        missing = (0,) if number == 1 else ()
        receipt = replace(rows, missing=missing)
        (marked / column.receipt_name(NAME, rows.shard)).write_bytes(strict_json.dumps(receipt))
    survey = columns.Survey(open_dataset(str(marked)))
    assert survey.incomplete == {NAME: 4}
    assert survey.complete == {}
    assert survey.problems == []


def test_folder_without_settings_is_an_incomplete_column(marked: Path) -> None:
    """Its files may be valuable: the script that writes it continues."""
    (marked / FOLDER / "column.json").unlink()
    dataset = open_dataset(str(marked))
    with pytest.raises(IncompleteError, match=says("column-not-complete-yet-rerun", FOLDER)):
        columns.open_column(dataset, NAME, "train")
    with pytest.raises(UsageError, match=says("no-such-column-columns-dataset", ..., NAME)):
        columns.open_column(dataset, "other", "train")


def test_settings_of_a_column_are_removed_last(marked: Path) -> None:
    """After a kill, no reader opens the column, and the next removal finds its files."""
    (marked / FOLDER / "begun.json").write_bytes(record_of(marked).begun().dumps())
    (marked / FOLDER / "column.json.sig").write_bytes(b"signature")
    dataset = open_dataset(str(marked))
    first, files, last = columns.files_to_remove(dataset.store, NAME)
    assert {*first} == {f"{FOLDER}/column.json", f"{FOLDER}/column.json.sig"}
    assert {*files} == {file.name for file in record_of(marked).files()}
    assert last == [f"{FOLDER}/begun.json"]


def test_partial_files_of_killed_writers_are_removed(marked: Path) -> None:
    (marked / FOLDER / f"{SHARD}.npy.0123456789abcdef.partial").write_bytes(b"half")
    columns.remove(LocalStore(marked), NAME)
    assert not (marked / "columns").exists()


KEY = b"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5"


@pytest.mark.parametrize(
    ("lines", "is_sound"),
    [
        (b"lab@example.org " + KEY + b"\n", True),
        (b"# signers\nlab@example.org " + KEY + b"\n", True),
        (b"# lab@example.org " + KEY + b"\n", False),
        (b"  # lab@example.org " + KEY + b"\n", False),
        (KEY + b" comment\n", False),
        (b"lab@example.org " + KEY + b"\n" + KEY + b"\n", False),
        (b"", False),
    ],
)
def test_file_of_signers_has_names_and_keys(lines: bytes, *, is_sound: bool) -> None:
    """Otherwise, the message would blame the signature."""
    if is_sound:
        columns._require_signers("signers", lines)
    else:
        with pytest.raises(UsageError, match="--signers signers: "):
            columns._require_signers("signers", lines)
