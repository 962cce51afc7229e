"""`imagenet-prep score` makes the table of a file of predictions, without a framework."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep import score as score_verb
from imagenet_prep.core.errors import UsageError
from imagenet_prep.dataset import predictions
from imagenet_prep.dataset.predictions import Prediction
from tests.kit.command import PATIENCE_S
from tests.kit.evaluated import OFFICIAL, VALIDATION, write_names
from tests.kit.messages import says


@pytest.fixture
def given(tmp_path: Path) -> dict[str, Path]:
    """A dataset of six images, predictions of a network, and two lists."""
    heads = [(VALIDATION[n], 100 * n) for n in range(6)]
    stream = io.StringIO()
    said = [
        Prediction(key, label, (label + n % 2, label, 7, 8, 9), (0.5, 0.25, 0.1, 0.1, 0.05))
        for n, (key, label) in enumerate(heads)
    ]
    predictions.write(stream, said)
    paths = {name: tmp_path / name for name in ("set", "said.csv", "real.json", "own.csv")}
    write_names(paths["set"], heads)
    paths["said.csv"].write_text(stream.getvalue())
    real = [[], [101], [200, 3], [300], [1], [501]] + [[5]] * 49_994
    paths["real.json"].write_text(json.dumps(real))
    paths["own.csv"].write_text(f"key,class\n{VALIDATION[4]},{OFFICIAL[8]}\n")
    return paths


def shown(capsys: pytest.CaptureFixture[str], *argv: object) -> str:
    assert score_verb.run([str(each) for each in argv]) == 0
    return capsys.readouterr().out


def test_json_has_a_row_for_each_list(
    given: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--labels", given["real.json"], "--labels", given["own.csv"], "--json")
    table: dict[str, Any] = json.loads(shown(capsys, given["said.csv"], given["set"], *flags))

    names = ("set", "labels", "images", "top1", "top5")
    assert [[row[name] for name in names] for row in table["rows"]] == [
        [str(given["set"]), "dataset", 6, 0.5, 1.0],
        [str(given["set"]), "real.json", 5, 3 / 5, 4 / 5],
        [str(given["set"]), "own.csv", 1, 0.0, 1.0],
    ]
    assert [each["unknown"] for each in table["lists"]] == [49_994, 0]
    assert table["lists"][0]["first"][0] == VALIDATION[6]


def test_text_is_one_table_with_its_label_lists(
    given: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    both = f"{given['real.json']},{given['own.csv']}"
    lines = shown(capsys, given["said.csv"], given["set"], "--labels", both).splitlines()

    assert lines[0].startswith("set ")
    assert [line.split()[1] for line in lines[1:4]] == ["dataset", "real.json", "own.csv"]
    assert lines[2].split()[2:] == ["5", "5", "of", "1,000", "all", "1,000", "60.00%", "80.00%"]
    (real,) = (line for line in lines if line.startswith("real.json: "))
    assert "ReaL's form, another file than the published one, 50,000 keys, sha256 " in real
    assert says("without-image", "49,994 keys", "ILSVRC2012_val_00000007.JPEG,").search(real)


def test_score_needs_no_framework_even_for_refusals(given: dict[str, Path]) -> None:
    given["own.csv"].write_text("key,class\nx,5\n")
    program = (
        "import sys; sys.modules.update(dict.fromkeys(['tensorflow', 'mxnet', 'torch', 'PIL']));"
        "import runpy; runpy.run_module('imagenet_prep', run_name='__main__')"
    )
    words = [sys.executable, "-c", program, "score", given["said.csv"], given["set"]]

    def run(*more: object) -> subprocess.CompletedProcess[str]:
        argv = list(map(str, (*words, *more)))
        return subprocess.run(argv, capture_output=True, text=True, timeout=PATIENCE_S)

    done = run()
    assert (done.returncode, done.stderr) == (0, "")
    refused = run("--labels", given["own.csv"])
    assert (refused.returncode, refused.stdout) == (2, "")
    assert says("none-keys-see-keys-use", "imagenet-prep: own.csv").match(refused.stderr)


def test_predictions_of_a_different_dataset_are_refused(
    given: dict[str, Path], tmp_path: Path
) -> None:
    other = write_names(tmp_path / "other", [(VALIDATION[n], 0) for n in range(5)])
    with pytest.raises(
        UsageError,
        match=says("expected-same-number-predictions-keys", ..., "5 images", "6 predictions"),
    ):
        score_verb.run([str(given["said.csv"]), str(other)])
