"""The splits and images on which a run is evaluated."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import re
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from imagenet_prep import evaluation, verbs
from imagenet_prep import train as train_verb
from imagenet_prep.codec import planes
from imagenet_prep.core.errors import DataDamagedError, UsageError
from imagenet_prep.core.world import World
from imagenet_prep.dataset import manifest, predictions, schema
from imagenet_prep.dataset.predictions import Prediction
from imagenet_prep.trainer import checkpoint, feed, loop
from imagenet_prep.trainer import evaluation as trainer_evaluation
from imagenet_prep.trainer.comm import Comm
from imagenet_prep.trainer.config import TrainConfig
from imagenet_prep.trainer.evaluation import Predicted
from tests.kit import blocks, layouts
from tests.kit.evaluated import write_names
from tests.kit.installed import Installed
from tests.kit.messages import says
from tests.kit.numpy_learner import NumpyLearner
from tests.kit.photographs import photograph
from tests.kit.tfrecords import wnid
from tests.kit.training import NUM_TRAIN, NUM_VALIDATION, arguments, flags, make_shades, rows

Train = Callable[..., Any]


@pytest.fixture
def tabulate(shades: Path, monkeypatch: pytest.MonkeyPatch, installed: Installed) -> Train:
    """As `train_by_numpy`, but by the verb, which opens the datasets and lists of the table."""
    monkeypatch.setattr(loop, "connect", NumpyLearner)
    planes.require()  # Loading it looks for Pillow.
    installed.packages(lambda _: True)

    def run(log_dir: Path, **more: Any) -> Any:
        settings = flags(shades, log_dir, framework="mxnet", backend="native") | more
        return train_verb.train(TrainConfig(**settings))

    return run


@pytest.mark.parametrize(
    ("there", "watched", "last"),
    [
        (("train", "validation"), "validation", "validation"),
        (("train", "holdout"), "holdout", "holdout"),
        (("train", "holdout", "validation"), "holdout", "validation"),
    ],
    ids=" ".join,
)
def test_holdout_is_watched_and_validation_is_evaluated_last(
    there: Sequence[str], watched: str, last: str
) -> None:
    assert feed.splits(there, "set") == (watched, last)


@pytest.mark.parametrize("available", [("train", "validation"), ("train", "holdout", "validation")])
@pytest.mark.parametrize("settings", [{}, {"no_evaluation": True}, {"also": ("/v2", "/sketch")}])
def test_all_readers_of_a_run_are_closed(
    available: tuple[str, ...], settings: dict[str, Any]
) -> None:
    opened: dict[str, int] = {}

    def open_reader(name: str, *_: Any) -> Any:
        assert name not in opened
        opened[name] = 0

        class Opened:
            splits = available

            def close(self) -> None:
                opened[name] += 1

        return Opened()

    feed.Inputs(TrainConfig(data_dir="/set", **settings), World(), open_reader).close()

    evaluated = () if "no_evaluation" in settings else available[1:]
    assert opened == dict.fromkeys(["train", *evaluated, *settings.get("also", ())], 1)


@pytest.mark.parametrize(("batch_size", "ranks"), [(256, 1), (100, 4), (640_583, 2), (640_584, 2)])
def test_synthetic_ranks_share_the_steps_of_imagenet(batch_size: int, ranks: int) -> None:
    """The ranks alternate between two hosts, so several have the same local rank."""
    images = set()
    for rank in range(ranks):
        world = World(rank, ranks, rank // 2, max(1, ranks // 2))
        noise = feed.Noise(min(batch_size, 4), 1, world)
        (batch, *_) = noise
        images.add(batch["images"].tobytes())
        assert sum(1 for _ in feed.Noise(batch_size, 1, world)) == 1_281_167 // (batch_size * ranks)

    assert len(images) == ranks


def test_a_dataset_without_evaluation_splits_is_refused(
    train_by_numpy: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("imagenet_prep.read.Reader.splits", ("train",))
    with pytest.raises(UsageError, match=says("no-split-evaluate-only-prepare")):
        train_by_numpy(tmp_path / "run")
    assert train_by_numpy(tmp_path / "run", no_evaluation=True) is None


def test_holdout_is_evaluated_if_validation_is_missing(
    train_by_numpy: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    held = make_shades(tmp_path / "set", "holdout", held=(1, 3))
    score = train_by_numpy(tmp_path / "run", data_dir=str(held), eval_every=1.0)

    said = capsys.readouterr().out
    assert says("dataset-no-validation-split-evaluations").search(said)
    assert said.count("checkpoint_time(UTC)  2 of 4 classes\n") == len(
        says("step-epoch-top1-top5-loss").findall(said)
    )
    found = rows(tmp_path / "run", "evaluation")
    assert {(row["split"], row["examples"]) for row in found} == {("holdout", NUM_VALIDATION)}
    assert found[-1]["top1"] == score.top1
    assert rows(tmp_path / "run", "test") == []


def test_exclude_and_classes_apply_to_training_and_evaluation(
    train_by_numpy: Train, shades: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IMAGENET_PREP_CACHE", str(tmp_path / "kept"))
    keys = tmp_path / "bad"
    keys.write_text("".join(f"{wnid(n % 4)}/{wnid(n % 4)}_{n}.JPEG\n" for n in (0, 4, 5, 8)))

    def start(name: str, **more: Any) -> dict[str, Any]:
        train_by_numpy(tmp_path / name, num_epochs=1.0, batch_size=4, **more)
        (begun,) = rows(tmp_path / name, "start")
        (row,) = rows(tmp_path / name, "evaluation")
        return {name: begun[name] for name in ("num_examples", "num_classes")} | row

    of_train, of_validation = ([n % 4 for n in range(*ends)] for ends in ((67,), (67, 89)))
    left_out = start("excluded", exclude=str(keys))
    assert (left_out["num_examples"], left_out["examples"]) == (NUM_TRAIN - 4, NUM_VALIDATION)
    chosen = {"classes": ("3", wnid(0))}
    some, dense = (start(f"{n}", **chosen, **more) for n, more in enumerate(({}, {"remap": True})))
    for each in (some, dense):
        assert each["num_examples"] == sum(of_train.count(label) for label in (0, 3))
        assert each["examples"] == sum(of_validation.count(label) for label in (0, 3))
    assert (some["num_classes"], dense["num_classes"]) == (4, 2)
    # A checkpoint with different classes belongs to a different run.
    with pytest.raises(
        UsageError, match=says("network-classes-command-output-here", "n00001000, n00001003")
    ):
        train_by_numpy(tmp_path / "1", num_epochs=1.0, batch_size=4, **chosen)


def test_the_file_of_predictions_has_every_evaluated_image(
    train_by_numpy: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IMAGENET_PREP_CACHE", str(tmp_path / "kept"))
    file = tmp_path / "made" / "said.csv"

    def said(name: str, **more: Any) -> list[Prediction]:
        train_by_numpy(tmp_path / name, **more)
        score = train_by_numpy(
            tmp_path / name, evaluate=True, predictions=str(file), batch_size=5, **more
        )
        found = list(predictions.read(file, [""] * 4))
        assert all(each.key.startswith(f"{each.wnid}/") for each in found)
        assert len(found) == score.examples
        assert np.mean([not each.is_wrong for each in found]) == pytest.approx(score.top1)
        for each in found:
            assert list(each.shares) == sorted(each.shares, reverse=True)
            assert sum(each.shares) == pytest.approx(1, abs=1e-4)
        return found

    whole = said("whole")
    numbers = range(NUM_TRAIN, NUM_TRAIN + NUM_VALIDATION)
    # In the order of the records.
    keys = [f"{wnid(n % 4)}/{wnid(n % 4)}_{n}.JPEG" for n in numbers]
    assert [each.key for each in whole] == keys
    assert [each.class_index for each in whole] == [n % 4 for n in numbers]
    assert {frozenset(each.classes) for each in whole} == {frozenset(range(4))}
    # Class indices refer to the class list, even if the network numbers its classes differently.
    dense = said("dense", classes=("3", "0"), remap=True)
    assert [each.class_index for each in dense] == [n % 4 for n in numbers if n % 4 in (0, 3)]
    assert {frozenset(each.classes) for each in dense} == {frozenset((0, 3))}


def test_predictions_need_the_names_of_files(
    train_by_numpy: Train, shades: Path, tmp_path: Path
) -> None:
    nameless = Path(shutil.copytree(shades, tmp_path / "nameless"))
    path = nameless / schema.MANIFEST
    made = manifest.loads(path.read_bytes(), "set")
    path.write_bytes(dataclasses.replace(made, lacks={schema.FILENAME: schema.ABSENT}).dumps())
    train_by_numpy(tmp_path / "run", num_epochs=1.0)
    file = tmp_path / "said.csv"
    more: dict[str, Any] = {"data_dir": str(nameless), "evaluate": True, "predictions": str(file)}

    with pytest.raises(UsageError, match=says("records-lack-file-names-predictions")):
        train_by_numpy(tmp_path / "run", **more)
    assert not file.exists()


class _Two(Comm):
    """Rank 0 of two. The batch of rank 1 is the same, with reversed keys and labels."""

    world = World(0, 2)

    def gather(self, array: Any, what: str) -> Any:
        assert array.dtype == np.float64
        if what == "longest key":
            assert array.tolist() == [80]
            return np.stack([array - 79, array])
        # A row has 85 bytes, and 128 bytes for its key.
        assert (what, array.shape) == ("predictions-213", (3 * 213,))
        return np.stack([array, array.reshape(3, 213)[::-1].ravel()])


def reader_of(class_numbers: Sequence[int], present: Sequence[int]) -> Any:
    """Returns the facts about a reader that decide on the predictions."""
    wnids = [f"class {number}" for number in class_numbers]
    return SimpleNamespace(
        class_numbers=class_numbers,
        present=present,
        class_list=SimpleNamespace(wnids=wnids),
        classes_digest="0a",
    )


def test_predictions_of_all_ranks_are_merged(tmp_path: Path) -> None:
    predicted = Predicted(_Two(), reader_of((10, 11), (1,)))
    key = "ä" * 40
    batch = {
        "key": np.array([key.encode(), b"b", b""], object),
        "class_index": np.array([0, 1, -1]),
        "mask": np.array([True, True, False]),
    }
    predicted.see(batch, np.array([[2.0, 0.0], [np.nan, 0.0], [0.0, 1.0]]))
    predicted.write(tmp_path / "said.csv", {"more": {key: "3"}})

    found = list(predictions.read(tmp_path / "said.csv"))
    assert [(each.key, each.class_index, each.wnid) for each in found] == [
        (key, 10, "class 10"),
        ("b", 11, "class 11"),
        ("b", 11, "class 11"),
        (key, 10, "class 10"),
    ]
    assert found[0].classes == (10, 11)
    assert found[0].shares == pytest.approx((0.880797, 0.119203))
    assert (found[1].classes, found[1].shares, found[1].is_wrong) == ((), (), True)
    assert (tmp_path / "said.csv").read_text().splitlines()[0].endswith(",p5,class sha256:0a,more")
    classes, within, keys = predicted.top5()
    assert keys == [key, "b", "b", key]
    assert classes[0].tolist() == [10, 11, -1, -1, -1]
    assert [row[0] for row in classes.tolist()] == [10, -1, -1, 10]
    assert [row[0] for row in within.tolist()] == [11, -1, -1, 11]
    assert (within[:, 1:] == -1).all()


def test_training_and_score_rank_tied_logits_equally(tmp_path: Path) -> None:
    """Logits of bfloat16 are often equal. Probabilities that are all 0 have an order too."""
    random = np.random.default_rng(0)
    logits = random.integers(-3, 3, (400, 12)).astype(np.float64)
    logits[:20] = 0
    logits[20:40] = random.choice([0, -900, -1000], (20, 12))
    logits[40:50, 3], logits[50:60, 4], logits[60:70] = np.nan, np.inf, np.nan
    labels = random.integers(0, 12, 400)
    there = np.arange(400) < 390
    labels[~there] = -1
    keys = np.array([f"{number}" if there[number] else "" for number in range(400)])
    _, top1, top5, _ = trainer_evaluation.count(logits, labels, there)
    predicted = Predicted(Comm(), reader_of(range(12), range(12)))
    predicted.see({"key": keys, "class_index": labels, "mask": there}, logits)
    predicted.write(tmp_path / "said.csv", {})
    said = list(predictions.read(tmp_path / "said.csv", [""] * 12))

    assert (top1, len(said)) == (sum(not each.is_wrong for each in said), 390)
    assert top5 == sum(each.class_index in each.classes for each in said)
    classes, within, _ = predicted.top5()
    assert (classes == within).all()
    assert (classes[:, 0] == labels[there]).sum() == top1
    sound = there & np.isfinite(logits).all(1)
    assert (predictions.top(logits[sound])[:, 0] == labels[sound]).sum() == top1
    # A network with constant outputs is right about the images of the first class.
    assert trainer_evaluation.count(np.zeros((12, 12)), np.arange(12), np.ones(12))[1] == 1


def test_the_last_evaluation_fills_the_table_of_accuracies(
    train_by_numpy: Train, tabulate: Train, shades: Path, tmp_path: Path
) -> None:
    """Training, `--evaluate` and the file of predictions give the same rows."""
    numbers = range(NUM_TRAIN, NUM_TRAIN + NUM_VALIDATION)
    keys = [f"{wnid(n % 4)}/{wnid(n % 4)}_{n}.JPEG" for n in numbers]
    own = tmp_path / "own.csv"
    own.write_text(f"key,class\n{keys[0]},{wnid(0)} 3\n{keys[1]},\n{keys[2]},2\nx/none.JPEG,0\n")
    few = make_shades(tmp_path / "few", "holdout", classes=(1, 3))
    said = tmp_path / "said.csv"
    asked = {"labels": (str(own),), "also": (str(few),)}
    tabulate(tmp_path / "run", **asked)
    tabulate(tmp_path / "run", **asked, evaluate=True, predictions=str(said), batch_size=5)

    first, again = rows(tmp_path / "run", "table")
    assert first["rows"] == again["rows"]
    by_file = evaluation.score(said, shades, labels=[own])
    assert [dataclasses.asdict(row) for row in by_file.rows] == first["rows"][:2]
    named = [(row["set"], row["labels"], row["images"], row["among"]) for row in first["rows"]]
    assert named == [
        (str(shades), "dataset", 22, 4),
        (str(shades), "own.csv", 2, 4),
        (str(few), "dataset", 22, 4),
        (str(few), "dataset", 22, 2),
        # Both datasets have an image with this key.
        (str(few), "own.csv", 1, 4),
        (str(few), "own.csv", 1, 2),
    ]
    assert first["rows"][3]["top1"] >= first["rows"][2]["top1"]
    (listed,) = first["lists"]
    digest = hashlib.sha256(own.read_bytes()).hexdigest()
    assert (listed["sha256"], listed["unknown"], listed["first"]) == (digest, 1, ["x/none.JPEG"])
    # The checkpoint and the file of predictions name it too.
    found = checkpoint.load_latest(tmp_path / "run")
    assert found is not None
    assert found.facts["labels"] == {"own.csv": digest}
    header, *lines = (line.split(",") for line in said.read_text().splitlines())
    assert header[12].startswith("class sha256:")
    assert header[13:] == [f"own.csv sha256:{digest}"]
    assert [line[-1] for line in lines[:4]] == ["0 3", "", "2", ""]


def test_documented_evaluation_prints_its_table(
    tabulate: Train, shades: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With four classes for 1,000, two for 200, and no list in the form of ReaL."""
    line, _, *documented = blocks.block("$ evaluation.md: One table").text.strip().splitlines()
    # Only the first dataset has these images.
    numbers = range(NUM_TRAIN, NUM_TRAIN + NUM_VALIDATION)
    lines = [f"{wnid(n % 4)}/{wnid(n % 4)}_{n}.JPEG,0\n" for n in numbers]
    own = tmp_path / "own.csv"
    own.write_text("".join(["key,class\n", *lines]))
    for name, classes in (("v2", (1, 2, 3, 0)), ("a", (1, 0)), ("r", (3, 2))):
        make_shades(tmp_path / "sets" / name, classes=classes)
    here = {" sets": f" {tmp_path}/sets", "real.json": str(own), "/data/imagenet-480": str(shades)}
    words = blocks.small(line, {**here, " run ": f" {tmp_path}/run "}).split()
    tabulate(tmp_path / "run")
    capsys.readouterr()
    small = flags(shades, tmp_path / "run", framework="mxnet", backend="native")
    train_verb.train(train_verb.parse([*words[2:], *arguments(small)]))

    text = capsys.readouterr().out.replace(f"{tmp_path}/", "").replace(str(shades), "DATA")
    printed = text[text.index("set  ") :].splitlines()
    *table, of_list = documented
    for row, said in zip(table, printed[: len(table)], strict=True):
        row = row.replace("/data/imagenet-480", "DATA").replace("real.json", "own.csv")
        assert shape(row) == shape(said)
    form = of_list.replace("real.json: ReaL as published, 50,000", "own.csv: CSV, 22")
    digest = hashlib.sha256(own.read_bytes()).hexdigest()
    assert printed[len(table) :] == [re.sub(r"\w{64}", digest, form)]


def shape(row: str) -> list[str]:
    """Returns the words of a row of the table, without numbers."""
    return [word for word in row.split() if not re.fullmatch(r"[\d,.]+%?|…|-", word)]


def test_all_new_photographs_are_evaluated(tabulate: Train, tmp_path: Path) -> None:
    """A folder with only class folders becomes the split train."""
    for number in range(10):
        layouts.write(tmp_path / f"in/{wnid(number % 4)}/{number}.jpg", photograph(24, 20, number))
    verbs.prepare(tmp_path / "in", tmp_path / "later")
    tabulate(tmp_path / "run")
    tabulate(tmp_path / "run", evaluate=True, also=(str(tmp_path / "later"),))
    *_, last = rows(tmp_path / "run", "table")
    assert [(row["set"], row["images"]) for row in last["rows"][1:]] == [
        (str(tmp_path / "later"), 10)
    ]


def test_also_refuses_datasets_of_different_classes(tabulate: Train, tmp_path: Path) -> None:
    other = write_names(tmp_path / "other", [("a/1", 0), ("a/2", 1)], num_classes=5)
    with pytest.raises(
        UsageError, match=says("their-class-lists-differ-score", ..., "not all have n")
    ):
        tabulate(tmp_path / "run", also=(str(other),))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("seed", range(4))
def test_sums_of_a_batch_equal_its_images(seed: int) -> None:
    rng = np.random.default_rng(seed)
    logits = np.round(rng.normal(0, 3, (40, 7)), 1)  # with equal logits
    labels = rng.integers(0, 7, 40)
    mask = rng.random(40) < 0.8
    expected = np.zeros(4)
    for row, label, is_counted in zip(logits, labels, mask, strict=True):
        if not is_counted:
            continue
        # If logits are equal, the first class is ahead.
        ahead = sum(value > row[label] for value in row)
        ahead += sum(value == row[label] for value in row[:label])
        loss = math.log(sum(math.exp(value) for value in row)) - row[label]
        expected += (1, ahead < 1, ahead < 5, loss)

    np.testing.assert_allclose(trainer_evaluation.count(logits, labels, mask), expected)
    assert expected[1] < expected[2] < expected[0] < 40


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_image_without_finite_logits_is_wrong(value: float) -> None:
    logits = np.zeros((2, 7))
    logits[:, 0] = 1
    logits[1, 3] = value
    found = trainer_evaluation.count(logits, np.zeros(2, int), np.ones(2, bool))

    assert found[:3].tolist() == [2, 1, 1]


@pytest.mark.parametrize("counted", [7, 8, 9])
def test_each_example_is_counted_exactly_once(counted: int) -> None:
    """Ranks that read an example twice, or lack one, have no score."""
    mask = np.arange(12) < counted
    batch = {"images": np.eye(12)[:, :4], "class_index": np.zeros(12, int), "mask": mask}
    run = partial(trainer_evaluation.evaluate, np.asarray, [cast("Any", batch)], 8, Comm())
    if counted == 8:
        assert run().examples == 8
        return
    with pytest.raises(DataDamagedError, match=says("evaluation-counted-examples-expected-run")):
        run()
