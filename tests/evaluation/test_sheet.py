"""A sheet of several datasets, and the recognition of lists that number the classes differently."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from imagenet_prep.core.errors import UsageError
from imagenet_prep.evaluation import score
from imagenet_prep.evaluation.sheet import DATASET, Sheet
from imagenet_prep.storage.dataset_store import open_dataset
from tests.kit.evaluated import write_names
from tests.kit.messages import says
from tests.kit.tfrecords import picture, plain, wnid, write_dataset

ORDER = "classes-numbered-different-order-ilsvrc2012_ids"


def labels_of(folder: Path, lines: Sequence[str]) -> Path:
    path = folder / "own.csv"
    path.write_text("".join(f"{line}\n" for line in ("key,class", *lines)))
    return path


def indices(num: int) -> Any:
    return np.zeros((num, 5), int)


@pytest.mark.parametrize(
    ("classes", "images", "is_order"),
    [
        (4, 9, False),  # too few classes
        (5, 3, False),  # 15 pairs of images of a class with the same wrong number
        (6, 3, False),  # 18
        (7, 3, True),  # 21
        (5, 4, True),  # 30
    ],
)
def test_different_order_needs_classes_and_pairs(
    tmp_path: Path, classes: int, images: int, is_order: bool
) -> None:
    heads = [(f"a/{n}", n % classes) for n in range(classes * images)]
    place = write_names(tmp_path / "set", heads, num_classes=10)
    path = labels_of(tmp_path, [f"{key},{(own + 1) % classes}" for key, own in heads])

    refused = pytest.raises(UsageError, match=says(ORDER))
    with refused if is_order else contextlib.nullcontext():
        table = score(indices(len(heads)), place, labels=[path])
        assert table.rows[-1].images == len(heads)


def test_two_wrong_numbers_per_class_are_no_order(tmp_path: Path) -> None:
    """The list disagrees with half of the images of each class in one way, and with half in two."""
    heads = [(f"a/{n}", n % 5) for n in range(50)]
    place = write_names(tmp_path / "set", heads, num_classes=20)
    path = labels_of(tmp_path, [f"a/{n},{5 + n % 10}" for n in range(50)])
    assert score(indices(50), place, labels=[path]).rows[-1].images == 50


def test_one_name_does_not_hide_wrong_numbers(tmp_path: Path) -> None:
    heads = [(f"a/{n}", n % 7) for n in range(28)]
    place = write_names(tmp_path / "set", heads, num_classes=10)
    lines = [f"{key},{(own + 1) % 7}" for key, own in heads[1:]]
    path = labels_of(tmp_path, [f"a/0,{wnid(0)}", *lines])
    with pytest.raises(UsageError, match=says(ORDER)):
        score(indices(28), place, labels=[path])


def test_image_with_one_unknown_class_is_refused(tmp_path: Path) -> None:
    place = write_names(tmp_path / "set", [("a/1", 0), ("a/2", 1)], num_classes=10)
    path = labels_of(tmp_path, [f"a/1,{wnid(0)}", f"a/2,{wnid(1)} n99999999"])
    with pytest.raises(UsageError, match=says("entry-not-class-expected-wnids", ..., "2")):
        score(indices(2), place, labels=[path])


def test_complete_dataset_has_one_accuracy(tmp_path: Path) -> None:
    """Its classes are all classes."""
    place = write_names(tmp_path / "set", [(f"a/{n}", n) for n in range(6)], num_classes=6)
    for given in (np.eye(6, dtype=np.float32), indices(6)):
        table = score(given, place)
        assert [row.among for row in table.rows] == [6]
        assert table.notes == []


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int64", "uint64"])
def test_indices_are_integers_of_any_type(tmp_path: Path, dtype: str) -> None:
    place = write_names(tmp_path / "set", [("a/1", 0), ("a/2", 3)], num_classes=10)
    given = np.array([[0, 1, 2, 3, 4], [4, 3, 2, 1, 0]], dtype)
    row = score(given, place).rows[0]
    assert (row.top1, row.top5) == (0.5, 1.0)


def test_dataset_without_tables_is_refused(tmp_path: Path) -> None:
    write_dataset(tmp_path / "set", {"validation": [[picture(0, plain(0))]]}, num_classes=1)
    with pytest.raises(UsageError, match=says("no-tables-samples-list-images")):
        score(indices(1), tmp_path / "set")


@pytest.fixture
def two(tmp_path: Path) -> list[str]:
    """Two datasets of the same classes with different keys."""
    first = write_names(tmp_path / "first", [("a/1", 0), ("a/2", 1)], num_classes=10)
    second = write_names(tmp_path / "second", [("b/1", 0), ("b/2", 1)], num_classes=10)
    return [str(first), str(second)]


@pytest.mark.parametrize(
    ("lines", "labels", "unknown"),
    [
        (["a/1,0", "b/2,1", "c/1,0"], [["own.csv"], ["own.csv"]], ["c/1"]),
        (["a/1,0", "a/2,1"], [["own.csv"], []], []),
        (["b/1,0", "x,0", "y,0"], [[], ["own.csv"]], ["x", "y"]),
    ],
)
def test_list_may_be_for_some_of_the_datasets(
    tmp_path: Path, two: list[str], lines: list[str], labels: list[list[str]], unknown: list[str]
) -> None:
    sheet = Sheet(two, [labels_of(tmp_path, lines)])
    for name in two:
        sheet.enter(name, indices(2))

    assert [[*sheet.labels[name]] for name in two] == labels
    rows = [[row.labels for row in sheet.table.rows if row.set == name] for name in two]
    assert rows == [[DATASET, *more] for more in labels]
    (listed,) = sheet.lists
    assert (listed["keys"], listed["unknown"], listed["first"]) == (
        len(lines),
        len(unknown),
        unknown,
    )


def test_list_for_none_of_the_datasets_is_refused(tmp_path: Path, two: list[str]) -> None:
    with pytest.raises(UsageError, match=says("none-keys-see-keys-use", ..., 2)):
        Sheet(two, [labels_of(tmp_path, ["x,0", "y,0"])])


def test_rows_name_the_digests_of_their_labels(tmp_path: Path, two: list[str]) -> None:
    path = labels_of(tmp_path, ["a/1,0 3", "a/2,1"])
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    sheet = Sheet(two[:1], [path])
    sheet.enter(two[0], indices(2))

    own = open_dataset(two[0]).manifest.digest
    assert [row.sha256 for row in sheet.table.rows] == [own, sha256]
    assert sheet.columns(two[0]) == {f"own.csv sha256:{sha256}": {"a/1": "0 3", "a/2": "1"}}


def test_odd_classes_of_datasets_are_named(tmp_path: Path) -> None:
    names = [wnid(number) for number in range(10)]
    places = []
    for number, listed in enumerate((names, [*names[:9], "n99999999"], names[::-1])):
        place = tmp_path / str(number)
        places.append(str(write_names(place, [("a/1", 0)], num_classes=10, names=listed)))

    first, second, turned = places
    odd = f"not all have {names[9]} of {first}; not all have n99999999 of {second}"
    with pytest.raises(UsageError, match=says("their-class-lists-differ-score", ..., odd)):
        Sheet([first, second])
    with pytest.raises(
        UsageError, match=says("their-class-lists-differ-score", ..., "their order")
    ):
        Sheet([first, turned])
