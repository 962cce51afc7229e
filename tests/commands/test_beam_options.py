"""Options for Beam after `--`, in each verb that accepts them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import pytest

from imagenet_prep.core import program
from tests.commands.conftest import SETTINGS
from tests.kit.dataset import Reference
from tests.kit.messages import says


def words_of(verb: str, reference: Reference, out: Path) -> Sequence[str]:
    """Returns the flags of a verb."""
    if verb == "prepare":
        return ["--source", str(reference.source), "--out", str(out), *SETTINGS]
    if verb == "resize":
        return ["-i", str(reference.out), "-o", str(out)]
    return [str(reference.out)]


@pytest.mark.beam
@pytest.mark.parametrize(
    ("options", "expected", "sentence"),
    [
        (["--runner=PortableRunner"], 2, says("runner-portablerunner-needs-job_endpoint-host")),
        (
            ["--runner=PrismRunner", "--prism_location=/nowhere/prism"],
            1,
            says("job-server-cannot-started-beam", "PrismRunner", "/nowhere/prism"),
        ),
        (
            [
                "--runner=FlinkRunner",
                "--flink_job_server_jar=/nowhere.jar",
                "--flink_master=[local]",
            ],
            1,
            says("job-server-cannot-started-beam", "FlinkRunner"),
        ),
        (
            ["--runner=DirectRunner", "--direct_num_worker=8"],
            2,
            says("beam-s-directrunner-no-option", "--direct_num_worker"),
        ),
        (["--runner=NoRunner"], 2, says("beam-refuses-options-after", "NoRunner")),
        (["--runner=no.such.Runner"], 2, says("beam-refuses-options-after", "No module")),
        (["--runner=DataflowRunner"], 2, says("beam-refuses-options-after")),
    ],
)
def test_wrong_beam_options_are_refused_without_lost_workers(
    reference: Reference,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    expected: int,
    sentence: re.Pattern[str],
) -> None:
    verify = import_module("imagenet_prep.verify")
    code = program.outcome(lambda: verify.run([str(reference.out), "--", *options]))
    said = capsys.readouterr().err

    assert code == expected, said
    assert sentence.search(said)
    assert not says("workers-lost").search(said)


@pytest.mark.beam
@pytest.mark.parametrize(
    ("module", "runner", "option", "who"),
    [
        ("imagenet_prep.pipelines.prepare", "FlinkRunner", "--flink_master", "Flink"),
        ("imagenet_prep.resize", "FlinkRunner", "--job_endpoint", "job server"),
        ("imagenet_prep.verify", "SparkRunner", "--job_endpoint", "job server"),
    ],
)
def test_unreachable_cluster_is_reported_in_one_line(
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
