"""Prepare as one Beam graph on Beam's own runner: the same bytes, and steps for other pipelines."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from imagenet_prep.core import program
from imagenet_prep.core.errors import DataDamagedError, JobLostError, UsageError
from imagenet_prep.dataset import schema
from imagenet_prep.engine.workers import Done
from imagenet_prep.pipelines import prepare as prepare_verb
from imagenet_prep.pipelines.prepare import PrepareConfig, prepare
from tests.kit import command
from tests.kit.command import REPOSITORY
from tests.kit.dataset import contents
from tests.kit.layouts import make_box_archives
from tests.kit.machine import lines_of
from tests.kit.messages import says
from tests.kit.miniature import Miniature, miniature_for_tests

PAGE = (REPOSITORY / "docs" / "cluster.md").read_text("utf-8")
# Beam's DirectRunner would first try to download another program.
LOCAL = "--runner=apache_beam.runners.portability.fn_api_runner.FnApiRunner"


@pytest.mark.beam
def test_graph_refuses_to_plan_if_runner_lost_tasks(shared_cache: Path, tmp_path: Path) -> None:
    """A worker that retries a lost turn finds its tasks claimed, and does none of them."""
    from imagenet_prep.pipelines import graph

    made = miniature_for_tests(shared_cache, num_train=60, num_validation=20, size=(100, 75))
    source = tmp_path / "source"
    shutil.copytree(made.root, source)
    make_box_archives(made, source)
    flags = ["--source", str(source), "--out", str(tmp_path / "out"), "--allow-subset", "--json"]
    ours = graph.Preparation.of(flags)
    selection = ours.job.selection
    assert selection.annotations is not None
    images = [ours.index.publish(task, ours.index.make(task)) for task in selection.index_tasks()]
    listed = [Done(*each, True) for each in zip(selection.index_tasks(), images, strict=True)]
    read = [Done(task, {}, True) for task in selection.annotations.tasks]

    for images, boxes in ((listed[1:], read), (listed, read[1:])):
        with pytest.raises(JobLostError, match=says("tasks-not-finished", "1")):
            graph.deal(None, ours, images, boxes)
    assert ours.plan.stored() is None
    assert graph.deal(None, ours, listed, read) == ours.plan.stored()


@pytest.mark.beam
def test_commit_counts_bad_images_of_all_workers(
    shared_cache: Path, miniature: Miniature, tmp_path: Path
) -> None:
    from imagenet_prep.pipelines import graph

    made = miniature_for_tests(shared_cache, num_train=60, num_validation=20, size=(100, 75))
    num_bad = sum(image.fate == "quarantined" for image in made.images)
    out = tmp_path / "out"
    flags = ["--source", str(made.root), "--out", str(out), "--allow-subset", "--json", "--max-bad"]
    ours = graph.Preparation.of([*flags, str(num_bad - 1)])
    tasks = ours.job.selection.index_tasks()
    listed = [Done(task, ours.index.publish(task, ours.index.make(task)), True) for task in tasks]
    inventory = graph.deal(None, ours, listed, [])
    stage = ours.write(inventory)
    names = []
    for task in graph._begin(inventory, ours):
        stage.publish(task, stage.make(task))
        names.append(task.name)

    with pytest.raises(DataDamagedError, match=says("bad-images-more-max-bad-last", num_bad)):
        graph._commit(inventory, ours, names)
    allowed = graph.Preparation.of([*flags, str(num_bad)])
    with pytest.raises(JobLostError, match=says("tasks-not-finished", "1")):
        graph._commit(inventory, allowed, names[1:])
    newest = graph.Preparation.of([*flags, str(num_bad)])
    with pytest.raises(JobLostError):  # `newest` has taken the lease over
        graph._commit(inventory, allowed, names)
    assert not (out / schema.MANIFEST).exists()
    graph._commit(inventory, newest, names)
    assert (out / schema.MANIFEST).exists()

    flags[1] = str(miniature.root)
    with pytest.raises(UsageError, match=says("source-changed-since-dataset-made", out)):
        graph.Preparation.of([*flags, str(num_bad)])


@pytest.mark.beam
def test_documentation_lists_all_steps_of_the_graph() -> None:
    from imagenet_prep.pipelines import graph

    section = PAGE.partition("## Beam on this machine")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| \w+ \| ([A-Z][\w, ]+) \|", section, re.MULTILINE)
    ours = {each.__name__ for each in graph._Step.__subclasses__()}
    assert {*", ".join(cells).split(", ")} == ours


@pytest.mark.beam
@pytest.mark.slow
def test_graph_writes_same_bytes_and_exports_its_steps(
    shared_cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = miniature_for_tests(shared_cache, num_train=60, num_validation=20, size=(100, 75))
    source = tmp_path / "source"
    here = tmp_path / "here"
    there = tmp_path / "there"
    shutil.copytree(made.root, source)
    make_box_archives(made, source)
    prepare(PrepareConfig(str(source), str(here), allow_subset=True, holdout="7", json=True))
    (line,) = lines_of("$ cluster.md: Beam on this machine")
    places = {"/data/ilsvrc2012": str(source), "/data/imagenet-480": str(there)}
    words = [places.get(word, word) for word in shlex.split(line)[2:]]
    at = words.index("--")
    flags = (*words[:at], "--allow-subset", "--holdout", "7", "--")
    code = program.outcome(lambda: prepare_verb.run([*flags, *words[at + 1 :]]))
    ended = command.Finished(code, *capsys.readouterr())
    assert (ended.code, ended.complaints) == (0, "")
    assert contents(there) == contents(here)
    assert not (there / ".work/jobs").exists()

    # A custom pipeline does the rest: one shard and the manifest.
    shard = next(there.glob("train-0*"))
    shard.unlink()
    (there / schema.MANIFEST).unlink()
    kept = {path.name: path.stat().st_mtime_ns for path in there.glob("*-of-*")}
    argv = [sys.executable, REPOSITORY / "examples/beam_pipeline.py", *flags, LOCAL]
    told = subprocess.run(
        argv, env=command.environment(PYTHONPATH=str(REPOSITORY)), capture_output=True, text=True
    )
    assert told.returncode == 0, told.stderr
    assert contents(there) == contents(here)
    for name, changed in kept.items():
        assert (there / name).stat().st_mtime_ns == changed, "it was made again"
    lines = told.stdout.splitlines()
    assert {"('train', 60)", "('validation', 20)", shard.name, str(there)} <= {*lines}


@pytest.mark.beam
@pytest.mark.long
def test_the_direct_runner_has_several_processes_as_documented(
    shared_cache: Path, tmp_path: Path
) -> None:
    made = miniature_for_tests(shared_cache, num_train=60, num_validation=20, size=(100, 75))
    (options,) = re.findall(r"`(--direct_running_mode=.*?)8`", PAGE)
    for name, beam in (
        ("here", ()),
        ("there", ("--", "--runner=DirectRunner", *f"{options}2".split())),
    ):
        places = ("--source", made.root, "--out", tmp_path / name)
        done = command.run("prepare", *places, "--allow-subset", *beam)
        assert done.code == 0, done

    assert contents(tmp_path / "there") == contents(tmp_path / "here")
