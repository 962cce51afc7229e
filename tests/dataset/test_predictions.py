"""The file of a network's predictions for each image."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest

from imagenet_prep.core.errors import DataDamagedError, UsageError
from imagenet_prep.dataset import predictions
from imagenet_prep.dataset.class_list import digest_of
from imagenet_prep.dataset.predictions import Prediction
from tests.kit.messages import says

HEADER = "key,class_index,top1,p1,top2,p2,top3,p3,top4,p4,top5,p5\n"
SAID = [
    Prediction("a/1.JPEG", 0, (0, 4, 2, 1, 3), (0.5, 0.25, 0.125, 0.0625, 0.03125), "cat"),
    Prediction('b/ä, "b".jpg', 1, (0, 1), (0.75, 0.25), 'a "dog"'),
    Prediction("c/1", 0, (), ()),  # its scores were not finite
]


CLASSES = ("cat", 'a "dog"', "c", "d", "e")


def written() -> str:
    stream = io.StringIO()
    predictions.write(stream, SAID, classes_digest=digest_of(CLASSES))
    return stream.getvalue()


def test_written_predictions_are_read_back(tmp_path: Path) -> None:
    path = tmp_path / "said.csv"
    path.write_text(written(), encoding="utf-8")

    assert written().splitlines() == [
        f"{HEADER.rstrip()},class sha256:{digest_of(CLASSES)}",
        "a/1.JPEG,0,0,0.5,4,0.25,2,0.125,1,0.0625,3,0.03125,cat",
        '"b/ä, ""b"".jpg",1,0,0.75,1,0.25,,,,,,,"a ""dog"""',
        "c/1,0,,,,,,,,,,,",
    ]
    assert list(predictions.read(path, CLASSES)) == SAID
    assert list(predictions.read(path)) == SAID
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
def test_invalid_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "said.csv"
    path.write_text(f"{HEADER}{line}\n")
    with pytest.raises(
        DataDamagedError, match=r"said\.csv: (line 2 is invalid|a line has more than)"
    ):
        list(predictions.read(path, CLASSES))


def test_predictions_of_other_classes_are_refused(tmp_path: Path) -> None:
    """A new class moves the index of each class after it."""
    path = tmp_path / "said.csv"
    path.write_text(written(), encoding="utf-8")
    wrong = says("class-indices-different-class-list", "said.csv")
    others = (
        ("cat", "ant", 'a "dog"', "c", "d"),  # also if no image has one of them
        (*CLASSES, "f"),
        CLASSES[:-1],
    )
    for wnids in others:
        with pytest.raises(UsageError, match=wrong):
            list(predictions.read(path, wnids))
    # The classes are unknown, because the class list is damaged.
    assert list(predictions.read(path, [""] * 5)) == SAID


def test_files_without_class_names_are_read(tmp_path: Path) -> None:
    path = tmp_path / "said.csv"
    without = [each._replace(wnid="") for each in SAID]
    rows = [line.rpartition(",")[0] for line in written().splitlines()]
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    assert list(predictions.read(path, CLASSES)) == without
    more = [rows[0] + ",own.csv sha256:0", *(f"{row},cat" for row in rows[1:])]
    path.write_text("\n".join(more) + "\n", encoding="utf-8")
    assert list(predictions.read(path, CLASSES)) == without


@pytest.mark.parametrize("content", ["", "a,b\n", "\0\xff"])
def test_foreign_file_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "said.csv"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises((UsageError, DataDamagedError)):
        list(predictions.read(path))
    with pytest.raises(UsageError, match=says("cannot-opened")):
        list(predictions.read(tmp_path / "absent"))


@pytest.mark.parametrize("among", [None, range(500, 1000)])
def test_first_classes_win_among_many_equal_scores(among: range | None) -> None:
    """Below 17 numbers, every sort of NumPy keeps equal ones in their order."""
    scores = np.zeros((2, 1000), np.float32)
    scores[:, 700] = 1
    first = [each for each in (among or range(1000)) if each != 700][:4]
    assert predictions.top(scores, among).tolist() == [[700, *first]] * 2


def test_ahead_of_a_label_matches_top() -> None:
    scores = np.random.default_rng(0).integers(0, 3, (200, 9)).astype(np.float32)
    labels = np.arange(200) % 9
    first = predictions.top(scores)

    for row, label, ahead in zip(first, labels, predictions.ahead_of(labels, scores), strict=True):
        assert label not in row[:ahead]
        assert ahead >= 5 or row[ahead] == label


@pytest.mark.parametrize("num_images", [1023, 1024, 1025, 3000])
def test_scores_are_ranked_image_by_image(num_images: int) -> None:
    """They are sorted in parts of 1,024."""
    scores = np.random.default_rng(3).random((num_images, 7))
    for among in (None, [0, 2, 6]):
        highest = predictions.top(scores, among)
        numbers = range(7) if among is None else among
        assert highest.tolist() == [
            sorted(numbers, key=lambda n: -row[n])[:5] for row in scores.tolist()
        ]


def test_finite_scores_and_padded_ranks() -> None:
    scores = np.array([[1, 2], [np.nan, 1], [1, np.inf], [0, -np.inf], [0, 0]])
    assert predictions.are_finite(scores).tolist() == [True, False, False, False, True]
    assert predictions.five([[1], [], [5, 4, 3, 2, 1]]).tolist() == [
        [1, -1, -1, -1, -1],
        [-1] * 5,
        [5, 4, 3, 2, 1],
    ]


@pytest.mark.parametrize(
    ("classes", "is_wrong"), [((3, 1), False), ((1, 3), True), ((), True), ((3,), False)]
)
def test_the_first_class_decides_a_prediction(classes: tuple[int, ...], is_wrong: bool) -> None:
    assert Prediction("a", 3, classes, ()).is_wrong is is_wrong


def fields(text: str, **changed: str) -> str:
    names = dict(zip(predictions.HEADER, text.split(","), strict=True)) | changed
    return ",".join(names.values())


LINE = "a,3,3,0.5,1,0.25,,,,,,"


@pytest.mark.parametrize(
    ("changed", "is_sound"),
    [
        ({}, True),
        ({"p1": "1"}, True),
        ({"p1": "0"}, True),
        ({"p1": "1.01"}, False),
        ({"p1": "-0.1"}, False),
        ({"p1": "nan"}, False),
        ({"p1": "x"}, False),
        ({"p1": ""}, False),
        ({"key": ""}, False),
        ({"class_index": "9"}, True),
        ({"class_index": "10"}, False),
        ({"class_index": "-1"}, False),
        ({"class_index": ""}, False),
        ({"top2": "10"}, False),
        ({"top2": "x"}, False),
        ({"key": '"a'}, False),
        ({"key": '"a"b'}, False),
        ({"p5": ",7"}, False),
    ],
)
def test_each_field_of_a_prediction(
    tmp_path: Path, changed: dict[str, str], is_sound: bool
) -> None:
    path = tmp_path / "file.csv"
    path.write_text(f"{','.join(predictions.HEADER)}\n{fields(LINE, **changed)}\n")
    if is_sound:
        assert len([*predictions.read(path, [""] * 10)]) == 1
    else:
        with pytest.raises(DataDamagedError) as refused:
            [*predictions.read(path, [""] * 10)]
        assert str(path) in str(refused.value)


@pytest.mark.parametrize(("length", "is_sound"), [(10_000, True), (10_001, False)])
def test_long_lines_are_refused(tmp_path: Path, length: int, is_sound: bool) -> None:
    path = tmp_path / "file.csv"
    line = "a" * (length - len(LINE)) + LINE + "\n"
    path.write_text(f"{','.join(predictions.HEADER)}\n{line[-length:]}")
    if is_sound:
        assert len([*predictions.read(path)]) == 1
    else:
        with pytest.raises(DataDamagedError):
            [*predictions.read(path)]


def test_additional_columns_are_written_and_not_read(tmp_path: Path) -> None:
    path = tmp_path / "file.csv"
    rows = [Prediction("a", 3, (3, 1), (0.5, 0.25)), Prediction("b", 1, (), ())]
    with open(path, "w") as stream:
        predictions.write(stream, rows, {"mine": {"a": "x,y"}})
    assert path.read_text().splitlines()[0].endswith(",p5,mine")
    assert path.read_text().splitlines()[1].endswith(',"x,y"')
    assert [*predictions.read(path, [""] * 4)] == rows


def test_classes_precede_additional_columns(tmp_path: Path) -> None:
    path = tmp_path / "file.csv"
    more = {"mine": {"a/1.JPEG": "x,y"}, "yours": {"c/1": "z"}}
    with open(path, "w", encoding="utf-8") as stream:
        predictions.write(stream, SAID, more, digest_of(CLASSES))
    assert [*predictions.read(path, CLASSES)] == SAID
    with pytest.raises(UsageError, match=says("class-indices-different-class-list", "file.csv")):
        [*predictions.read(path, CLASSES[:-1])]


def test_index_beyond_named_classes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file.csv"
    path.write_text(written().replace('jpg",1,0', 'jpg",1,5'), encoding="utf-8")
    with pytest.raises(DataDamagedError, match=r"file\.csv: line 3 is invalid"):
        [*predictions.read(path, CLASSES)]
