"""`duplicates --against`: two datasets with different classes."""

from __future__ import annotations

import csv
import json
from pathlib import Path

from tests.kit import command
from tests.kit.codec import corpus


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
