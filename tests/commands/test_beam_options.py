"""Options for Beam after `--`, in each verb that accepts them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep.core import program
from imagenet_prep.storage.folder import LocalStore
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


@pytest.mark.parametrize(
    ("module", "words", "names"),
    [
        (
            "imagenet_prep.pipelines.prepare",
            ["--source", "source", "--out", "out", *SETTINGS, "--dry-run"],
            ["source", "out"],
        ),
        ("imagenet_prep.resize", ["-i", "set", "-o", "out", "--dry-run"], ["set", "out"]),
        ("imagenet_prep.verify", ["set", "--level", "manifest"], ["set"]),
    ],
)
@pytest.mark.parametrize("beam", [True, False])
def test_beams_workers_get_absolute_paths(
    reference: Reference,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    module: str,
    words: list[str],
    names: list[str],
    beam: bool,
) -> None:
    """Their current folder is a different one; without Beam, messages have the paths as typed."""
    (tmp_path / "source").symlink_to(reference.source)
    (tmp_path / "set").symlink_to(reference.out)
    monkeypatch.chdir(tmp_path)
    opened: set[str] = set()
    for kind in (LocalStore,):
        start = kind.__init__

        def recorded(self: Any, root: Any, *more: Any, start: Any = start) -> None:
            opened.add(str(root))
            start(self, root, *more)

        monkeypatch.setattr(kind, "__init__", recorded)
    import_module(module).run([*words, *(["--", "--runner=DirectRunner"] if beam else [])])
    places = {str(tmp_path / name) if beam else name for name in names}
    others = {str(tmp_path / name) if not beam else name for name in names}
    assert places <= opened
    assert others.isdisjoint(opened)
