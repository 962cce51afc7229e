"""The file of what a network says of each image."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest

from imagenet_prep.core.errors import DataDamagedError, UsageError
from imagenet_prep.dataset import predictions
from imagenet_prep.dataset.predictions import Prediction

HEADER = "key,class_index,top1,p1,top2,p2,top3,p3,top4,p4,top5,p5\n"
SAID = [
    Prediction("a/1.JPEG", 0, (0, 4, 2, 1, 3), (0.5, 0.25, 0.125, 0.0625, 0.03125)),
    Prediction('b/ä, "b".jpg', 1, (0, 1), (0.75, 0.25)),
    Prediction("c/1", 0, (), ()),  # its scores were not finite
]


def written() -> str:
    stream = io.StringIO()
    predictions.write(stream, SAID)
    return stream.getvalue()


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "said.csv"
    path.write_text(written(), encoding="utf-8")

    assert written().splitlines() == [
        HEADER.rstrip(),
        "a/1.JPEG,0,0,0.5,4,0.25,2,0.125,1,0.0625,3,0.03125",
        '"b/ä, ""b"".jpg",1,0,0.75,1,0.25,,,,,,',
        "c/1,0,,,,,,,,,,",
    ]
    assert list(predictions.read(path, 5)) == SAID
    assert [each.is_wrong for each in SAID] == [False, True, True]


@pytest.mark.parametrize(
    "line",
    [
        "a/1,0,0,0.5",
        ",0,0,0.5,,,,,,,,",
        "a/1,0,0,1.5,,,,,,,,",
        "a/1,0,0,nan,,,,,,,,",
        "a/1,x,0,0.5,,,,,,,,",
        "a/1,7,0,0.5,,,,,,,,",
        "a/1,-1,0,0.5,,,,,,,,",
        "a/1,0,99999999999999999999,0.5,,,,,,,,",
        '"a/1',
        "a" * 20_000,
    ],
)
def test_a_line_that_nobody_wrote_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "said.csv"
    path.write_text(f"{HEADER}{line}\n")
    with pytest.raises(
        DataDamagedError, match=r"said\.csv: (line 2 is invalid|a line has more than)"
    ):
        list(predictions.read(path, 5))


@pytest.mark.parametrize("content", ["", "a,b\n", "\0\xff"])
def test_another_file_is_no_file_of_predictions(tmp_path: Path, content: str) -> None:
    path = tmp_path / "said.csv"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises((UsageError, DataDamagedError)):
        list(predictions.read(path))
    with pytest.raises(UsageError, match="cannot be opened"):
        list(predictions.read(tmp_path / "absent"))


@pytest.mark.parametrize("among", [None, range(500, 1000)])
def test_of_very_many_equal_scores_the_first_classes_come_first(among: range | None) -> None:
    """Below 17 numbers, every sort of NumPy keeps equal ones in their order."""
    scores = np.zeros((2, 1000), np.float32)
    scores[:, 700] = 1
    first = [each for each in (among or range(1000)) if each != 700][:4]
    assert predictions.top(scores, among).tolist() == [[700, *first]] * 2


def test_the_classes_ahead_of_a_label_are_those_that_top_names_first() -> None:
    scores = np.random.default_rng(0).integers(0, 3, (200, 9)).astype(np.float32)
    labels = np.arange(200) % 9
    first = predictions.top(scores)

    for row, label, ahead in zip(first, labels, predictions.ahead_of(labels, scores), strict=True):
        assert label not in row[:ahead]
        assert ahead >= 5 or row[ahead] == label
