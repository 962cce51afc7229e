"""docs/own-script.md: its eight changes are those between the two examples, and they work."""

from __future__ import annotations

import ast
import contextlib
import difflib
import io
import json
import re
import runpy
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep.read import Reader
from tests.kit.command import PATIENCE_S, REPOSITORY, started
from tests.kit.reading import asked
from tests.kit.training import NUM_VALIDATION, horovod, shades

__all__ = ["horovod", "shades"]

EXAMPLES = REPOSITORY / "examples"
PAGE = (REPOSITORY / "docs" / "own-script.md").read_text("utf-8")


def test_the_page_has_every_change_of_the_script_and_no_other() -> None:
    single, distributed = (
        (EXAMPLES / name).read_text("utf-8").partition('"""\n')[2].splitlines()
        for name in ("single.py", "distributed.py")
    )
    changed = [line[2:] for line in difflib.ndiff(single, distributed) if line[:2] == "+ "]
    shown = {line.strip() for line in PAGE.splitlines()}
    code = [line.partition("  # ")[0].strip() for line in changed]
    # Rank 0 indents what it alone does; the reader only says what it does.
    unchanged = {line.strip() for line in single}
    new = [line for line in code if line and line not in unchanged and '"""' not in line]

    assert [line for line in new if line not in shown] == []
    numbers = [number for line in changed for number in re.findall(r"  # (\d)$", line)]
    assert sorted(set(numbers)) == [str(number) for number in range(1, 9)]


@pytest.mark.parametrize("name", ["pytorch.py", "pytorch_horovod.py"])
def test_the_examples_for_pytorch_ask_the_reader_for_what_it_has(name: str) -> None:
    """tests/frameworks runs them; PyTorch is not in this environment."""
    tree = ast.parse((EXAMPLES / name).read_text("utf-8"))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    (made,) = [c for c in calls if isinstance(c.func, ast.Name) and c.func.id == "make_dataset"]
    chosen = {each.arg: ast.literal_eval(each.value) for each in made.keywords if each.arg}

    assert asked("set", "train", 8, **chosen).backend == "native"
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert {"state_dict", "load_state_dict"} <= used & set(dir(Reader))


def printed(program: Path, *arguments: str | Path) -> str:
    """Returns what a program prints that is run here, where TensorFlow is imported already."""
    import keras

    # Another test's training in this process may have left another one.
    keras.config.set_dtype_policy("float32")
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        patch.setattr(sys, "argv", [str(program), *map(str, arguments)])
        warnings.simplefilter("ignore")  # of Keras, which copies its variables as NumPy 1 had it
        with contextlib.redirect_stdout(io.StringIO()) as out:
            runpy.run_path(str(program))
    return out.getvalue()


def rows(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


@pytest.mark.tf
@pytest.mark.horovod
@pytest.mark.slow
def test_two_ranks_learn_what_one_process_learns_and_horovod_has_its_levers(
    tf: Any, horovod: None, shades: Path, tmp_path: Path
) -> None:
    """Both have the same images per step and the same learning rate in the end."""
    import keras
    import numpy as np

    shared = ("--data-dir", shades, "--image-size", "32", "--epochs", "2")
    alone = (*("--batch-size", "8", "--learning-rate", "0.1", "--out", tmp_path / "single.keras"),)
    half = (*("--batch-size", "4", "--learning-rate", "0.05", "--out", tmp_path / "both.keras"),)
    levers = ("--timeline", tmp_path / "timeline.json", "--fusion-threshold-mb", "16")
    launch = ("launch", "-np", "2", "--rank-logs", tmp_path / "logs", *levers, "--", "python")
    with started(*launch, EXAMPLES / "distributed.py", *shared, *half) as running:
        single = rows(printed(EXAMPLES / "single.py", *shared, *alone))
        finished = running.finish(PATIENCE_S)
    assert finished.code == 0, finished

    both = rows(finished.out)
    assert [row["epoch"] for row in both] == [0, 1]  # only rank 0 prints
    assert [row["images"] for row in both] == [NUM_VALIDATION] * 2
    for one, other in zip(single, both, strict=True):
        assert other["loss"] == pytest.approx(one["loss"], rel=1e-3)
        assert other["top1"] == pytest.approx(one["top1"], abs=1 / NUM_VALIDATION + 1e-6)
    models = [keras.saving.load_model(tmp_path / f"{n}.keras") for n in ("single", "both")]
    for one, other in zip(*(model.get_weights() for model in models), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-2, atol=1e-3)

    logs = ((tmp_path / "logs" / f"rank-{rank}.log").read_text("utf-8") for rank in (0, 1))
    assert [rows(log) for log in logs] == [both, []]
    timeline = (tmp_path / "timeline.json").read_text("utf-8")
    assert timeline.startswith("[")
    assert "ALLREDUCE" in timeline
