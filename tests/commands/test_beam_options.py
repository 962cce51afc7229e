"""Options for Beam after `--`, in each verb that takes them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import pytest

from imagenet_prep.core import program
from tests.commands.conftest import SETTINGS
from tests.kit.dataset import Reference


def words_of(verb: str, reference: Reference, out: Path) -> Sequence[str]:
    """Returns the flags of a verb."""
    if verb == "prepare":
        return ["--source", str(reference.source), "--out", str(out), *SETTINGS]
    if verb == "resize":
        return ["-i", str(reference.out), "-o", str(out)]
    return [str(reference.out)]


@pytest.mark.beam
@pytest.mark.parametrize(
    ("module", "runner", "option", "who"),
    [
        ("imagenet_prep.pipelines.prepare", "FlinkRunner", "--flink_master", "Flink"),
        ("imagenet_prep.resize", "FlinkRunner", "--job_endpoint", "job server"),
        ("imagenet_prep.verify", "SparkRunner", "--job_endpoint", "job server"),
    ],
)
def test_a_cluster_that_is_not_there_is_one_line(
    tmp_path: Path,
    reference: Reference,
    capsys: pytest.CaptureFixture[str],
    module: str,
    runner: str,
    option: str,
    who: str,
) -> None:
    words = words_of(module.rpartition(".")[2], reference, tmp_path / "out")
    beam = ("--", f"--runner={runner}", f"{option}=127.0.0.1:1")
    code = program.outcome(lambda: import_module(module).run([*words, *beam]))

    assert code == 1
    said = re.sub(r"\Asource: .*\n", "", capsys.readouterr().err)
    assert re.fullmatch(rf"imagenet-prep: (the )?{who} does not answer at .*\n", said)
