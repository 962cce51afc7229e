"""The facts that a run keeps about itself: classes, plan, shuffle window and folder."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from imagenet_prep import train as verb
from imagenet_prep.core.errors import (
    BusyError,
    DataDamagedError,
    ImagenetPrepError,
    IncompleteError,
    StoreError,
    UsageError,
)
from imagenet_prep.core.world import World
from imagenet_prep.read import make_dataset
from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.trainer import checkpoint, interface, loop, recipe
from imagenet_prep.trainer.config import TrainConfig
from imagenet_prep.trainer.interface import Interface
from tests.kit import command
from tests.kit.messages import says
from tests.kit.numpy_learner import NumpyLearner
from tests.kit.reading import colours
from tests.kit.system import System
from tests.kit.tfrecords import wnid
from tests.kit.training import NUM_VALIDATION, end_at_step, flags, make_shades, rows

__all__ = ["colours"]

Train = Callable[..., Any]
Evaluated = Callable[..., Any]


@pytest.fixture
def train(train_by_numpy: Train) -> Train:
    return train_by_numpy


def edited(run: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Changes the facts in the last checkpoint of a run."""
    last = checkpoint.load_latest(run)
    assert last is not None
    facts: Any = json.loads(json.dumps(last.facts))
    change(facts)
    checkpoint.save(run, last.step, facts, last.arrays, keep=9)


# The classes of the outputs


@pytest.mark.parametrize("classes", ["2,3", "1,0,2", f"{wnid(0)},{wnid(2)}", "3"])
def test_evaluating_a_network_on_different_classes_is_refused(
    train: Train, evaluated: Evaluated, tmp_path: Path, classes: str
) -> None:
    train(tmp_path / "run", classes=("0", "1"), remap=True, num_epochs=1.0, batch_size=4)

    with pytest.raises(UsageError) as refused:
        evaluated(tmp_path / "run", "--classes", classes, "--remap")
    assert says("network-classes-command-output-here", f"{wnid(0)}, {wnid(1)}").search(
        str(refused.value)
    )
    # A forgotten --remap is taken from the checkpoint.
    with pytest.raises(UsageError, match=says("network-classes-command-output-here")):
        evaluated(tmp_path / "run", "--classes", classes)


@pytest.mark.parametrize("remap", [True, False])
def test_an_evaluation_uses_the_classes_of_the_run(
    train: Train, evaluated: Evaluated, tmp_path: Path, remap: bool
) -> None:
    classes = ("3", wnid(1))
    trained = train(tmp_path / "run", classes=classes, remap=remap, num_epochs=1.0, batch_size=4)

    config, score = evaluated(tmp_path / "run")
    assert (config.classes, config.remap) == (classes, remap)
    assert (score.examples, score.top1, score.loss) == (
        trained.examples,
        trained.top1,
        trained.loss,
    )
    assert score.examples < NUM_VALIDATION
    # The same classes in a different notation and order.
    _, again = evaluated(tmp_path / "run", "--classes", f"1,{wnid(3)}")
    assert again.loss == trained.loss


@pytest.mark.parametrize("flag", ["--also", "--labels"])
@pytest.mark.parametrize("remap", [True, False])
def test_also_and_labels_need_outputs_for_all_classes(
    train: Train, evaluated: Evaluated, shades: Path, tmp_path: Path, remap: bool, flag: str
) -> None:
    """A conflict with --classes is not reported here, because the user did not give it."""
    train(tmp_path / "run", classes=("1", "3"), remap=remap, num_epochs=1.0, batch_size=4)
    (tmp_path / "labels.csv").write_text("key,class\n")
    words = (flag, str(shades if flag == "--also" else tmp_path / "labels.csv"))
    if remap:
        with pytest.raises(UsageError, match=says("holds-network-some-classes-dataset", "run")):
            evaluated(tmp_path / "run", *words)
    else:
        config, score = evaluated(tmp_path / "run", *words)
        assert (config.classes, score.examples) == (None, NUM_VALIDATION)
    with pytest.raises(UsageError, match=says("cannot-combined", flag, "--classes")):
        evaluated(tmp_path / "run", *words, "--classes", "1")
    with pytest.raises(UsageError, match=says("no-checkpoint-evaluate-train-first")):
        evaluated(tmp_path / "none", *words, "--image-size", "16", "--batch-size", "8")


def test_checkpoints_with_a_malformed_interface_are_not_exported(
    train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def damage(facts: dict[str, Any]) -> None:
        facts["interface"]["mean"] = "grey"

    train(tmp_path / "run", num_epochs=1.0, checkpoint_every=5)
    edited(tmp_path / "run", damage)
    assert interface.last(tmp_path / "run").step == 5
    assert says("set-aside", "checkpoint-00000008.npz").search(capsys.readouterr().err)


def test_lists_and_fractions_do_not_change_the_outputs(
    train: Train, evaluated: Evaluated, tmp_path: Path
) -> None:
    train(tmp_path / "run", fraction=0.7, num_epochs=1.0, batch_size=4)

    config, score = evaluated(tmp_path / "run")
    assert (config.classes, config.remap, score.examples) == (None, False, NUM_VALIDATION)


def test_an_equal_number_of_different_classes_is_refused(
    train: Train, evaluated: Evaluated, tmp_path: Path
) -> None:
    other = make_shades(tmp_path / "other")
    labels = (other / "labels.txt").read_text().replace(wnid(2), "sparrow")
    (other / "labels.txt").write_text(labels)
    interfaces = [
        Interface(text, (0.0,) * 3, (1.0,) * 3)
        for text in (labels, labels.replace("sparrow thing", "sparrow bird"))
    ]
    train(tmp_path / "run", num_epochs=1.0)
    edited(tmp_path / "run", lambda facts: facts["interface"].update(classes=labels))

    for evaluates in (True, False):
        with pytest.raises(
            UsageError,
            match=says("network-classes-command-output-here", ..., ..., 2, "sparrow", wnid(2)),
        ):
            if evaluates:
                evaluated(tmp_path / "run")
            else:
                train(tmp_path / "run", num_epochs=1.0)
    synthetic = Interface("", (0.0,) * 3, (1.0,) * 3)
    assert says("network-classes-command-output-here", "of no dataset").search(
        interfaces[0].difference(synthetic) or ""
    )
    # Class descriptions do not identify a class.
    assert interfaces[0].difference(interfaces[1]) is None


def test_a_network_is_evaluated_on_a_different_dataset(
    train: Train, evaluated: Evaluated, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Such as a later version, after the version of the run was deleted."""
    train(tmp_path / "run", num_epochs=1.0)
    other = make_shades(tmp_path / "other", "holdout", held=(0, 1))
    _, score = evaluated(tmp_path / "run", data_dir=other)
    assert score.examples == NUM_VALIDATION
    assert says("run-trained-different-dataset-manifest").search(capsys.readouterr().out)
    edited(tmp_path / "run", lambda facts: facts.pop("interface"))
    with pytest.raises(UsageError, match=says("state-reader-use-same-dataset")):
        evaluated(tmp_path / "run", data_dir=other)


def test_no_run_is_written_into_a_dataset(shades: Path, train: Train) -> None:
    before = sorted(shades.iterdir())
    with pytest.raises(UsageError, match=says("log-dir-dataset-whose-files-never")):
        train(shades, num_epochs=1.0)
    assert sorted(shades.iterdir()) == before


def test_checkpoints_without_classes_need_an_equal_class_count(
    train: Train, evaluated: Evaluated, tmp_path: Path
) -> None:
    trained = train(tmp_path / "run", num_epochs=1.0)

    def as_in_0_1_0(facts: dict[str, Any]) -> None:
        del facts["interface"], facts["classes"], facts["remap"]

    edited(tmp_path / "run", as_in_0_1_0)
    _, score = evaluated(tmp_path / "run")
    assert score == trained
    with pytest.raises(UsageError, match=says("one-2", "number of classes", 4, 2)):
        evaluated(tmp_path / "run", "--classes", "0,1", "--remap")


def test_the_reader_states_classes_and_normalisation(shades: Path) -> None:
    every = make_dataset(shades, "train", 4, 16, backend="native")
    some = make_dataset(shades, "train", 4, 16, backend="native", classes=[3, 1], remap=True)

    assert every.class_list.wnids == every.classes == tuple(map(wnid, range(4)))
    assert (some.class_list.wnids, some.class_list.words) == ((wnid(1), wnid(3)), ("thing",) * 2)
    assert some.normalisation == ((123.675, 116.28, 103.53), (58.395, 57.12, 57.375))


def test_an_evaluation_exports_the_model(
    train: Train, evaluated: Evaluated, tmp_path: Path
) -> None:
    train(tmp_path / "run", num_epochs=1.0)

    evaluated(tmp_path / "run", "--export", str(tmp_path / "model"))
    classes, *_ = np.load(tmp_path / "model.npz").values()
    assert str(classes).splitlines() == [f"{wnid(n)} thing" for n in range(4)]


# The plan of the checkpoint


@pytest.mark.parametrize("name", ["cifar10", "mnist"])
def test_fewer_ranks_keep_the_first_learning_rate(name: str) -> None:
    def config(batch_size: int, **more: Any) -> TrainConfig:
        return TrainConfig(data_dir="x", recipe=name, batch_size=batch_size, **more)

    saved = recipe.resolve(config(64), 2, 40_000, 10)
    now = recipe.resolve(config(128), 1, 40_000, 10)
    assert recipe.difference(saved.facts(), now) is not None

    assert saved == recipe.as_begun(config(128), now, 2)
    for other in (config(128, lr=0.1), config(128, num_epochs=3.0), config(128, seed=1)):
        run = recipe.resolve(other, 1, 40_000, 10)
        assert saved != recipe.as_begun(other, run, 2)


def test_fewer_ranks_cannot_resume_with_a_different_optimizer() -> None:
    """A large run of the tutorial has a different optimizer, so a small run cannot resume it."""
    tutorial = TrainConfig(synthetic=True, recipe="tutorial", batch_size=4096)
    large = recipe.resolve(TrainConfig(synthetic=True, recipe="tutorial"), 128, 1_281_167, 1000)
    small = recipe.resolve(tutorial, 8, 1_281_167, 1000)
    assert large.global_batch == small.global_batch
    begun = recipe.as_begun(tutorial, small, 128)
    assert recipe.difference(large.facts(), begun) == "optimizer larc, this one has sgd"


def test_a_resumed_run_keeps_the_checkpoints_rate(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint states two ranks, so the rate of the first start was twice as high."""

    def started_by_two(facts: dict[str, Any]) -> None:
        facts["ranks"] = 2
        facts["run"]["schedule"]["peak"] *= 2

    settings: dict[str, Any] = {"recipe": "mnist", "model": "tiny", "optimizer": "sgd"}
    settings |= {"num_epochs": 2.0, "lr": None, "display_every": 1}
    end_at_step(monkeypatch, 4)
    with pytest.raises(IncompleteError):
        train(tmp_path / "run", **settings)
    edited(tmp_path / "run", started_by_two)
    end_at_step(monkeypatch, 9)
    with pytest.raises(IncompleteError):
        train(tmp_path / "run", **settings)
    latest = checkpoint.load_latest(tmp_path / "run")
    assert latest is not None
    assert (latest.facts["ranks"], latest.facts["run"]["schedule"]["peak"]) == (2, 0.02)
    with pytest.raises(UsageError, match=says("one-2", "learning rate", 0.02, 0.5)):
        train(tmp_path / "run", **settings | {"lr": 0.5})
    with pytest.raises(UsageError, match=says("one-2", "global batch size", 8, 1)):
        train(tmp_path / "run", **settings, batch_size=1)  # less than one image per rank


@pytest.mark.parametrize("ranks", [0, -1, 9, "2", 1.5])
def test_an_invalid_rank_count_is_a_damaged_checkpoint(
    train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str], ranks: Any
) -> None:
    def damage(facts: dict[str, Any]) -> None:
        facts["ranks"] = ranks

    train(tmp_path / "run", num_epochs=1.0, batch_size=8)
    edited(tmp_path / "run", damage)
    with pytest.raises(DataDamagedError):
        train(tmp_path / "run", num_epochs=1.0, batch_size=8)
    assert "(ranks" in capsys.readouterr().err


def test_runs_of_0_1_0_keep_their_length(
    train: Train, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """This also holds after a checkpoint of this version."""
    settings = {"batch_size": 20, "num_epochs": 9.0, "display_every": 1, "checkpoint_every": 5}
    train(tmp_path / "run", **settings, keep=99)
    assert checkpoint.steps(tmp_path / "run")[-1] == 9 * (67 // 20)
    config = TrainConfig(
        **flags(tmp_path, tmp_path, framework="mxnet", backend="native", **settings)
    )
    old = recipe.resolve(config, 1, 67, 4, in_images=True)
    assert old.total_steps == 9 * 67 // 20 == 30

    def as_in_0_1_0(facts: dict[str, Any]) -> None:
        facts["run"] = old.facts()
        for name in ("interface", "classes", "remap", "ranks"):
            del facts[name]

    keep_first(tmp_path / "run")
    edited(tmp_path / "run", as_in_0_1_0)
    for _ in range(2):
        capsys.readouterr()
        train(tmp_path / "run", **settings, keep=99)
        assert "9 epochs = 30 steps" in capsys.readouterr().out
        assert checkpoint.steps(tmp_path / "run")[-1] == 30
        with pytest.raises(UsageError, match="holds a run with learning rate"):
            train(tmp_path / "run", **settings, lr=0.01)
        with pytest.raises(UsageError, match="holds a run with"):
            train(tmp_path / "run", **settings | {"num_epochs": 8.0})
        (tmp_path / "run" / checkpoint.name(checkpoint.steps(tmp_path / "run")[0])).unlink()
        keep_first(tmp_path / "run")  # written by this version


def keep_first(folder: Path) -> None:
    """Deletes all checkpoints but the first."""
    for step in checkpoint.steps(folder)[1:]:
        (folder / checkpoint.name(step)).unlink()


def test_log_rates_and_evaluations_use_the_readers_epochs(train: Train, tmp_path: Path) -> None:
    """With 67 images, steps of 40 read 40 images in each epoch."""
    settings = {
        "batch_size": 40,
        "num_epochs": 20.0,
        "warmup_epochs": 4.0,
        "warmup_lr": 0.001,
        "schedule": "steps",
        "lr_decay_steps": "10,15",
        "eval_every": 5.0,
        "display_every": 1,
    }
    train(tmp_path / "run", **settings)

    logged = rows(tmp_path / "run", "train")
    assert [row["epoch"] for row in logged] == [*range(20)]
    rates = {row["epoch"]: row["learning_rate"] for row in logged}
    falls = [epoch for epoch in range(4, 20) if rates[epoch] < rates[epoch - 1]]
    assert falls == [10, 15]
    assert rates[3] < rates[4] == max(rates.values())
    evaluations = [row["epoch"] for row in rows(tmp_path / "run", "evaluation")]
    assert evaluations == [5, 10, 15, 20]
    assert rows(tmp_path / "run", "saved")[-1]["receipt"]["epoch"] == 20


def test_published_step_counts_of_imagenet_stay() -> None:
    tutorial = recipe.resolve(TrainConfig(synthetic=True, recipe="tutorial"), 32, 1_281_167, 1000)
    nvidia = recipe.resolve(TrainConfig(synthetic=True), 4, 1_281_167, 1000)

    assert (tutorial.total_steps, tutorial.epoch(14_075)) == (14_075, pytest.approx(90, abs=0.01))
    assert (nvidia.steps_per_epoch, nvidia.total_steps) == (1251, 90 * 1251)
    assert nvidia.epoch(1251) == 1.0


# The location of the dataset


@pytest.mark.parametrize("windows", [(2, None), (None, 2), (0, 1)])
def test_restored_readers_use_the_window_of_the_state(
    colours: Path, windows: tuple[int | None, int | None]
) -> None:
    def opened(window: int | None) -> Any:
        options: Any = {"backend": "native", "fields": ("number",), "shuffle_window": window}
        return make_dataset(colours, "train", 4, 16, seed=5, **options)

    first = opened(windows[0])
    begun = iter(first)
    before = [next(begun)["number"].tolist() for _ in range(2)]
    state = first.state()
    rest = [batch["number"].tolist() for batch in begun]

    second = opened(windows[1])
    next(iter(second))  # has ordered the epoch by its own window
    second.restore(state)
    assert second.state() == state
    assert second.receipt()["window"] == state["window"]
    assert [batch["number"].tolist() for batch in second] == rest
    assert [batch["number"].tolist() for batch in second] == [b["number"].tolist() for b in first]
    sampler = opened(windows[1])
    positions = sampler.sampler()
    positions.load_state_dict(state)
    assert [sampler[place]["number"].tolist() for place in positions] == rest
    assert before
    for window in (-1, None, True, "2"):
        with pytest.raises(UsageError, match=says("state-damaged-epoch-examples_read-window")):
            second.restore(state | {"window": window})


def test_runs_on_remote_data_resume_on_local_data(
    train: Train,
    shades: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Remote datasets have a shuffle window by default; 1 is less than the two shards."""
    opened: Any = make_dataset
    seen: list[Any] = []

    def remote(*arguments: Any, **more: Any) -> Any:
        return opened(*arguments, **more, shuffle_window=1)

    with monkeypatch.context() as patch:
        patch.setattr("imagenet_prep.read.make_dataset", remote)
        train(tmp_path / "whole", num_epochs=2.0, checkpoint_every=5, keep=9)
    (tmp_path / "run").mkdir()
    shutil.copy(tmp_path / "whole" / checkpoint.name(5), tmp_path / "run")
    moved = shutil.copytree(shades, tmp_path / "moved")
    step = NumpyLearner.step

    def watch(self: NumpyLearner, *arguments: Any, **more: Any) -> Any:
        seen.append(arguments[0])
        return step(self, *arguments, **more)

    monkeypatch.setattr(NumpyLearner, "step", watch)
    train(tmp_path / "run", num_epochs=2.0, checkpoint_every=5, data_dir=str(moved))
    assert seen == [*range(5, 16)]
    (start,) = rows(tmp_path / "run", "start")
    assert (start["receipt"]["window"], start["receipt"]["data_dir"]) == (1, str(moved))
    last = [checkpoint.load_latest(tmp_path / name) for name in ("whole", "run")]
    for one, other in zip(*(each.arrays.values() for each in last if each), strict=True):
        assert one.tobytes() == other.tobytes()


def test_show_opens_the_dataset_of_the_last_start(
    train: Train, shades: Path, tmp_path: Path
) -> None:
    first = shutil.copytree(shades, tmp_path / "first")
    train(tmp_path / "run", num_epochs=1.0, data_dir=str(first))
    (tmp_path / "run" / checkpoint.name(8)).unlink()
    first.rename(tmp_path / "second")
    train(tmp_path / "run", num_epochs=1.0, data_dir=str(tmp_path / "second"))

    shown = command.run("show", tmp_path / "run", "--check", "--json")
    assert (shown.code, json.loads(shown.out)["faults"]) == (0, [])


# A loss that is not finite


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, bool], None]:
    """Breaks the loss, or only the weights, of a step."""
    step = NumpyLearner.step

    def breaks(number: int, of_weights: bool) -> None:
        def broken_step(self: NumpyLearner, now: int, *arguments: Any, **more: Any) -> Any:
            values, asks = step(self, now, *arguments, **more)
            if now >= number and of_weights:
                self._weights[0] = np.inf
                values = np.zeros(3)
            elif now >= number:
                values = np.array([1.0, np.inf, 1.0]) if now % 2 else np.array([np.nan, 1, 1])
            return values, asks

        monkeypatch.setattr(NumpyLearner, "step", broken_step)

    return breaks


@pytest.mark.parametrize("of_weights", [False, True])
@pytest.mark.parametrize("more", [{"checkpoint_every": 5}, {"eval_every": 0.5}, {}], ids=str)
def test_nonfinite_steps_do_not_replace_good_checkpoints(
    train: Train,
    tmp_path: Path,
    broken: Callable[[int, bool], None],
    more: dict[str, Any],
    of_weights: bool,
) -> None:
    settings = more | {"keep": 1, "display_every": 1000, "num_epochs": 2.0}
    broken(9, of_weights)
    key = "step-weights-not-finite" if of_weights else "step-loss"
    with pytest.raises(ImagenetPrepError, match=says(key)) as told:
        train(tmp_path / "run", **settings)

    kept = checkpoint.steps(tmp_path / "run")
    expected = [5] if more else []
    if "eval_every" in more:
        expected = [8]
    assert kept == expected
    if kept:
        latest = checkpoint.load_latest(tmp_path / "run")
        assert latest is not None
        assert all(np.isfinite(array).all() for array in latest.arrays.values())
    # The advice of the message works.
    assert says("earlier-checkpoints-kept-start-again").search(str(told.value))
    broken(1000, False)
    train(tmp_path / "run", **settings, lr=0.01, clear_log=True)
    assert checkpoint.steps(tmp_path / "run") == [16]


def test_runs_stopped_at_nonfinite_steps_save_nothing(
    train: Train,
    tmp_path: Path,
    broken: Callable[[int, bool], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken(9, False)
    end_at_step(monkeypatch, 8)
    with pytest.raises(ImagenetPrepError, match=says("step-loss")):
        train(tmp_path / "run", num_epochs=2.0, display_every=8)
    assert checkpoint.steps(tmp_path / "run") == []


# One run per folder


def test_log_folders_admit_one_run_and_any_evaluation(
    train: Train, evaluated: Evaluated, tmp_path: Path
) -> None:
    trained = train(tmp_path / "run", num_epochs=1.0)
    with LocalStore(tmp_path / "run").lock():
        partial = tmp_path / "run" / ".work" / "temporary" / "checkpoint"
        partial.parent.mkdir(exist_ok=True)
        partial.touch()
        for more in ({}, {"clear_log": True}, {"num_epochs": 5.0}):
            with pytest.raises(BusyError, match=says("being-written-different-run-wait", "run")):
                train(tmp_path / "run", **{"num_epochs": 1.0} | more)
        _, score = evaluated(tmp_path / "run")
        assert partial.exists()
    assert score == trained
    train(tmp_path / "run", num_epochs=1.0)


def test_only_rank_0_locks(shades: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "launched", lambda: World(1, 2))

    class ConnectedError(Exception):
        """The rank has passed the lock."""

    def connect(_: Any) -> Any:
        raise ConnectedError

    monkeypatch.setattr(loop, "connect", connect)
    config = TrainConfig(**flags(shades, tmp_path / "run", backend="native"))
    with LocalStore(tmp_path / "run").lock(), pytest.raises(ConnectedError):
        loop.train(config, verb.readers(config))


def test_folders_without_locks_are_used_with_warning(
    train: Train, tmp_path: Path, system: System, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_locks(flock: Any, file: int, operation: int) -> Any:
        if os.readlink(f"/proc/self/fd/{file}").endswith("/.work/lock"):
            raise OSError(errno.ENOSYS, "Function not implemented")
        return flock(file, operation)

    system.instead("flock", no_locks)
    train(tmp_path / "run", num_epochs=1.0)
    assert says("until-start-no-second-run").search(capsys.readouterr().err)
    assert checkpoint.steps(tmp_path / "run") == [8]
    system.instead("flock", lambda *_: fail(errno.EIO))
    with pytest.raises(StoreError, match="cannot lock"):
        train(tmp_path / "run", num_epochs=2.0)


def fail(number: int) -> None:
    raise OSError(number, os.strerror(number))


# Flags that would fail late


def test_networks_unknown_to_torchvision_are_not_exported() -> None:
    torch: dict[str, Any] = {"synthetic": True, "framework": "pytorch", "export": "x.safetensors"}
    for model in ("resnet50-v1", "resnet101-v1", "resnet152-v1", "cifar", "mnist"):
        with pytest.raises(
            ValueError, match=says("export-torchvision-no-expected-model", ..., model)
        ):
            TrainConfig(**torch, model=model)
    with pytest.raises(
        ValueError, match=says("export-torchvision-no-expected-model", ..., "cifar")
    ):
        TrainConfig(**torch, recipe="cifar10")
    assert TrainConfig(**torch, model="resnet50").export == "x.safetensors"


def test_sagemaker_trains_networks_without_an_export(
    capsys: pytest.CaptureFixture[str],
) -> None:
    container = {"SM_MODEL_DIR": "/ml/model", "SM_CHANNEL_TRAIN": "/ml/train"}
    words = ["--framework", "pytorch", "--recipe", "cifar10"]
    assert verb.parse(words, container).export is None
    assert says("no-model-exported").search(capsys.readouterr().err)
    assert verb.parse(words[:2], container).export == "/ml/model/model.safetensors"


def test_a_seed_must_fit_the_frameworks_generators() -> None:
    for framework, bits in (("tensorflow", 32), ("pytorch", 64), ("mxnet", 64)):
        synthetic: dict[str, Any] = {"synthetic": True, "framework": framework}
        assert TrainConfig(**synthetic, seed=(1 << bits) - 1).seed
        with pytest.raises(ValueError, match=says("seed-needs-less-2", ..., ..., bits)):
            TrainConfig(**synthetic, seed=1 << bits)


def test_missing_compilers_are_reported_before_data_is_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    config = TrainConfig(data_dir=str(tmp_path / "no"), framework="pytorch", jit=True)
    monkeypatch.setattr(verb.imports, "lacking", lambda _: [])
    with pytest.raises(UsageError, match="there is no no-such-compiler"):
        verb.train(config)


@pytest.mark.parametrize(
    ("given", "world", "said"),
    [
        ({}, World(), "1 rank x 256 images of 224 px need about 24.6 GB .* for resnet50 .* 73 or"),
        ({"batch_size": 73}, World(), None),
        ({"batch_size": 74}, World(), "74 images of 224 px need about 7.8 GB .* 73 or"),
        # A quarter of the memory for each rank, and a quarter of the pixels.
        ({"image_size": 112, "batch_size": 40}, World(4, 8, 0, 4), None),
        ({"image_size": 112, "batch_size": 41}, World(4, 8, 0, 4), "4 ranks x 41 .* 40 or less"),
        ({"image_size": 2000, "batch_size": 1}, World(), "8.3 GB .* --batch-size 1 or less"),
        ({"model": "resnet50-v1"}, World(), "for resnet50-v1 on the CPU"),
        # Not the first rank of its host; a network of unknown size; no gradients.
        ({}, World(5, 8, 1, 4), None),
        ({"model": "tiny"}, World(), None),
        ({"synthetic": False, "data_dir": "x", "evaluate": True}, World(), None),
    ],
    ids=str,
)
def test_a_batch_larger_than_memory_is_reported(
    given: dict[str, Any],
    world: World,
    said: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Of 7.72 GB, PyTorch needs 1 GB, and 92 MB for each image."""
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:  20000000 kB\nMemAvailable:    7540000 kB\nSwapFree: 1 kB\n")
    monkeypatch.setattr(verb, "_MEMINFO", meminfo)
    monkeypatch.setattr(verb.imports, "gpus", lambda: 0)
    config = recipe.settled(TrainConfig(**{"synthetic": True} | given))
    verb._check_memory(config, world)
    told = capsys.readouterr().err
    assert re.search(said, told) if said else told == ""
    monkeypatch.setattr(verb.imports, "gpus_of", lambda _: 1)
    verb._check_memory(config, world)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("framework", "package"),
    [("tensorflow", "tensorflow-cpu 2.21.0"), ("pytorch", "torch 2.15.0+cpu")],
)
def test_frameworks_without_cuda_refuse_device_gpu(
    framework: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verb.imports, "lacking", lambda _: [])
    monkeypatch.setattr(verb.imports, "gpus", lambda: 1)
    monkeypatch.setattr(verb.imports, "version", lambda *_: package)
    options = {"data_dir": str(tmp_path / "no"), "framework": framework, "device": "gpu"}
    with pytest.raises(UsageError, match=says("device-gpu-cannot-use-gpus", package.split()[0])):
        verb.train(TrainConfig(**options))
    # If PyTorch has no GPU, its compiler needs g++.
    monkeypatch.setenv("CXX", "no-such-compiler")
    options |= {"device": "auto", "jit": True}
    expected = "no-such-compiler" if framework == "pytorch" else "no such folder"
    with pytest.raises(ImagenetPrepError, match=expected):
        verb.train(TrainConfig(**options))


@pytest.mark.parametrize("signum", [signal.SIGUSR1, signal.SIGUSR2], ids=lambda each: each.name)
def test_slurms_signals_save_and_end(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, signum: signal.Signals
) -> None:
    end_at_step(monkeypatch, 4, signum)
    with pytest.raises(IncompleteError, match=says("asked-stop-step-saved-run")):
        train(tmp_path / "run")
    assert checkpoint.steps(tmp_path / "run") != []
