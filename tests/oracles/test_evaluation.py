"""Compares accuracies with programs that were written from the papers."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest

from imagenet_prep.evaluation import score
from tests.kit.evaluated import OFFICIAL, VALIDATION, labels_of_validation, write_names, write_real
from tests.kit.lengths import long_except

# Twelve digits.
_CLOSE = 1e-12


@pytest.fixture(scope="module")
def labels() -> list[int]:
    return labels_of_validation()


@pytest.fixture(scope="module")
def validation(tmp_path_factory: pytest.TempPathFactory, labels: list[int]) -> Path:
    heads = list(zip(VALIDATION, labels, strict=True))
    return write_names(tmp_path_factory.mktemp("evaluated") / "set", heads)


@pytest.fixture(scope="module")
def said(labels: list[int]) -> list[list[int]]:
    """Five classes for each image; for two thirds of them, the first is the label."""
    rng = random.Random(3)
    rows = [rng.sample(range(1000), 5) for _ in labels]
    for row, label in zip(rows, labels, strict=True):
        if rng.random() < 2 / 3 and label not in row:
            row[0] = label
    return rows


@pytest.mark.parametrize("random_labels", long_except([True], [False, True]))
def test_real_accuracy_follows_its_paper(
    validation: Path, labels: list[int], said: list[list[int]], tmp_path: Path, random_labels: bool
) -> None:
    """A prediction is right if it is among the labels (Are we done with ImageNet?).

    Images without labels are not counted.
    """
    path = tmp_path / "real.json"
    write_real(path, labels, random_labels=random_labels)
    real = json.loads(path.read_text())
    sizes = [len(row) for row in real]
    assert [sizes.count(size) for size in range(4)] == [3_163, 39_394, 5_408, 1_319]
    assert max(sizes) == 9

    in_first = [row[0] in real[n] for n, row in enumerate(said) if real[n]]
    in_five = [any(c in real[n] for c in row) for n, row in enumerate(said) if real[n]]
    table = score(np.array(said), validation, labels=[path])
    _, row = table.rows
    assert row.images == len(in_first) == 46_837
    assert abs(row.top1 - sum(in_first) / len(in_first)) < _CLOSE
    assert abs(row.top5 - sum(in_five) / len(in_five)) < _CLOSE


def test_multilabel_accuracy_follows_its_paper(
    validation: Path, labels: list[int], said: list[list[int]], tmp_path: Path
) -> None:
    """Means of classes, without problematic images (Evaluating Machine Accuracy on ImageNet)."""
    rng = random.Random(4)
    chosen = rng.sample(range(50_000), 20_000)
    problematic = rng.sample(chosen, 1_243)
    annotations = {}
    for number in chosen:
        more = rng.sample(OFFICIAL, rng.choice([0, 0, 1, 3]))
        correct = [OFFICIAL[labels[number]], *more]
        annotations[VALIDATION[number]] = {"correct": correct, "wrong": rng.sample(OFFICIAL, 2)}
    content = {
        "initial_annots": annotations,
        "problematic_images": {VALIDATION[number]: "unclear" for number in problematic},
        "imagenet_m": [],
    }
    path = tmp_path / "human_accuracy_v3.0.0.json"
    path.write_text(json.dumps(content))

    right: dict[int, list[bool]] = {}
    for number in chosen:
        if VALIDATION[number] in content["problematic_images"]:
            continue
        correct = annotations[VALIDATION[number]]["correct"]
        right.setdefault(labels[number], []).append(OFFICIAL[said[number][0]] in correct)
    assert len(right) == 1000
    expected = sum(sum(each) / len(each) for each in right.values()) / len(right)

    row = score(np.array(said), validation, labels=[path]).rows[1]
    assert (row.images, row.mean) == (20_000 - 1_243, "classes")
    assert abs(row.top1 - expected) < _CLOSE
