"""Settings and files of an existing run that later commands use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from imagenet_prep.core.errors import ImagenetPrepError, UsageError
from imagenet_prep.core.world import World
from imagenet_prep.dataset import predictions
from imagenet_prep.trainer import checkpoint, evaluation
from imagenet_prep.trainer.config import TrainConfig
from imagenet_prep.trainer.interface import Interface
from imagenet_prep.trainer.saved import Saved, settings_of
from tests.kit.messages import says
from tests.kit.reading import colours
from tests.kit.training import NUM_VALIDATION

__all__ = ["colours"]

Train = Callable[..., Any]
Evaluated = Callable[..., Any]


@pytest.fixture
def train(train_by_numpy: Train) -> Train:
    return train_by_numpy


def test_evaluations_take_network_and_images_from_the_run(
    train: Train, evaluated: Evaluated, tmp_path: Path
) -> None:
    trained = train(tmp_path / "run", recipe="tutorial", fraction=0.8, seed=3)

    config, score = evaluated(tmp_path / "run")

    assert (config.framework, config.recipe, config.model) == ("mxnet", "tutorial", "tiny")
    assert (config.image_size, config.batch_size) == (16, 8)
    assert (score.examples, score.top1) == (NUM_VALIDATION, trained.top1)
    config, score = evaluated(tmp_path / "run", "--batch-size", "5", "--model", "tiny")
    assert (config.batch_size, score.top1) == (5, trained.top1)


def test_all_differing_flags_are_refused_in_one_message(
    train: Train, evaluated: Evaluated, tmp_path: Path
) -> None:
    train(tmp_path / "run")

    flags = ("--model", "resnet18", "--image-size", "32", "--recipe", "tutorial")
    with pytest.raises(UsageError) as refused:
        evaluated(tmp_path / "run", *flags)

    for said in (
        "recipe article, this one has tutorial",
        "model tiny, this one has resnet18",
        "image size 16, this one has 32",
        "Omit these flags",
    ):
        assert said in str(refused.value)


def test_settings_of_unshared_log_folders_are_ignored(train: Train, tmp_path: Path) -> None:
    assert settings_of(str(tmp_path / "run"), World()) == {}
    train(tmp_path / "run")

    assert settings_of(str(tmp_path / "run"), World(0, 2))["batch_size"] == 4
    assert settings_of(str(tmp_path / "run"), World(0, 4, 0, 2)) == {}


def test_a_damaged_checkpoint_is_left_to_rank_0(
    train: Train, evaluated: Evaluated, tmp_path: Path
) -> None:
    train(tmp_path / "run", checkpoint_every=8)
    last = checkpoint.steps(tmp_path / "run")[-1]
    (tmp_path / "run" / checkpoint.name(last)).write_bytes(b"not a checkpoint")

    assert settings_of(str(tmp_path / "run"), World())["model"] == "tiny"
    assert (tmp_path / "run" / checkpoint.name(last)).exists()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / checkpoint.name(1)).write_bytes(b"not a checkpoint")
    assert settings_of(str(tmp_path / "other"), World()) == {}
    config, _ = evaluated(tmp_path / "run")
    assert config.image_size == 16
    assert not (tmp_path / "run" / checkpoint.name(last)).exists()


def test_data_of_different_classes_is_refused_without_flags(
    train: Train, evaluated: Evaluated, colours: Path, tmp_path: Path
) -> None:
    train(tmp_path / "run")

    with pytest.raises(UsageError, match=says("network-classes-command-output-here", "n00001000,")):
        evaluated(tmp_path / "run", "--data-dir", str(colours))
    with pytest.raises(UsageError, match=says("network-evaluated-own-classes-omit")):
        evaluated(tmp_path / "run", "--data-dir", str(colours))


def test_foreign_output_files_are_refused_before_evaluation(
    train: Train, evaluated: Evaluated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(tmp_path / "run")
    mine = tmp_path / ".bashrc"
    mine.write_text("# mine\n")
    monkeypatch.setattr(evaluation, "evaluate", None)
    for flag, said in (
        ("--predictions", says("file-predictions")),
        ("--export", says("model-keras")),
    ):
        with pytest.raises(
            UsageError, match=says("not-not-replaced-choose-different", "bashrc", said)
        ):
            evaluated(tmp_path / "run", flag, str(mine))

    assert mine.read_text() == "# mine\n"


def test_predictions_replace_predictions(
    train: Train, evaluated: Evaluated, tmp_path: Path
) -> None:
    train(tmp_path / "run")
    said = tmp_path / "said.csv"
    said.write_text(f"{','.join(predictions.HEADER)}\na/1,0,1,1,,,,,,,,\n")
    for _ in range(2):
        evaluated(tmp_path / "run", "--predictions", str(said))
        assert len(list(predictions.read(said))) == NUM_VALIDATION


@pytest.mark.parametrize(("ranks", "batch_size"), [(1, 256), (32, 128), (8192, 1)])
def test_large_batches_of_a_run_are_not_evaluated(
    train: Train, tmp_path: Path, ranks: int, batch_size: int
) -> None:
    train(tmp_path / "run")
    last = checkpoint.steps(tmp_path / "run")[-1]
    loaded = checkpoint.load(tmp_path / "run" / checkpoint.name(last))
    facts = {**loaded.facts, "run": {**loaded.facts["run"], "global_batch": 4096}}
    checkpoint.save(tmp_path / "run", last + 1, facts, loaded.arrays, keep=1)
    assert settings_of(str(tmp_path / "run"), World(0, ranks))["batch_size"] == batch_size


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_finite_are_never_saved(tmp_path: Path, value: float) -> None:
    config = TrainConfig(synthetic=True, log_dir=str(tmp_path))
    run = Saved(config, Interface("", (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)))
    arrays = [np.zeros(2), np.array([1.0, value])]
    learner: Any = SimpleNamespace(names=lambda: ["a", "b"], values=lambda: arrays)
    with pytest.raises(ImagenetPrepError, match=says("step-weights-not-finite", 6)):
        run.save(7, {}, learner)
    assert checkpoint.steps(tmp_path) == []
    arrays[1][1] = 2.0
    run.save(7, {}, learner)
    assert checkpoint.steps(tmp_path) == [7]
