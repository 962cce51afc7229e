"""A researcher inspects a dataset, excludes images, trains, and changes the learning rate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep import train
from imagenet_prep.core.errors import UsageError
from imagenet_prep.read import make_dataset
from tests.kit import command
from tests.kit.messages import says
from tests.kit.miniature import miniature_for_tests
from tests.kit.training import network

pytestmark = pytest.mark.slow

SMALL = ("--model", "tiny", "--image-size", "32", "--batch-size", "8")


@pytest.fixture(scope="module")
def dataset(shared_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small dataset of eight classes; read-only."""
    mini = miniature_for_tests(shared_cache, num_train=120, num_validation=32, size=(160, 120))
    out = tmp_path_factory.mktemp("researcher") / "set"
    words = ("--source", mini.root, "--out", out, "--short-side", "64", "--allow-subset")
    made = command.run("prepare", *words, "--train-shards", "4", "--validation-shards", "2")
    assert made.code == 0, made
    return out


def test_excluded_keys_are_skipped_and_folds_are_disjoint(dataset: Path, tmp_path: Path) -> None:
    listed = command.run("show", dataset, "--keys", "--splits", "train")
    assert listed.code == 0, listed
    keys = listed.out.splitlines()
    wnid = keys[0].partition("/")[0]
    unwanted = [key for key in keys if key.startswith(f"{wnid}/")][:3]
    (tmp_path / "unwanted.txt").write_text("\n".join(unwanted) + "\n")

    def images(**choice: Any) -> list[str]:
        reader: Any = make_dataset(
            dataset,
            "train",
            4,
            32,
            training=False,
            backend="native",
            fields=("key", "mask"),
            **choice,
        )
        keys: list[str] = []
        for batch in reader:
            keys += map(str, batch["key"][batch["mask"]])
        return keys

    everything = images()
    assert sorted(everything) == sorted(keys)
    assert set(images(exclude=tmp_path / "unwanted.txt")) == set(keys) - set(unwanted)
    part = images(fold=(0, 5))
    others = images(fold=(0, 5), others=True)
    assert set(part).isdisjoint(others)
    assert sorted([*part, *others]) == sorted(keys)


@pytest.mark.tf
def test_changed_learning_rate_requires_clear_log(
    dataset: Path,
    tmp_path: Path,
    tf: Any,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # test_photographs trains the real network.
    monkeypatch.setattr("imagenet_prep.trainer.tensorflow_learner.build", network)

    def typed(*words: str) -> str:
        where = ("--data-dir", str(dataset), "--log-dir", str(tmp_path / "run"))
        assert train.run([*where, "--num-batches", "3", *SMALL, *words]) == 0
        return capsys.readouterr().out

    assert "1 rank x 8 images" in typed("--lr", "0.05")
    with pytest.raises(UsageError, match="holds a run with learning rate 0.05") as refused:
        typed("--lr", "0.02")
    assert says("one-2", ..., ..., "0.02").search(str(refused.value))
    assert "--clear-log" in str(refused.value)
    typed("--lr", "0.02", "--clear-log")
    rows = [json.loads(line) for line in (tmp_path / "run/train.jsonl").read_text().splitlines()]
    assert {row["kind"] for row in rows} >= {"evaluation", "finished"}
    with pytest.raises(UsageError, match=says("did-you-mean", "--learning-rate")):
        typed("--learning-rte", "0.1")
