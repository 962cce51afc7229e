"""A researcher: looks into a set, leaves images out, trains, and comes back with another rate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep.read import make_dataset
from tests.kit import command
from tests.kit.miniature import miniature_for_tests

pytestmark = pytest.mark.slow

SMALL = ("--model", "tiny", "--image-size", "32", "--batch-size", "8")


@pytest.fixture(scope="module")
def dataset(shared_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small set of eight classes; read-only."""
    mini = miniature_for_tests(shared_cache, num_train=120, num_validation=32, size=(160, 120))
    out = tmp_path_factory.mktemp("researcher") / "set"
    words = ("--source", mini.root, "--out", out, "--short-side", "64", "--allow-subset")
    made = command.run("prepare", *words, "--train-shards", "4", "--validation-shards", "2")
    assert made.code == 0, made
    return out


def test_keys_of_a_class_are_left_out_and_folds_are_disjoint(dataset: Path, tmp_path: Path) -> None:
    listed = command.run("show", dataset, "--keys", "--splits", "train")
    assert listed.code == 0, listed
    keys = listed.out.splitlines()
    wnid = keys[0].partition("/")[0]
    unwanted = [key for key in keys if key.startswith(f"{wnid}/")][:3]
    (tmp_path / "unwanted.txt").write_text("\n".join(unwanted) + "\n")

    def images(**choice: Any) -> list[str]:
        reader: Any = make_dataset(
            *(dataset, "train", 4, 32),
            training=False,
            backend="native",
            fields=("key", "mask"),
            **choice,
        )
        return [
            key.decode() if isinstance(key, bytes) else str(key)
            for batch in reader
            for key, counts in zip(batch["key"], batch["mask"], strict=True)
            if counts
        ]

    everything = images()
    assert sorted(everything) == sorted(keys)
    assert set(images(exclude=tmp_path / "unwanted.txt")) == set(keys) - set(unwanted)
    part, others = images(fold=(0, 5)), images(fold=(0, 5), others=True)
    assert set(part).isdisjoint(others)
    assert sorted([*part, *others]) == sorted(keys)


@pytest.mark.tf
def test_another_rate_is_said_in_words_and_begins_anew_when_asked(
    dataset: Path, tmp_path: Path, tf: Any
) -> None:
    def train(*words: str) -> command.Finished:
        where = ("--data-dir", dataset, "--log-dir", tmp_path / "run", "--num-batches", "3")
        return command.run("train", *where, *SMALL, *words, env={"CUDA_VISIBLE_DEVICES": ""})

    first = train("--lr", "0.05")
    assert first.code == 0, first
    assert "1 rank x 8 images" in first.out
    refused = train("--lr", "0.02")
    assert refused.code == 2, refused
    said = refused.err.splitlines()[-1]
    assert "holds a run with learning rate 0.05, this one has 0.02" in said
    assert "--clear-log" in said
    anew = train("--lr", "0.02", "--clear-log")
    assert anew.code == 0, anew
    rows = [json.loads(line) for line in (tmp_path / "run/train.jsonl").read_text().splitlines()]
    assert {row["kind"] for row in rows} >= {"evaluation", "finished"}
    mistyped = train("--learning-rte", "0.1")
    assert "Did you mean --learning-rate?" in mistyped.err
