"""The table of accuracies: which images are counted, by which labels, among which classes."""

from __future__ import annotations

import contextlib
import io
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from imagenet_prep.core.errors import ManifestError, UsageError
from imagenet_prep.dataset import predictions
from imagenet_prep.dataset.predictions import Prediction
from imagenet_prep.evaluation import Table, score
from imagenet_prep.evaluation.table import ALEXNET_ERRORS
from imagenet_prep.read import make_dataset
from tests.kit.evaluated import OFFICIAL, VALIDATION, labels_of_validation, write_names, write_real
from tests.kit.messages import says
from tests.kit.reading import BACKENDS, NEEDS, colours, dali
from tests.kit.tfrecords import wnid

__all__ = ["colours", "dali"]


def shares(table: Table) -> list[tuple[str, int, float, float, int]]:
    return [(row.labels, row.images, row.top1, row.top5, row.among) for row in table.rows]


def small(root: Path, split: str = "validation") -> Path:
    """Four images of classes 0, 1, 2 and 7 of ten."""
    heads = [("a/1", 0), ("a/2", 1), ("b/1", 2), ("b/2", 7)]
    return write_names(root, heads, num_classes=10, split=split)


def scores_of(*likeliest: Sequence[int]) -> Any:
    """Returns scores that rank these classes of ten first, in this order."""
    scores = np.zeros((len(likeliest), 10), np.float32)
    for row, classes in zip(scores, likeliest, strict=True):
        row[list(classes)] = np.arange(len(classes), 0, -1)
    return scores


def test_unlisted_class_lists_are_refused(tmp_path: Path) -> None:
    """The class list maps the WNIDs of a list of labels to classes."""
    listed = small(tmp_path / "set") / "labels.txt"
    first, second, *others = listed.read_text().splitlines(keepends=True)
    listed.write_text("".join([second, first, *others]))

    with pytest.raises(ManifestError, match=says("missing-differs", "labels.txt", "dataset.json")):
        score(scores_of([0], [1], [2], [7]), tmp_path / "set")


def test_accuracy_covers_all_classes_and_the_datasets(tmp_path: Path) -> None:
    scores = scores_of([0], [5, 1], [5, 6, 8, 9, 4, 2], [3, 4, 5, 6, 8, 0, 7])
    table = score(scores, small(tmp_path / "set", "test"))

    assert shares(table) == [("dataset", 4, 0.25, 0.5, 10), ("dataset", 4, 0.75, 1.0, 4)]
    first = table.rows[0]
    assert (first.set, first.classes, first.mean) == (str(tmp_path / "set"), 4, "images")
    text = str(table).splitlines()
    assert text[0].split() == [
        "set",
        "labels",
        "images",
        "classes",
        "chosen",
        "among",
        "top-1",
        "top-5",
    ]
    # Among ten classes, top-5 is not shown.
    assert text[1].endswith("4  4 of 10        all 10  25.00%      -")
    assert text[2].endswith("4  4 of 10         its 4  75.00%      -")
    assert json.loads(json.dumps(table.as_json()))["rows"][0]["top1"] == 0.25


def test_indices_give_no_accuracy_among_fewer_classes(
    tmp_path: Path,
) -> None:
    place = small(tmp_path / "set")
    indices = np.array([[0, 1, 2, 3, 4], [1, 0, 2, 3, 4], [0, 1, 3, 4, 5], [9, 8, 6, 7, -1]])
    by_indices = score(indices, place)
    assert shares(by_indices) == [("dataset", 4, 0.5, 0.75, 10)]
    assert says("classes-compute-accuracy-among-only", ..., "4", "10").search(str(by_indices))
    stream = io.StringIO()
    keys = ["a/1", "a/2", "b/1", "b/2"]
    said = [
        Prediction(key, label, tuple(row[row >= 0].tolist()), (0.1,) * (row >= 0).sum())
        for key, label, row in zip(keys, (0, 1, 2, 7), indices, strict=True)
    ]
    # In any order.
    predictions.write(stream, said[::-1])
    (tmp_path / "said.csv").write_text(stream.getvalue())
    assert score(tmp_path / "said.csv", place) == by_indices


@pytest.mark.parametrize(("labels", "differing"), [((0, 1, 2, 7), 0), ((0, 2, 2, 8), 2)])
def test_other_labels_of_a_file_are_counted(
    tmp_path: Path, labels: Sequence[int], differing: int
) -> None:
    """An image was relabelled, or the file without class names is of a different class list."""
    place = small(tmp_path / "set")
    stored = dict(zip(["a/1", "a/2", "b/1", "b/2"], (0, 1, 2, 7), strict=True))
    said = [
        Prediction(key, label, (own,), (1.0,))
        for (key, own), label in zip(stored.items(), labels, strict=True)
    ]
    stream = io.StringIO()
    predictions.write(stream, said)
    (tmp_path / "said.csv").write_text(stream.getvalue())
    shown = str(score(tmp_path / "said.csv", place))
    wrong = says("different-class_index-file-predictions-accuracies", ..., f"{differing} images")
    assert bool(wrong.search(shown)) is bool(differing)


def test_classes_keep_their_order_if_scores_are_equal(tmp_path: Path) -> None:
    place = write_names(tmp_path / "set", [("a/1", 0), ("a/2", 5)], num_classes=10)
    assert shares(score(np.zeros((2, 10)), place))[0] == ("dataset", 2, 0.5, 0.5, 10)


def test_lists_decide_on_labels_and_excluded_images(tmp_path: Path) -> None:
    own = tmp_path / "own.csv"
    own.write_text(f"key,class\na/1,3 {wnid(4)}\na/2,\nb/2,{wnid(7)}\nnobody,1\n")
    scores = scores_of([4], [1], [2], [0, 7])
    table = score(scores, small(tmp_path / "set"), labels=[own])

    assert shares(table)[2] == ("own.csv", 2, 0.5, 1.0, 10)
    (listed,) = table.lists
    assert (listed["keys"], listed["unknown"], listed["first"]) == (4, 1, ["nobody"])
    assert says("without-image", "1 key", "nobody").search(str(table))
    assert listed["sha256"] in str(table)
    assert table.rows[2].sha256 == listed["sha256"]


def test_list_may_name_a_class_like_a_folder(tmp_path: Path) -> None:
    names = [f"Ga\u0308rten_{index}" for index in range(10)]
    place = write_names(tmp_path / "set", [("a/1", 0), ("a/2", 7)], num_classes=10, names=names)
    (tmp_path / "own.csv").write_text("key,class\na/1,G\xe4rten_0\na/2,g\xe4rten_7\n")
    table = score(scores_of([0], [7]), place, labels=[tmp_path / "own.csv"])
    assert shares(table)[2] == ("own.csv", 2, 1.0, 1.0, 10)


def test_key_that_looks_the_same_is_named(tmp_path: Path) -> None:
    own = tmp_path / "own.csv"
    hint = "Did you mean 'a/2', which has no blank at its end?"
    scores = scores_of([4], [1], [2], [7])
    place = small(tmp_path / "set")
    own.write_text("key,class\na/1,1\nnobody,1\na/2 ,1\n")
    table = score(scores, place, labels=[own])
    assert table.notes == [f"own.csv: keys without an image: {hint}"]
    own.write_text("key,class\nnobody,1\na/2 ,1\n")
    with pytest.raises(UsageError, match=says("none-keys-see-keys-use", ..., 2)) as refused:
        score(scores, place, labels=[own])
    assert f". {hint} To see" in str(refused.value)


def test_number_in_a_list_may_name_a_class(tmp_path: Path) -> None:
    """Classes that are named by numbers, in another order: the name precedes the index."""
    names = [str(9 - index) for index in range(10)]
    place = write_names(tmp_path / "set", [("a/1", 0), ("a/2", 7)], num_classes=10, names=names)
    (tmp_path / "own.csv").write_text("key,class\na/1,9\na/2,2\n")
    table = score(scores_of([0], [7]), place, labels=[tmp_path / "own.csv"])

    assert shares(table)[2] == ("own.csv", 2, 1.0, 1.0, 10)


def test_the_mean_of_classes_weighs_classes_equally(tmp_path: Path) -> None:
    """Three images of class 0 and one of class 1; only the list has the labels."""
    heads = [(name, int(n == 3)) for n, name in enumerate(VALIDATION[:4])]
    annotations = {name: {"correct": [OFFICIAL[5]]} for name in VALIDATION[:4]}
    path = tmp_path / "h.json"
    path.write_text(json.dumps({"initial_annots": annotations, "problematic_images": {}}))
    indices = np.full((4, 5), -1)
    indices[0, 0] = indices[3, 1] = 5
    table = score(indices, write_names(tmp_path / "set", heads), labels=[path])
    assert shares(table)[1] == ("h.json", 4, pytest.approx(1 / 6), pytest.approx(2 / 3), 1000)
    assert table.rows[1].mean == "classes"
    assert says("mean-classes", "h.json").search(str(table))


def wrong(name: str, content: str, expected: str) -> Any:
    return pytest.param(content, expected, id=name)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        wrong(
            "unknown class", "key,class\na/1,n99999999\na/2,1\n", r"entry 1: not a class of .*set"
        ),
        wrong("the last ID", "key,class\na/1,10\n", "up to 9. Replace ILSVRC2012_IDs"),
        wrong("other images", "key,class\nx,1\n", "none of its 1 keys is in "),
        wrong("real", json.dumps([[]] * 50_000), "none of its 50,000 keys is in "),
    ],
)
def test_lists_of_different_datasets_are_refused(
    tmp_path: Path, content: str, expected: str
) -> None:
    path = tmp_path / "list"
    path.write_text(content)
    with pytest.raises(UsageError, match=expected):
        score(scores_of(*[[0]] * 4), small(tmp_path / "set"), labels=[path])


def test_real_needs_the_classes_of_ilsvrc2012(tmp_path: Path) -> None:
    write_real(tmp_path / "real.json", labels_of_validation())
    place = write_names(tmp_path / "set", [(VALIDATION[0], 0), (VALIDATION[1], 1)], num_classes=10)
    with pytest.raises(UsageError, match=says("ilsvrc2012-s-1-000-classes", "real.json", "set")):
        score(scores_of([0], [1]), place, labels=[tmp_path / "real.json"])


def test_ilsvrc_ids_are_recognised_by_images_per_class(tmp_path: Path) -> None:
    place = write_names(tmp_path / "set", [(f"a/{n}", n) for n in range(1000)])
    path = tmp_path / "list"
    rng = random.Random(7)
    for ids, is_order in (
        (rng.sample(range(1000), 1000), True),
        (rng.choices(range(1000), k=1000), False),
    ):
        path.write_text("key,class\n" + "".join(f"a/{n},{each}\n" for n, each in enumerate(ids)))
        if is_order:
            with pytest.raises(
                UsageError, match=says("classes-numbered-different-order-ilsvrc2012_ids")
            ):
                score(np.zeros((1000, 5), int), place, labels=[path])
        else:
            assert score(np.zeros((1000, 5), int), place, labels=[path]).rows[1].images == 1000


@pytest.mark.parametrize(("num_moved", "is_order"), [(500, False), (501, True)])
def test_list_is_refused_if_most_labels_differ(
    tmp_path: Path, num_moved: int, is_order: bool
) -> None:
    place = write_names(tmp_path / "set", [(f"a/{n}", n) for n in range(1000)])
    ids = [(n + 1) % num_moved if n < num_moved else n for n in range(1000)]
    path = tmp_path / "list"
    path.write_text("key,class\n" + "".join(f"a/{n},{each}\n" for n, each in enumerate(ids)))

    with contextlib.ExitStack() as stack:
        if is_order:
            message = says("classes-numbered-different-order-ilsvrc2012_ids")
            stack.enter_context(pytest.raises(UsageError, match=message))
        assert score(np.zeros((1000, 5), int), place, labels=[path]).rows[1].images == 1000


@pytest.mark.parametrize("form", ["csv", "real"])
def test_ilsvrc_ids_given_as_indices_are_recognised(tmp_path: Path, form: str) -> None:
    """See reassessed-imagenet#4. An ID is a different number for each class, and always the same
    one.
    """
    labels = labels_of_validation()
    place = write_names(tmp_path / "set", list(zip(VALIDATION, labels, strict=True)))
    id_of = random.Random(5).sample(range(1000), 1000)
    rng = random.Random(6)
    path = tmp_path / "ids"
    # One of ten disagrees with the dataset anyway.
    ids = [id_of[each if rng.random() < 0.9 else rng.randrange(1000)] for each in labels]
    if form == "csv":
        lines = (f"{key},{each}\n" for key, each in zip(VALIDATION, ids, strict=True))
        path.write_text("".join(["key,class\n", *lines]))
    else:
        path.write_text(json.dumps([[each] for each in ids]))
    with pytest.raises(UsageError, match=says("classes-numbered-different-order-ilsvrc2012_ids")):
        score(np.zeros((50_000, 5), np.int32), place, labels=[path])


def test_wnids_and_labels_that_disagree_are_accepted(tmp_path: Path) -> None:
    labels = labels_of_validation()
    rng = random.Random(6)
    place = write_names(tmp_path / "set", list(zip(VALIDATION, labels, strict=True)))
    indices = np.zeros((50_000, 5), np.int32)
    path = tmp_path / "labels"
    wnids = rng.sample(OFFICIAL, 1000)
    named = (f"{key},{wnids[each]}\n" for key, each in zip(VALIDATION, labels, strict=True))
    path.write_text("".join(["key,class\n", *named]))
    assert score(indices, place, labels=[path]).rows[1].images == 50_000
    write_real(path, labels, random_labels=True)
    assert score(indices, place, labels=[path]).rows[1].images == 46_837


@pytest.mark.parametrize(
    ("given", "keys", "expected"),
    [
        (
            np.zeros((4, 9)),
            None,
            says("predictions-expected-images-finite-floats", "float64", "[4, 9]", "10"),
        ),
        (np.full((4, 10), np.nan), None, says("predictions-expected-images-finite-floats")),
        (
            np.full((4, 5), 10),
            None,
            says("predictions-expected-images-finite-floats", ..., ..., ..., "5", "10"),
        ),
        (
            np.zeros((4, 4), int),
            None,
            says("predictions-expected-images-finite-floats", ..., ..., ..., "5", "10"),
        ),
        (np.zeros(4), None, "expected"),
        (
            np.zeros((3, 10)),
            None,
            says("expected-same-number-predictions-keys", ..., "4 images", "3 predictions"),
        ),
        (np.zeros((4, 10)), ["a/1", "a/2", "b/1"], "4 predictions and 3 keys; keys that differ"),
        (np.zeros((4, 10)), ["a/1", "a/2", "b/1", "c"], says("keys-differ", "b/2, c")),
        (np.zeros((5, 10)), ["a/1", "a/2", "b/1", "b/2", "b/2"], "5 predictions and 4 keys"),
        (np.zeros((4, 10)), ["a/1", "a/2", "b/1", "b/2", "b/2"], "4 predictions and 4 keys"),
    ],
)
def test_predictions_of_other_images_or_classes_are_refused(
    tmp_path: Path, given: Any, keys: list[str] | None, expected: str
) -> None:
    with pytest.raises(UsageError, match=expected):
        score(given, small(tmp_path / "set"), keys=keys)


def test_keys_give_the_order(tmp_path: Path) -> None:
    place = small(tmp_path / "set")
    scores = scores_of([7], [2], [1], [0])
    assert [row.top1 for row in score(scores, place).rows] == [0, 0]
    # Also among only the classes of the dataset.
    table = score(scores, place, keys=["b/2", "b/1", "a/2", "a/1"])
    assert [row.top1 for row in table.rows] == [1, 1]
    assert [row.among for row in table.rows] == [10, 4]


KEYS = ["b/2", "b/1", "a/2", "a/1"]


def tensor_of_keys() -> Any:
    """Returns keys as NumPy gets them from a string tensor of TensorFlow."""

    class Tensor:
        def __init__(self, values: list[Any]) -> None:
            self.values = values

        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            return np.array(self.values, object)

        def __iter__(self) -> Any:
            raise AssertionError("iterating over a tensor makes a tensor per key")

    return Tensor([key.encode() for key in KEYS])


FORMS_OF_KEYS: dict[str, Any] = {
    "list": KEYS,
    "tuple": tuple(KEYS),
    "keys of a dict": dict.fromkeys(KEYS).keys(),
    "list of bytes": [key.encode() for key in KEYS],
    "array": np.array(KEYS),
    "array of bytes": np.array([key.encode() for key in KEYS]),
    "array of objects": np.array(KEYS, object),
    "array of objects that are bytes": np.array([key.encode() for key in KEYS], object),
    "list of NumPy's strings": list(np.array(KEYS)),
    "list of scalar tensors": [np.array(key.encode(), object) for key in KEYS],
    "tensor": tensor_of_keys(),
}


@pytest.mark.parametrize("keys", FORMS_OF_KEYS.values(), ids=FORMS_OF_KEYS)
def test_keys_may_have_any_type_of_readers(tmp_path: Path, keys: Any) -> None:
    place = small(tmp_path / "set")
    scores = scores_of([7], [2], [1], [0])
    assert score(scores, place, keys=keys).rows[0].top1 == 1
    indices = np.argsort(-scores, 1)[:, :5]
    assert score(indices, place, keys=keys).rows[0].top1 == 1


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ([b"a/1", b"a/2", b"b/1", b"\xff"], says("keys-differ", "b/2, �")),
        ([1, 2, 3, 4], says("keys-differ", "1, 2, 3")),
        ([np.array(["a/1", "a/2"]), np.array(["b/1", "b/2"])] * 2, says("keys-differ")),
    ],
)
def test_keys_missing_from_the_dataset_are_refused(
    tmp_path: Path, keys: Any, expected: str
) -> None:
    with pytest.raises(UsageError, match=expected):
        score(np.zeros((4, 10)), small(tmp_path / "set"), keys=keys)


@pytest.mark.parametrize("framework", ["numpy", pytest.param("tensorflow", marks=pytest.mark.tf)])
@pytest.mark.parametrize("backend", BACKENDS)
def test_keys_of_every_reader_are_accepted(
    colours: Path, backend: Any, framework: Any, request: pytest.FixtureRequest
) -> None:
    """The loop in docs/evaluation.md passes keys without a conversion."""
    for needed in (NEEDS.get(backend), "tf" if framework == "tensorflow" else None):
        if needed is not None:
            request.getfixturevalue(needed)
    fields = ("class_index", "mask", "key")
    settings: dict[str, Any] = {"backend": backend, "framework": framework, "fields": fields}
    keys: list[Any] = []
    scores = []
    reader = make_dataset(colours, "validation", 4, 16, **settings)
    for batch in reader:
        mask = np.asarray(batch["mask"])
        keys.extend(np.asarray(batch["key"])[mask])
        scores.append(np.eye(reader.num_classes)[np.asarray(batch["class_index"])[mask]])
    order = np.random.default_rng(1).permutation(len(keys))
    shuffled = np.concatenate(scores)[order]

    assert score(shuffled, colours, keys=[keys[n] for n in order]).rows[0].top1 == 1


def test_the_order_of_scores_does_not_matter(
    tmp_path: Path,
) -> None:
    place = small(tmp_path / "set")
    keys = ["a/1", "a/2", "b/1", "b/2"]
    # No image has the most likely class, so only the choice among its four classes is right.
    scores = scores_of([3, 0], [4, 1], [5, 0], [6, 7])
    expected = [("dataset", 4, 0.0, 1.0, 10), ("dataset", 4, 0.75, 1.0, 4)]
    scores[2, 2] = 0.5
    for order in ([0, 1, 2, 3], [2, 0, 3, 1], [3, 2, 1, 0]):
        table = score(scores[order], place, keys=[keys[each] for each in order])
        assert shares(table) == expected


def test_all_classes_of_an_object_are_correct(tmp_path: Path) -> None:
    """In ObjectNet, images of class 1 may also be called 4."""
    answers = {wnid(1): [wnid(1), wnid(4)], "n99999999": [wnid(2), "n99999998"]}
    heads = [("a/1", 1), ("a/2", 1), ("b/1", 6)]
    place = write_names(tmp_path / "o", heads, num_classes=10, split="test", answers=answers)
    table = score(scores_of([4], [1], [9, 4, 6]), place)
    assert shares(table) == [("dataset", 3, 2 / 3, 1.0, 10), ("dataset", 3, 2 / 3, 1.0, 4)]


def test_datasets_that_cannot_be_scored_are_refused(tmp_path: Path) -> None:
    heads = [("a/1", 0), ("a/2", 1)]
    odd = write_names(tmp_path / "o", heads, edition="imagenet-o", split="test")
    with pytest.raises(UsageError, match=says("imagenet-o-images-show-none-classes")):
        score(np.zeros((2, 1000)), odd)
    with pytest.raises(UsageError, match=r"no dataset\.json"):
        score(np.zeros((2, 1000)), tmp_path)
    with pytest.raises(UsageError, match=says("two-label-lists-same-file")):
        (tmp_path / "x").mkdir()
        for path in (tmp_path / "own", tmp_path / "x" / "own"):
            path.write_text("key,class\na/1,1\n")
        score(
            np.zeros((4, 10)),
            small(tmp_path / "set"),
            labels=[tmp_path / "own", tmp_path / "x" / "own"],
        )


@pytest.mark.parametrize("missing", [None, "fog", "fog/3"])
def test_corruption_errors_are_relative_to_alexnets(tmp_path: Path, missing: str | None) -> None:
    heads = []
    right = []
    names = [*ALEXNET_ERRORS, "speckle_noise"]
    for number, name in enumerate(names):
        for severity in range(1, 6):
            for image in range(20):
                if missing not in (name, f"{name}/{severity}"):
                    heads.append((f"{name}/{severity}/{VALIDATION[image]}", image % 10))
                    # Each higher severity has one more error.
                    right.append(image >= severity + number)
    indices = np.full((len(heads), 5), -1)
    indices[:, 0] = [
        label if is_right else 9 - label for (_, label), is_right in zip(heads, right, strict=True)
    ]
    place = write_names(tmp_path / "c", heads, num_classes=10, split="test")
    table = score(indices, place)

    found = table.corruptions[str(place)]
    errors = {name: [(s + n) / 20 for s in range(1, 6)] for n, name in enumerate(names)}
    for name, each in found["corruptions"].items():
        there = [errors[name][int(severity) - 1] for severity in each["errors"]]
        assert list(each["errors"].values()) == pytest.approx(there)
        if name == "speckle_noise" or len(there) < 5:
            assert each["ce"] is None
        else:
            assert each["ce"] == pytest.approx(sum(there) / 5 / ALEXNET_ERRORS[name])
    if missing is None:
        ces = [sum(errors[name]) / 5 / ALEXNET_ERRORS[name] for name in ALEXNET_ERRORS]
        assert found["mce"] == pytest.approx(sum(ces) / 15)
        assert f"mCE {found['mce']:.2%}" in str(table)
    else:
        assert found["mce"] is None
        assert says("mce-needs-five-severities-15").search(str(table))


def test_alexnets_errors_equal_the_papers() -> None:
    """Table 1 of the paper prints them as integer percentages."""
    assert [round(100 * each) for each in ALEXNET_ERRORS.values()] == [
        89,
        89,
        92,
        82,
        83,
        79,
        80,
        87,
        83,
        82,
        56,
        85,
        65,
        72,
        61,
    ]
