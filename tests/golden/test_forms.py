"""Datasets of an earlier version, file by file: they stay readable for ever.

A file of `forms/` contains the files of one dataset, as text or in base64. None is ever renewed: if
a later version writes a different form, a new file is added.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep.read import make_dataset
from tests.kit import command

FOLDER = Path(__file__).parent
FORMS = sorted((FOLDER / "forms").glob("*.json"))
Row = dict[str, str]


def laid_out(form: Path, folder: Path) -> dict[str, Any]:
    """Writes the files of a dataset; returns its manifest."""
    files: dict[str, Any] = json.loads(form.read_text("utf-8"))
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, dict):
            path.write_bytes(base64.b64decode(content["base64"]))
        else:
            path.write_bytes(content.encode())
    manifest: dict[str, Any] = json.loads(files["dataset.json"])
    return manifest


def rows(folder: Path, split: str) -> list[Row]:
    """Returns the lines of a split's tables of samples, read by Python's CSV reader."""
    found: list[Row] = []
    for path in sorted((folder / "samples").glob(f"{split}-*.csv")):
        with path.open(newline="") as file:
            found += csv.DictReader(file)
    return found


def test_forms_of_all_kinds_exist() -> None:
    assert {path.stem for path in FORMS} >= {"prepared", "amended", "adopted"}


@pytest.mark.parametrize("form", FORMS, ids=lambda path: path.stem)
def test_dataset_of_earlier_version_is_verified(form: Path, tmp_path: Path) -> None:
    manifest = laid_out(form, tmp_path / "set")

    proven = command.run("verify", tmp_path / "set", "--level", "decode", "--json")
    shown = command.run("show", tmp_path / "set")

    assert (proven.code, shown.code) == (0, 0), (proven, shown)
    assert proven.json["digest"] == manifest["digest"]


@pytest.mark.parametrize("form", FORMS, ids=lambda path: path.stem)
def test_reader_returns_all_images_of_earlier_version(form: Path, tmp_path: Path) -> None:
    manifest = laid_out(form, tmp_path)
    fields = ("images", "key", "class_index")
    for split in manifest["splits"]:
        reader = make_dataset(
            str(tmp_path),
            split,
            2,
            image_size=16,
            training=False,
            backend="native",
            fields=fields,
        )
        seen = {}
        for batch in reader:
            seen |= dict(zip(batch["key"], batch["class_index"], strict=True))
        table = rows(tmp_path, split)
        numbers = [reader.find(row["key"]) for row in table]
        stored = [hashlib.sha256(reader.example(each).encoded).hexdigest() for each in numbers]
        reader.close()
        seen.pop("", None)  # padding of the last batch

        assert numbers == list(range(len(table)))
        assert seen == {row["key"]: int(row["class_index"]) for row in table}
        assert stored == [row["sha256"] for row in table]


@pytest.mark.parametrize("form", FORMS, ids=lambda path: path.stem)
def test_other_verbs_accept_dataset_of_earlier_version(form: Path, tmp_path: Path) -> None:
    manifest = laid_out(form, tmp_path / "set")
    split = next(iter(manifest["splits"]))
    gone = rows(tmp_path / "set", split)[0]
    (tmp_path / "gone.txt").write_text(gone["key"] + "\n")

    copied = command.run("replicate", tmp_path / "set", "--to", tmp_path / "copy")
    same = command.run("diff", tmp_path / "set", tmp_path / "copy", "--exit-code")
    exported = command.run(
        "export", tmp_path / "set", "--to", "webdataset", "--out", tmp_path / "tars"
    )
    amended = command.run(
        "amend", tmp_path / "set", "--exclude", tmp_path / "gone.txt", "--out", tmp_path / "less"
    )
    less = command.run("verify", tmp_path / "less", "--level", "decode", "--json")

    for result in (copied, same, exported, amended, less):
        assert result.code == 0, result
    left = {row["key"] for row in rows(tmp_path / "set", split)} - {gone["key"]}
    assert {row["key"] for row in rows(tmp_path / "less", split)} == left


def keys_of_epoch(reader: Iterable[Any]) -> list[str]:
    """Reads an epoch; returns its keys."""
    keys: list[str] = []
    for batch in reader:
        keys += map(str, batch["key"])
    return keys


def test_reader_resumes_from_state_of_earlier_version(tmp_path: Path) -> None:
    golden = json.loads((FOLDER / "reader_state.json").read_text())
    laid_out(FOLDER / "forms" / "prepared.json", tmp_path)
    options: dict[str, Any] = {"backend": "native", "fields": ("key",), **golden["options"]}

    reader = make_dataset(str(tmp_path), "train", image_size=16, **options)
    reader.restore(golden["state"])
    rest = keys_of_epoch(reader)
    following = keys_of_epoch(reader)
    reader.close()

    assert (rest, following) == (golden["rest"], golden["next epoch"])
