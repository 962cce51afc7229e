"""`prepare` of a folder of images with a table of labels."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from tests.kit import command
from tests.kit.dataset import contents
from tests.kit.layouts import write
from tests.kit.messages import says
from tests.kit.tfrecords import plain


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Kaggle's dog-breed-identification, with two breeds."""
    root = tmp_path / "dogs"
    lines = ["id,breed"]
    for number in range(8):
        write(root / "train" / f"{number}.jpg", plain(number))
        lines.append(f"{number},{('boston_bull', 'dingo')[number % 2]}")
    write(root / "test" / "9.jpg", plain(9))
    write(root / "labels.csv", "\n".join(lines).encode())
    return root


def prepare(source: Path, out: Path, *flags: str) -> command.Finished:
    return command.run("prepare", "--source", source, "--out", out, *flags)


def rows(out: Path, split: str) -> dict[str, str]:
    (path,) = (out / "samples").glob(f"{split}-*.csv")
    with path.open(newline="") as file:
        return {row["key"]: row["class_index"] for row in csv.DictReader(file)}


def test_image_table_is_prepared_resumed_and_compared(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    made = prepare(source, out)
    assert made.code == 0, made
    assert "source: table: dogs, labels.csv; 2 classes (boston_bull, dingo;" in made.err
    names = ("boston_bull", "dingo")
    expected = {f"{names[number % 2]}/{number}.jpg": str(number % 2) for number in range(8)}
    assert rows(out, "train") == expected
    images, table = json.loads((out / "dataset.json").read_bytes())["sources"]
    assert (images["members"], images["ignored"]) == (8, {"test/": 1})
    assert table["md5"]
    before = contents(out)
    assert prepare(source, out).code == 0
    assert contents(out) == before
    text = (source / "labels.csv").read_text()
    (source / "labels.csv").write_text(text.replace("0,boston_bull", "0,dingo"))
    changed = prepare(source, out)
    assert (
        changed.code,
        bool(says("source-changed-since-dataset-made").search(" ".join(changed.err.split()))),
    ) == (2, True)


def test_validation_is_divided_from_an_image_table(source: Path, tmp_path: Path) -> None:
    result = prepare(source, tmp_path / "out", "--holdout-per-class", "1")
    assert result.code == 0, result
    assert sorted(rows(tmp_path / "out", "validation").values()) == ["0", "1"]
    refused = prepare(source, tmp_path / "other", "--splits", "validation")
    assert (
        refused.code,
        bool(says("source-contains-no-split-only").search(" ".join(refused.err.split()))),
    ) == (2, True)


def test_line_without_image_ends_run_with_number(source: Path, tmp_path: Path) -> None:
    with (source / "labels.csv").open("a") as file:
        file.write("\n77,dingo\n")
    result = prepare(source, tmp_path / "out")
    assert result.code == 3
    assert says("expected-one-image-no-other", "labels.csv: line 10", "'77'").search(
        " ".join(result.err.split())
    )
    assert not (tmp_path / "out" / "dataset.json").exists()
