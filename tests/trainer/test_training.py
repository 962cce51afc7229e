"""Runs in one process learn, report, save, and resume as if they had never ended."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import re
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from imagenet_prep import train as verb
from imagenet_prep.core.errors import (
    DataDamagedError,
    UsageError,
)
from imagenet_prep.core.world import World
from imagenet_prep.trainer import checkpoint, evaluation, recipe
from imagenet_prep.trainer.comm import Comm
from imagenet_prep.trainer.config import TrainConfig
from imagenet_prep.trainer.interface import Interface
from tests.kit import dropouts
from tests.kit.installed import Installed
from tests.kit.lengths import long_except
from tests.kit.limits import Limits
from tests.kit.messages import says, wording
from tests.kit.system import System
from tests.kit.training import (
    NUM_TRAIN,
    NUM_VALIDATION,
    arrays_of,
    assert_same_bits,
    flags,
    network,
    rows,
)

pytestmark = pytest.mark.tf
Train = Callable[..., Any]


# The settings of the finished run, which every run in its folder must repeat.
SETTINGS = {"num_epochs": 8.0, "checkpoint_every": 6, "keep": 12}
LAST = 64


@pytest.fixture(scope="module")
def trained(tf: Any, shades: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with the checkpoints of steps 6, 12, ... 60, 64; read-only.

    The file `printed` in its folder has its standard output.
    """
    from imagenet_prep.train import train as verb

    run = tmp_path_factory.mktemp("trained") / "run"
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as out:
        patch.setattr("imagenet_prep.trainer.tensorflow_learner.build", network)
        verb(TrainConfig(**flags(shades, run, **SETTINGS)))
    (run / "printed").write_text(out.getvalue())
    return run


@pytest.fixture
def finished(trained: Path, tmp_path: Path) -> Path:
    """A copy of the finished run."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


def test_a_run_learns_and_prints_the_tutorials_table(trained: Path) -> None:
    (score,) = rows(trained, "evaluation")
    assert score["examples"] == NUM_VALIDATION
    assert score["top1"] > 0.9
    lines = (trained / "printed").read_text().splitlines()
    assert re.fullmatch(r"Python 3\.\d+\.\d+, TensorFlow \d+\.\d+\.\d+", lines[0])
    assert lines[-3] == "Evaluating 22 images of validation"
    assert lines[1] == "1 rank x 8 images = 8 per step; 67 images, 4 classes, 8 steps per epoch"
    assert lines[3] == "JPEGs are decoded by tfdata on the CPU"
    assert lines[4] == f"  {wording('step-epoch-speed-loss-finloss')}"
    row = re.compile(r" *\d+ +\d+\.\d +\d+\.\d +\d+\.\d{3} +\d+\.\d{3} \d\.\d{5}")
    assert lines[-2] == f"  {wording('step-epoch-top1-top5-loss')}"
    table = lines[5:-4]
    assert [int(line.split()[0]) for line in table] == [0, 1, *range(4, LAST, 4)]
    assert all(row.fullmatch(line) for line in table)
    assert re.fullmatch(r"Finished in \d+\.\d s", lines[-4])
    assert lines[-1].split()[:2] == ["64", "8.0"]


def test_log_and_scalars_contain_the_values_printed(tf: Any, trained: Path) -> None:
    (start,) = rows(trained, "start")
    assert (start["global_batch"], start["total_steps"], start["ranks"]) == (8, LAST, 1)
    logged = {row["step"]: row["loss"] for row in rows(trained, "train")}
    assert list(logged) == [0, 1, *range(4, LAST, 4)]
    scalars = {}
    for file in (trained / "tensorboard").iterdir():
        for record in tf.data.TFRecordDataset(str(file)):
            event = tf.compat.v1.Event.FromString(record.numpy())
            for value in event.summary.value:
                assert value.metadata.plugin_data.plugin_name == "scalars"
                scalars[value.tag, event.step] = float(tf.make_ndarray(value.tensor))
    assert {step: scalars["train/loss", step] for step in logged} == pytest.approx(logged)
    assert scalars["evaluation/top1", LAST] > 0.9


def test_an_evaluation_equals_a_plain_count(
    train: Train, trained: Path, shades: Path, tmp_path: Path
) -> None:
    from imagenet_prep.core.world import World
    from imagenet_prep.read import make_dataset

    # The network prefers the first class, so some answers are wrong. 22 is not a multiple of 5.
    early = checkpoint.load(trained / checkpoint.name(6))
    arrays = dict(early.arrays)
    arrays["classes/bias"] = arrays["classes/bias"] + np.float32([1, 0, 0, 0])
    checkpoint.save(tmp_path / "run", early.step, early.facts, arrays, keep=1)
    score = train(tmp_path / "run", **SETTINGS, evaluate=True, batch_size=5)

    counting = network("tiny", 16, 4)
    variables = [*counting.trainable_variables, *counting.non_trainable_variables]
    for variable in variables:
        variable.assign(arrays[variable.path])
    reader = make_dataset(
        shades,
        "validation",
        NUM_VALIDATION,
        16,
        framework="numpy",
        world=World(),
        backend="tfdata",
    )
    (batch,) = reader
    reader.close()
    logits = counting(batch["images"], training=False).numpy().astype(np.float64)
    labels = batch["class_index"]
    right = int((logits.argmax(1) == labels).sum())
    losses = np.log(np.exp(logits).sum(1)) - logits[np.arange(NUM_VALIDATION), labels]

    assert score.examples == NUM_VALIDATION == batch["mask"].sum()
    assert score.top1 == pytest.approx(right / NUM_VALIDATION)
    assert 0 < right < NUM_VALIDATION
    assert score.top5 == 1.0  # of four classes
    assert score.loss == pytest.approx(np.mean(losses), rel=1e-4)


def test_dropout_adam_and_plateau_resume_with_equal_bits(
    tf: Any,
    shades: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    limits: Limits,
) -> None:
    from imagenet_prep.read import Reader, make_dataset
    from imagenet_prep.trainer import loop

    # The dataset gets this split, with the images of train.
    monkeypatch.setattr(Reader, "splits", ("train", "holdout", "validation"))

    def open_reader(split: str, training: bool, world: Any) -> Reader:
        opened = "train" if split == "holdout" else split
        return make_dataset(shades, opened, 8, 16, training=training, world=world, backend="tfdata")

    def run(name: str, **more: Any) -> Any:
        settings = flags(shades, tmp_path / name, num_epochs=3.125, lr=0.003, keep=9)
        settings |= {"model": "mnist", "optimizer": "adam", "schedule": "plateau"}
        # Each evaluation from the second epoch on lowers the rate.
        settings |= {"eval_every": 0.5}
        limits(epoch_gain=100.0, plateau_patience=1)
        return loop.train(TrainConfig(**settings | more), open_reader)

    score = run("whole")
    printed = capsys.readouterr().out
    assert checkpoint.steps(tmp_path / "whole") == [4, 8, 12, 16, 20, 24, 25]
    evaluations = rows(tmp_path / "whole", "evaluation")
    splits = [(row["step"], row["split"], row["examples"]) for row in evaluations]
    assert splits[-2:] == [(24, "holdout", NUM_TRAIN), (25, "validation", NUM_VALIDATION)]
    assert says("test-accuracy-loss", f"{score.top1:.2%}").search(printed.splitlines()[-1])
    (test,) = rows(tmp_path / "whole", "test")
    assert (test["accuracy"], test["images"]) == (score.top1, NUM_VALIDATION)
    rates = [row["learning_rate"] for row in rows(tmp_path / "whole", "train")]
    assert rates[-1] == pytest.approx(0.003 * 0.1**5)
    losses = [row["loss"] for row in rows(tmp_path / "whole", "train")]
    assert losses[-1] < losses[0]

    # The checkpoint of step 12 does not contain its own evaluation, which lowered the rate.
    (tmp_path / "ended").mkdir()
    shutil.copy(tmp_path / "whole" / checkpoint.name(12), tmp_path / "ended")
    run("ended")
    assert_same_bits(arrays_of(tmp_path / "whole"), arrays_of(tmp_path / "ended"))


def test_a_finished_run_is_only_evaluated_again(
    train: Train, finished: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    again = train(finished, **SETTINGS)
    whole = capfd.readouterr().out.splitlines()[2]

    first, second = rows(finished, "evaluation")
    assert (first["loss"], first["top1"]) == (second["loss"], second["top1"])
    assert len(rows(finished, "finished")) == 1
    last = train(finished, **SETTINGS, evaluate=True, batch_size=11, lr=1.0, optimizer="adam")
    assert (last.examples, last.top1) == (again.examples, again.top1)
    assert rows(finished, "evaluation")[-1]["epoch"] == first["epoch"]
    # The plan is that of the run, and not one of the flags of the evaluation.
    evaluating, plan = capfd.readouterr().out.splitlines()[1:3]
    assert evaluating.startswith(
        "1 rank x 11 images = 11 per step (8 in the evaluated run); 67 images"
    )
    assert plan.partition(" = ")[2] == whole.partition(" = ")[2]
    assert plan.startswith("8 epochs = 64 steps; sgd, ")
    with pytest.raises(UsageError, match="holds a run with image size 16, this one has 32"):
        train(finished, **SETTINGS, evaluate=True, image_size=32)


# test_optimizer covers the steps of each optimizer. Compilation takes most of the time.
_TUTORIAL = {"recipe": "tutorial", "schedule": "steps", "increased_aug": True}
WAYS: list[dict[str, Any]] = [
    {"precision": "bfloat16", "jit": True, "optimizer": "larc", "lr": 1.0, **_TUTORIAL},
    {"precision": "bfloat16", "jit": True},
    {"optimizer": "larc", "lr": 1.0},
    _TUTORIAL,
    {"optimizer": "lars", "lr": 5.0},
    {"optimizer": "rmsprop", "lr": 0.002},
    {"precision": "bfloat16"},
    {"precision": "float16"},
    {"jit": True},
]


@pytest.mark.parametrize(
    "more",
    long_except(WAYS[:1], WAYS),
    ids=lambda more: "-".join(map(str, more.values())),
)
def test_every_way_to_train_lowers_the_loss(
    train: Train, tmp_path: Path, more: dict[str, Any]
) -> None:
    train(tmp_path / "run", num_epochs=4.0, **more)
    losses = [row["loss"] for row in rows(tmp_path / "run", "train")]

    assert losses[-1] < losses[0]


def train_synthetic(run: Path, num_steps: int, **more: Any) -> None:
    from imagenet_prep.train import train as verb

    config = TrainConfig(
        synthetic=True,
        model="mnist",
        image_size=16,
        batch_size=4,
        num_epochs=num_steps / 1_281_167 * 4,
        log_dir=str(run),
        **more,
    )
    assert verb(config) is None


def test_synthetic_data_needs_no_dataset(tf: Any, tmp_path: Path) -> None:
    train_synthetic(tmp_path / "run", 12)

    assert checkpoint.steps(tmp_path / "run") == [12]


@pytest.mark.parametrize(("loss_scale", "moves"), [(1.0, True), (1e38, False)])
def test_a_step_whose_gradients_overflow_is_skipped(
    tf: Any, tmp_path: Path, loss_scale: float, moves: bool
) -> None:
    train_synthetic(tmp_path / "run", 1, precision="float16", loss_scale=loss_scale)

    momentum = [a for name, a in arrays_of(tmp_path / "run").items() if name.startswith("slot_")]
    assert len(momentum) == 8
    assert [bool(array.any()) for array in momentum] == [moves] * 8


# Keras copies its variables in a way that NumPy 2 deprecates.
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_exported_models_return_the_networks_probabilities(
    small_network: None,
    tf: Any,
    trained: Path,
    shades: Path,
    tmp_path: Path,
    system: System,
) -> None:
    """test_mirror and the photographs of tests/e2e export at the end of a run."""
    import keras

    from imagenet_prep.trainer.tensorflow_learner import TensorFlowLearner

    config = recipe.settled(TrainConfig(**flags(shades, trained)))
    learner = TensorFlowLearner(config)
    learner.build(recipe.resolve(config, 1, NUM_TRAIN, 4), jit=False)
    learner.assign(list(arrays_of(trained).values()))
    pixels = np.random.default_rng(0).integers(0, 256, (3, 16, 16, 3), np.uint8)
    interface = Interface("a cat\nb dog\nc bird, fowl\nd \n", (1.0, 20.0, 128.0), (3.0, 50.0, 64.0))
    normalised = (pixels - np.array(interface.mean)) / np.array(interface.std)
    logits = learner.logits(normalised.astype(np.float32))
    expected = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    assert len(set(expected.argmax(1))) > 1 or np.ptp(expected) > 0.2
    synced = set[int]()
    system.instead("fsync", lambda fsync, file: (synced.add(os.fstat(file).st_ino), fsync(file)))
    out = tmp_path / "out"
    for name in ("model.keras", "saved"):
        learner.export(out / name, interface)
    written = [out, *out.rglob("*")]
    assert [path for path in written if path.stat().st_ino not in synced] == []

    loaded = keras.models.load_model(out / "model.keras")
    images = pixels.astype(np.float32)
    for given in (pixels, images):
        np.testing.assert_allclose(loaded.predict(given, verbose=0), expected, atol=1e-5)
    inner = loaded.get_layer("tiny")
    np.testing.assert_allclose(inner(normalised).numpy(), logits, atol=1e-5)
    saved = tf.saved_model.load(str(out / "saved"))
    np.testing.assert_allclose(saved.serve(images).numpy(), expected, atol=1e-5)
    with zipfile.ZipFile(out / "model.keras") as file:
        assert file.read("labels.txt").decode() == interface.classes
    assert (out / "saved" / "labels.txt").read_text() == interface.classes


def test_evaluations_that_miss_an_example_are_refused() -> None:
    batch = {"images": None, "class_index": [0, 1, 1, -1], "mask": [True, True, True, False]}
    with pytest.raises(
        DataDamagedError, match=says("evaluation-counted-examples-expected-run", "3", "4")
    ):
        evaluation.evaluate(lambda _: np.zeros((4, 2)), [batch], 4, Comm())


@pytest.mark.filterwarnings("error")
def test_evaluation_counts_equal_those_of_the_logits() -> None:
    logits = [[2.0, 1, 0], [2, 1, 0], [0, 0, 0], [9, 1, 0]]
    examples, top1, top5, loss = evaluation.count(logits, [0, 1, 2, -1], [True, True, True, False])

    assert (examples, top1, top5) == (3, 1, 3)  # if logits are equal, the first class wins
    shares = np.exp([2.0, 1, 0]) / np.exp([2.0, 1, 0]).sum()
    assert loss == pytest.approx(-np.log([shares[0], shares[1], 1 / 3]).sum())
    assert evaluation.count([[np.nan, 9, 0]], [1], [True])[:3].tolist() == [1, 0, 0]


def test_the_log_has_the_datasets_size(trained: Path) -> None:
    (start,) = rows(trained, "start")
    assert (start["num_examples"], start["num_classes"]) == (NUM_TRAIN, 4)


def test_a_fraction_applies_to_train_and_is_logged(
    train_by_numpy: Train,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("IMAGENET_PREP_CACHE", str(tmp_path / "cache"))
    score = train_by_numpy(tmp_path / "run", num_epochs=0.2, fraction=0.5)
    printed = capsys.readouterr().out

    (start,) = rows(tmp_path / "run", "start")
    assert score.examples == NUM_VALIDATION
    assert 20 < start["num_examples"] < 50
    assert (start["choice"]["fraction"], start["choice"]["choice_seed"]) == (0.5, 0)
    assert f" {start['num_examples']} images, 4 classes" in printed.splitlines()[1]
    assert says("selected-train", "fraction", "0.5").search(printed)
    with pytest.raises(UsageError, match="holds a run with|the state has choice"):
        train_by_numpy(tmp_path / "run", num_epochs=0.2, fraction=0.75)


@pytest.mark.tf
def test_masked_images_do_not_change_a_tensorflow_step(
    small_network: None,
) -> None:
    """Readers give the class -1 to padding and to skipped records."""
    from imagenet_prep.trainer.tensorflow_learner import TensorFlowLearner

    config = TrainConfig(synthetic=True, model="tiny", image_size=16, batch_size=4)
    plan = recipe.resolve(config, 1, 64, 4)
    images = np.random.default_rng(0).normal(size=(4, 16, 16, 3)).astype(np.float32)
    mask = np.array([True, True, False, False])
    results = []
    for without_class in (0, -1):
        learner = TensorFlowLearner(config)
        learner.build(dataclasses.replace(plan, label_smoothing=0.1), jit=False)
        labels = np.array([1, 2, without_class, without_class], np.int32)
        batch = {"images": images, "class_index": labels, "mask": mask}
        values, _ = learner.step(0, batch, 0.1, asks=False)
        results.append([*map(float, values), *(v.sum() for v in learner.values())])

    assert np.isfinite(results).all()
    np.testing.assert_allclose(results[1], results[0], rtol=1e-6)


@pytest.mark.tf
def test_each_rank_has_its_own_dropout_masks(tf: Any) -> None:
    from imagenet_prep.trainer.tensorflow_learner import TensorFlowLearner

    losses = dropouts.losses("tensorflow", TensorFlowLearner, [(0, 5), (1, 5), (1, 5), (0, 6)])

    assert losses[1] == losses[2]
    assert len(set(losses)) == 3


@pytest.mark.parametrize(
    ("framework", "backend", "expected"),
    [
        ("tensorflow", "auto", "tfdata"),
        ("tensorflow", "native", "native"),
        ("pytorch", "auto", "native"),
        ("mxnet", "auto", "native"),
    ],
)
def test_the_framework_decides_on_the_default_decoder(
    shades: Path, tmp_path: Path, installed: Installed, framework: str, backend: str, expected: str
) -> None:
    config = TrainConfig(**flags(shades, tmp_path, framework=framework, backend=backend))
    installed.packages(lambda name: name in ("tensorflow", "nvidia.dali", "torch"))
    reader: Any = verb.readers(config)("train", True, World())

    assert reader.decoder == {"backend": expected, "device": "cpu"}
    frameworks = {"tensorflow": "tensorflow", "pytorch": "dlpack", "mxnet": "numpy"}
    assert reader._feed.config.array_framework == frameworks[framework]
