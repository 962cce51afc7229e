"""Evaluation datasets from archives to the table: `prepare` makes them and `score` counts them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from imagenet_prep.evaluation import score
from imagenet_prep.evaluation.sheet import EvaluatedSet
from imagenet_prep.pipelines import prepare
from tests.kit import evaluation_datasets
from tests.kit.evaluation_datasets import Made


def prepared(made: Made, tmp_path: Path, name: str) -> Path:
    source = evaluation_datasets.put(made.files, tmp_path / "source", name, "folder")
    out = tmp_path / "out"
    assert prepare.run(["--source", str(source), "--out", str(out), "--allow-subset"]) == 0
    return out


def test_objectnet_answers_and_border_reach_the_table(tmp_path: Path) -> None:
    out = prepared(evaluation_datasets.objectnet(), tmp_path, "objectnet-1.0")
    keys = EvaluatedSet(str(out)).keys
    scores = np.zeros((4, 1000))
    for row, key in zip(scores, keys, strict=True):
        # The second class of an alarm clock. No banana among all classes, but one among the
        # dataset's.
        row[530 if "alarm_clock" in key else 0] = 2
        row[954] = 1
    table = score(scores, out)

    assert [(row.images, row.among, row.top1) for row in table.rows] == [
        (4, 1000, 0.5),
        (4, 3, 1.0),
    ]


def test_corruption_and_severity_reach_the_table(tmp_path: Path) -> None:
    groups = [("fog", severity) for severity in range(1, 6)]
    made = evaluation_datasets.corrupted(groups, range(3), each=2)
    out = prepared(made, tmp_path, "weather")
    there = EvaluatedSet(str(out))
    indices = np.full((len(there.keys), 5), -1)
    # With each severity, one more image in six is wrong.
    images = sorted({key.rpartition("/")[2] for key in there.keys})
    indices[:, 0] = [
        999 if images.index(key.rpartition("/")[2]) + 1 < int(key.split("/")[1]) else label
        for key, label in zip(there.keys, there.class_index.tolist(), strict=True)
    ]
    (found,) = score(indices, out).corruptions.values()
    fog = found["corruptions"]["fog"]
    assert [*fog["errors"]] == ["1", "2", "3", "4", "5"]
    assert np.allclose([*fog["errors"].values()], [n / 6 for n in range(5)])
    assert np.isclose(fog["ce"], 2 / 6 / 0.819324)
    assert found["mce"] is None
