"""Sets that an earlier version has made, file by file: they stay readable for ever.

A file of `forms/` holds the files of one set, as text or in base64. None is ever made anew: what
later versions write in another form gets a file of its own, beside these.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep.read import make_dataset
from tests.kit import command

FOLDER = Path(__file__).parent
FORMS = sorted((FOLDER / "forms").glob("*.json"))
Row = dict[str, str]


def laid_out(form: Path, folder: Path) -> dict[str, Any]:
    """Writes the files of a set; returns its manifest."""
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
    """Returns the lines of a split's tables of samples, by a reader of CSV that is not ours."""
    found: list[Row] = []
    for path in sorted((folder / "samples").glob(f"{split}-*.csv")):
        with path.open(newline="") as file:
            found += csv.DictReader(file)
    return found


def test_there_is_a_form_of_each_kind() -> None:
    assert {path.stem for path in FORMS} >= {"prepared", "amended", "adopted"}


@pytest.mark.parametrize("form", FORMS, ids=lambda path: path.stem)
def test_a_set_of_an_earlier_version_is_proven(form: Path, tmp_path: Path) -> None:
    manifest = laid_out(form, tmp_path / "set")

    proven = command.run("verify", tmp_path / "set", "--level", "decode", "--json")
    shown = command.run("show", tmp_path / "set")

    assert (proven.code, shown.code) == (0, 0), (proven, shown)
    assert proven.json["digest"] == manifest["digest"]


@pytest.mark.parametrize("form", FORMS, ids=lambda path: path.stem)
def test_readers_give_each_of_its_images(form: Path, tmp_path: Path) -> None:
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
        seen.pop("", None)  # what fills the last batch

        assert numbers == list(range(len(table)))
        assert seen == {row["key"]: int(row["class_index"]) for row in table}
        assert stored == [row["sha256"] for row in table]


@pytest.mark.parametrize("form", FORMS, ids=lambda path: path.stem)
def test_other_verbs_take_it(form: Path, tmp_path: Path) -> None:
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


def test_a_reader_goes_on_from_a_state_of_an_earlier_version(tmp_path: Path) -> None:
    golden = json.loads((FOLDER / "reader_state.json").read_text())
    laid_out(FOLDER / "forms" / "prepared.json", tmp_path)
    options: dict[str, Any] = {"backend": "native", "fields": ("key",), **golden["options"]}

    reader = make_dataset(str(tmp_path), "train", image_size=16, **options)
    reader.restore(golden["state"])
    rest, following = ([str(key) for batch in reader for key in batch["key"]] for _ in range(2))
    reader.close()

    assert (rest, following) == (golden["rest"], golden["next epoch"])
