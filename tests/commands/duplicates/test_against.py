"""`duplicates --against`: two datasets with different classes; no dataset is written to."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from tests.kit import command, layouts
from tests.kit.codec import corpus
from tests.kit.dataset import everything
from tests.kit.messages import says
from tests.kit.photographs import photograph


def test_classes_of_the_other_dataset_are_its_own(tmp_path: Path) -> None:
    """Class 0 of one dataset is class 1 of the other."""
    made = corpus.photographs(3)
    for folder, names in (("one", "ab"), ("other", "b")):
        for name in names:
            path = tmp_path / folder / name / "image.jpg"
            path.parent.mkdir(parents=True)
            path.write_bytes(made["ab".index(name)])
        done = command.run("prepare", tmp_path / folder, tmp_path / f"{folder}-set")
        assert done.code == 0, done

    words = ("duplicates", tmp_path / "one-set", "--against", tmp_path / "other-set", "--json")
    result = command.run(*words, "--out", tmp_path / "out")

    with (tmp_path / "out" / "pairs.csv").open(newline="") as file:
        found = [row["class_index"] for row in csv.DictReader(file)]
    assert found == ["0", "1"]
    (pair,) = json.loads(result.out)["pairs"]
    assert pair["other_label"] == 0


@pytest.mark.parametrize("folder", ["", "found"])
def test_result_is_not_written_into_a_dataset(tmp_path: Path, folder: str) -> None:
    layouts.write(tmp_path / "in/cat/1.jpg", photograph(30, 40))
    there = tmp_path / "set"
    assert command.run("prepare", "--source", tmp_path / "in", "--out", there).code == 0
    before = everything(there)
    for words in ((there,), (there, "--against", there)):
        refused = command.run("duplicates", *words, "--out", there / folder)
        assert says("inside-belongs-input-never-changes").search(refused.err)
        assert refused.code == 2
    assert everything(there) == before
