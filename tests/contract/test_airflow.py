"""The DAG for Airflow passes only allowed flags, and only files of the administrator's folder."""

from __future__ import annotations

import dataclasses
import os
import runpy
import sys
import types
import typing
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep import download, duplicates, report, resize, verify
from imagenet_prep.core.address import AddressKind
from imagenet_prep.core.flags import Settings
from imagenet_prep.distribute import config as replicate
from imagenet_prep.pipelines import launch
from imagenet_prep.preparation import config as prepare
from imagenet_prep.trainer import config as train
from tests.kit.command import REPOSITORY
from tests.kit.messages import says

CONFIGS: dict[str, type[Settings]] = {
    "download": download.DownloadConfig,
    "prepare": prepare.PrepareConfig,
    "verify": verify.VerifyConfig,
    "duplicates": duplicates.DuplicatesConfig,
    "resize": resize.ResizeConfig,
    "replicate": replicate.ReplicateConfig,
    "report": report.ReportConfig,
    "launch": launch.LaunchConfig,
    "train": train.TrainConfig,
}
# Flags that no run may set. Those of prepare and train name folders, for which the DAG has
# parameters, or files that the command writes.
REFUSED = {
    "download": "connections dry_run json part_size retries timeout what",
    "prepare": "share",
    "verify": "allow_unsigned json signers worker_kind",
    "duplicates": "against json source splits worker_kind",
    "resize": "allow_unknown codec dataset_name dry_run exclude force json keep_original licence "
    "max_bad num_inter_threads num_intra_threads num_preprocess_threads on_bad_image orientation "
    "start_offset stretch worker_kind",
    "replicate": "bandwidth_limit check columns connections copies dry_run from_parent json mode "
    "part python repair replace retries timeout wait",
    "report": "compare labels level other out predictions seed source training",
    "launch": "check_timeout cycle_time_ms detach dry_run env fusion_threshold_mb grace "
    "mpi mpi_args network_interface rank_logs servers stall_timeout status stop "
    "torus_allreduce",
    "train": "export mirror predictions tensorboard_dir",
}
# Texts that are not paths, although their flags have neither choices nor a type of path.
PLAIN = {
    "holdout",
    "licence",
    "subset_classes",
    "lr_decay_steps",
    "lr_decay_lrs",
    "classes",
    "part",
    "env",
    "network_interface",
    "mpi_args",
    "columns",
    "allow_unsigned",
    "crop_area",
    "crop_aspect",
}
READ = (AddressKind.FILE, AddressKind.ANYWHERE)


class FailError(Exception):
    """Replaces Airflow's exceptions."""


class Dag:
    """The DAG file, loaded without Airflow: its tasks record their commands."""

    def __init__(self) -> None:
        def task(**_: Any) -> Callable[[Any], Any]:
            return lambda function: function

        def dag(**_: Any) -> Callable[[Any], Any]:
            return lambda _: lambda: None

        sdk: Any = types.ModuleType("airflow.sdk")
        sdk.Param, sdk.dag, sdk.task = dict, dag, task
        sdk.Param = lambda value, *_, **__: value
        failed: Any = types.ModuleType("airflow.sdk.exceptions")
        for name in ("AirflowException", "AirflowFailException", "AirflowSkipException"):
            setattr(failed, name, FailError)
        modules = {"airflow": types.ModuleType("airflow"), "airflow.sdk": sdk}
        with pytest.MonkeyPatch.context() as patch:
            for name, module in {**modules, "airflow.sdk.exceptions": failed}.items():
                patch.setitem(sys.modules, name, module)
            self.names = runpy.run_path(str(REPOSITORY / "pipelines" / "airflow_dag.py"))
        self.calls: list[tuple[str, ...]] = []
        # The tasks look these up in the globals of their module.
        found = self.names["prepare"].__globals__
        found["run"] = lambda *words: self.calls.append(words)
        found["_lineage"] = lambda *_: {}
        found["_manifest"] = lambda _: {"splits": ["train"]}
        found["_is_older"] = lambda *_: True

    def run(self, task: str, **params: Any) -> tuple[str, ...]:
        """Returns the command of a task."""
        self.calls.clear()
        self.names[task]({**self.names["PARAMS"], "train_ranks": 1, **params})
        return self.calls[0]


@pytest.fixture(scope="module")
def dag() -> Dag:
    return Dag()


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the administrator."""
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "away").symlink_to("/etc/passwd")
    (folder / "up").symlink_to("..")
    monkeypatch.setenv("IMAGENET_PREP_AIRFLOW_FILES", str(folder))
    return folder


def test_folder_of_the_administrator_may_be_a_link(
    dag: Dag, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = files.parent / "link"
    link.symlink_to(files)
    monkeypatch.setenv("IMAGENET_PREP_AIRFLOW_FILES", str(link))
    for folder in (files, link):
        flag = f"--exclude={folder}/keys.txt"
        assert flag in dag.run("prepare", prepare_flags=[flag])


def passed_by_the_dag(dag: Dag) -> dict[str, set[str]]:
    """Returns the fields that the DAG itself passes to each verb."""
    full = {
        "download_from": "/mirror",
        "allow_subset": True,
        "keep_original": True,
        "max_bad": 0,
        "duplicates": "cross",
        "resize_to": "/small",
        "replicate_to": "/replica",
        "train_ranks": 2,
        "train_hosts": "/data/hosts",
    }
    found: dict[str, set[str]] = {}
    for task in ("download", "prepare", "verify", "duplicates", "resize", "replicate", "train"):
        verb, *words = dag.run(task, **full)
        while words:
            word, _, _ = words.pop(0).partition("=")
            if word == "--":
                verb = words.pop(0)
            elif word.startswith("--"):
                found.setdefault(verb, set()).add(word[2:].replace("-", "_"))
            else:
                found.setdefault(verb, set()).add("dataset")
    found["report"] = {"dataset", "workers"}
    return found


def kind_of(name: str, spec: Any, hint: Any) -> int | None:
    """Returns the column of a flag in the DAG's table; None if it is not allowed."""
    kinds = [kind for kind in typing.get_args(hint) or (hint,) if kind is not type(None)]
    if bool in kinds:
        return 0
    if spec.place is not None:
        return 2 if spec.place in READ else None
    is_text = any("str" in str(kind) for kind in kinds)
    assert not is_text or spec.choices or name in PLAIN, f"{name}: give this flag a place"
    return 1


@pytest.mark.parametrize("verb", CONFIGS)
def test_every_flag_is_allowed_or_refused(
    dag: Dag, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IMAGENET_PREP_AIRFLOW_FILES", "/data")
    table = dag.names["_ALLOWED"].get(f"{verb}_flags", ("", "", ""))
    given = [{each.replace("-", "_") for each in words.split()} for words in table]
    own = passed_by_the_dag(dag)[verb]
    refused = set(REFUSED[verb].split())
    config = CONFIGS[verb]
    allowed = set().union(*given)
    fields = {
        f.name: f.metadata["flag"] for f in dataclasses.fields(config) if "flag" in f.metadata
    }

    assert sum(map(len, given)) == len(allowed)
    assert (allowed | own | refused) == fields.keys(), "allow a new flag in the DAG, or refuse it"
    assert not (allowed | own) & refused
    hints = typing.get_type_hints(config)
    kinds = {name: kind_of(name, spec, hints[name]) for name, spec in fields.items()}
    assert {name for name in allowed if name not in given[kinds[name] or 0]} == set()
    # Paths that the DAG does not set are read from the administrator's folder, or refused.
    paths = {name for name, spec in fields.items() if spec.place is not None}
    assert paths <= given[2] | own | refused


def test_unknown_parameters_end_the_run_first(dag: Dag) -> None:
    with pytest.raises(
        FailError, match=says("not-parameter-dag-nothing-started", "keep_orignal, ot")
    ):
        dag.run("download", ot="/data/set", keep_orignal=True)

    assert dag.calls == []


HOSTILE = [
    "--predictions=FILE",
    "--predictions FILE",
    "--export=FILE",
    "--tensorboard-dir FILE",
    "--tensorboard_dir=FILE",
    "--mirror=s3://bucket/run",
    "--mirror s3://bucket/run",
    "--log-dir=FILE",
    "--log_dir FILE",
    "--data-dir=FILE",
    "--data_dir FILE",
    "FILE",
    "-h",
    "--pred=FILE",
    "--expor=FILE",
    "--label=FILE",
    "--",
    "-- --predictions=FILE",
    "-",
    "",
    "-m tiny",
    "-b=4",
    "--eval",
    "--Predictions=FILE",
    "---predictions=FILE",
    "--=FILE",
    "--seed=1 --predictions=FILE",
    "--jit FILE",
    "--jit=FILE",
    "--evaluate --export FILE",
    "predictions=FILE",
    " --predictions=FILE",
    "--predictions\n=FILE",
    "--num_gpus=8",
]


@pytest.mark.parametrize("words", HOSTILE)
@pytest.mark.parametrize("task", ["prepare", "train"])
def test_unlisted_flags_are_refused(dag: Dag, files: Path, task: str, words: str) -> None:
    given = [word.replace("FILE", str(files / "x")) for word in words.split(" ")]
    if words.startswith(" "):
        given = [words]
    with pytest.raises(FailError, match=f"{task}_flags: "):
        dag.run(task, **{f"{task}_flags": given})
    assert dag.calls == []


ELSEWHERE = [
    "/etc/passwd",
    "FILES/../x",
    "FILES/away",
    "FILES/up/x",
    "FILES2/x",
    "x",
    "./x",
    "~/x",
    "",
    "s3://bucket/x",
    "http://host/x",
    "file:///FILES/x",
    "FILES/x,/etc/passwd",
    ",/etc/passwd",
    "/etc/passwd,FILES/x",
    "FILES/x, /etc/passwd",
    "FILES/x,/../../SRV/x",
    " FILES/x",
    "/",
]


@pytest.mark.parametrize("file", ELSEWHERE)
def test_files_outside_the_folder_are_refused(dag: Dag, files: Path, file: str) -> None:
    there = file.replace("FILES", str(files))
    for task, flags in {
        "prepare": ["exclude"],
        "train": ["labels", "also", "keys", "exclude"],
    }.items():
        for flag in flags:
            for words in ([f"--{flag}={there}"], [f"--{flag}", there]):
                for before in ([], [f"--{flag}={files}/x"], ["--seed", "3"]):
                    with pytest.raises(
                        FailError, match=says("not-folder-names-worker-put", ..., ..., "IMAGENET")
                    ):
                        dag.run(task, **{f"{task}_flags": [*before, *words]})
                    with pytest.raises(
                        FailError, match=says("not-folder-names-worker-put", ..., ..., "IMAGENET")
                    ):
                        dag.run(task, **{f"{task}_flags": [*words, *before]})
    for params in ({"train_hosts": there or "x"}, {"replicate_to": f"hosts:{there}:/x"}):
        if "://" not in there and "," not in there:
            with pytest.raises(
                FailError, match=says("not-folder-names-worker-put", ..., ..., "IMAGENET")
            ):
                dag.run("train" if "train_hosts" in params else "replicate", **params)


def test_without_the_folder_no_file_may_be_named(dag: Dag, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("IMAGENET_PREP_AIRFLOW_FILES", raising=False)
    for file in ("/data/keys", "/", "keys"):
        with pytest.raises(
            FailError, match=says("not-folder-names-worker-put", ..., ..., ..., "not set")
        ):
            dag.run("train", train_flags=[f"--keys={file}"])


def test_allowed_flags_reach_the_command(
    dag: Dag, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--labels", f"{files}/a,{files}/b", "--also=", "--num_epochs", "3", "--lr", "-0.1"]
    words[2] += f"{files}/v2"
    more = ["--seed", "--predictions=x", "--jit", "--model=tiny", f"--keys={files}/sub/keys"]
    given = dag.run("train", train_flags=[*words, *more])

    assert given[3:] == (
        f"--labels={files}/a,{files}/b",
        f"--also={files}/v2",
        "--num-epochs=3",
        "--lr=-0.1",
        "--seed=--predictions=x",
        "--jit",
        "--model=tiny",
        f"--keys={files}/sub/keys",
    )
    monkeypatch.setenv("IMAGENET_PREP_AIRFLOW_ALLOW_BEAM", "1")
    given = dag.run("prepare", prepare_flags=["--seed", "3", "--", "--runner", "x", "--", "y"])
    assert given[-6:] == ("--seed=3", "--", "--runner", "x", "--", "y")


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ([], "imagenet-prep: no output"),
        (["hashed 3", "killed"], "killed"),
        (
            ["imagenet-prep: slow disk", "imagenet-prep verify: bad", "  shard"],
            "imagenet-prep verify: bad shard",
        ),
    ],
)
def test_last_message_of_a_command_is_quoted(dag: Dag, output: list[str], message: str) -> None:
    assert dag.names["_message"](deque(output)) == message


@pytest.mark.parametrize(
    ("dataset", "replicas", "is_made"), [(1, 1, False), (3, 1, True), (1, 3, True)]
)
def test_report_is_made_after_every_change(
    dag: Dag, tmp_path: Path, dataset: int, replicas: int, is_made: bool
) -> None:
    (tmp_path / ".work").mkdir()
    for name, second in {
        "report.html": 2,
        "dataset.json": dataset,
        ".work/replicas.jsonl": replicas,
    }.items():
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (second, second))
    dag.calls.clear()
    dag.names["report"]({**dag.names["PARAMS"], "out": str(tmp_path)})
    assert bool(dag.calls) == is_made
