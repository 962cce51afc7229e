"""The DAG in a real Airflow: it works, resumes, gives up on permanent errors, and loads little."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.commands.airflow.conftest import Airflow
from tests.kit import command, faults
from tests.kit.dataset import contents, everything, receipts
from tests.kit.messages import says
from tests.kit.miniature import Miniature, miniature_for_tests

pytestmark = [pytest.mark.airflow, pytest.mark.slow]

TASKS = ["download", "prepare", "verify", "duplicates", "resize", "replicate", "report", "train"]
FLAGS = ["--train-shards=4", "--validation-shards=2"]
SECRET = "open-sesame-7f3a"
HOSTILE = '/data/it\'s "one" $(touch owned); rm -rf `pwd` {{ params.out }} --json\n数据'


@pytest.fixture(scope="session")
def mini(shared_cache: Path) -> Miniature:
    """120 + 32 images with all odd kinds; read-only."""
    return miniature_for_tests(shared_cache, num_train=120, num_validation=32, size=(160, 120))


class Fake:
    """Replaces `imagenet-prep` in tests that do not need its work."""

    def __init__(self, airflow: Airflow, folder: Path) -> None:
        self.folder = folder
        self.out = folder / "out"
        self.out.mkdir(parents=True)
        splits = {"train": {}, "validation": {}}
        (self.out / "dataset.json").write_text(json.dumps({"digest": "d1ge57", "splits": splits}))
        (self.out / "report.html").touch()
        airflow.use(sys.executable, Path(__file__).with_name("fake.py"), folder)

    def ends(self, **codes: list[int]) -> None:
        (self.folder / "plan.json").write_text(json.dumps(codes))

    @property
    def calls(self) -> list[list[str]]:
        lines = (self.folder / "calls.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]


@pytest.fixture
def fake(airflow: Airflow, tmp_path: Path) -> Fake:
    return Fake(airflow, tmp_path / "fake")


def without_page(out: Path) -> dict[str, bytes]:
    return {name: data for name, data in contents(out).items() if name != "report.html"}


def reference(source: Path, out: Path, *flags: str) -> dict[str, bytes]:
    """Returns the files that `prepare` makes by itself."""
    places = ("--source", source, "--out", out, "--short-side=100", "--allow-subset")
    result = command.run("prepare", *places, *flags)
    assert result.code == 0, result
    return contents(out)


def test_dag_makes_verified_dataset_and_is_idempotent(
    airflow: Airflow, mini: Miniature, unusual_tmp_path: Path, tmp_path: Path
) -> None:
    out = unusual_tmp_path / "out"
    replica = unusual_tmp_path / "replica"
    conf = {
        "download_from": str(mini.root),
        "source": str(unusual_tmp_path / "archives"),
        "allow_subset": True,
        "out": str(out),
        "short_side": 100,
        "prepare_flags": FLAGS,
        "verify_level": "decode",
        "duplicates": "find",
        "replicate_to": str(replica),
    }
    ended = airflow.test(**conf)

    assert ended.state == "success", ended.log
    assert ended.tasks == {
        **dict.fromkeys(TASKS, ("success", 1)),
        "resize": ("skipped", 1),
        "train": ("skipped", 1),
    }
    digest = json.loads((out / "dataset.json").read_bytes())["digest"]
    for task in ("prepare", "verify", "replicate"):
        assert ended.xcoms[f"{task}.digest"] == digest
    assert (unusual_tmp_path / "out-duplicates" / "pairs.csv").exists()
    page = out / "report.html"
    assert ended.xcoms["report.report"] == str(page)
    assert ended.xcoms["report.bytes"] == page.stat().st_size > 100_000
    whole = reference(mini.root, tmp_path / "reference", *FLAGS)
    assert without_page(out) == whole
    assert contents(replica) == whole

    before = {
        folder: everything(folder) for folder in (out, replica, unusual_tmp_path / "archives")
    }
    (again,) = airflow.tasks(conf)

    assert again["verify"]["digest"] == digest
    assert list(again) == [task for task in TASKS if task not in ("resize", "train")], again
    locks = {".work", ".work/lock"}  # the lock's file has the last process that held it
    for folder, files in before.items():
        assert {n for n, now in everything(folder).items() if now != files.get(n)} <= locks


@pytest.mark.long
def test_airflow_command_line_runs_the_dag(
    airflow: Airflow, mini: Miniature, tmp_path: Path
) -> None:
    conf = {"source": str(mini.root), "allow_subset": True, "out": str(tmp_path / "out")}
    ended = airflow.cli("dags", "test", "imagenet_prep", "--conf", json.dumps(conf))

    assert ended.code == 0, ended
    assert "state=success" in ended.out + ended.err


# Faster test of the same: the fake program that a signal ends.
@pytest.mark.long
def test_killed_command_is_retried_and_gives_same_bytes(
    airflow: Airflow, tmp_path: Path, shared_cache: Path
) -> None:
    many = miniature_for_tests(shared_cache, num_train=300, num_validation=60, size=(160, 120))
    flags = ["--train-shards=24", "--validation-shards=4"]
    out = tmp_path / "out"
    conf = {"source": str(many.root), "allow_subset": True, "out": str(out), "short_side": 100}
    for _ in range(5):
        with airflow.running(**conf, workers=1, prepare_flags=flags) as running:
            command.wait_until(lambda r=running: receipts(out) or r.ended, "the first shard")
            pids = [pid for pid in running.workers() if b"\0prepare\0" in cmdline(pid)]
            running.send(signal.SIGKILL, pids)
            done = len(receipts(out))
            ended = airflow.finish(running)
        if ended.tasks["prepare"] != ("success", 1):
            break
        shutil.rmtree(out)  # prepare ended before the signal

    assert 0 < done < 28
    assert ended.state == "success", ended.log
    assert ended.tasks["prepare"] == ("success", 2)
    assert says("imagenet-prep-ended-out-memory", "prepare", "SIGKILL").search(ended.log)
    assert without_page(out) == reference(many.root, tmp_path / "reference", *flags)


def cmdline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


# Faster test of the same: the fake program with exit code 3.
@pytest.mark.long
def test_damaged_archive_fails_without_retry(
    airflow: Airflow, mini: Miniature, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    shutil.copytree(mini.root, source)
    archive = source / "ILSVRC2012_img_val.tar"
    faults.cut(archive, archive.stat().st_size // 2)

    ended = airflow.test(source=str(source), out=str(tmp_path / "out"), allow_subset=True)

    assert ended.state == "failed"
    assert ended.tasks["prepare"] == ("failed", 1)
    assert {ended.tasks[task][0] for task in TASKS[2:]} == {"upstream_failed"}
    (line,) = [line for line in ended.log.splitlines() if "AirflowFailException: " in line]
    assert says("imagenet-prep-choose-different-port", f"{archive.name}: byte").search(line)
    assert line.endswith("(exit code 3)")


def test_parameters_reach_the_command_as_single_words(airflow: Airflow, fake: Fake) -> None:
    out = str(fake.out)
    airflow.env = {"IMAGENET_PREP_AIRFLOW_ALLOW_BEAM": "1", "IMAGENET_PREP_AIRFLOW_FILES": "/data"}
    ended = airflow.test(
        source=HOSTILE,
        download_from=HOSTILE,
        out=out,
        allow_subset=True,
        keep_original=True,
        max_bad=0,
        prepare_flags=["--", HOSTILE],
        replicate_to=HOSTILE,
        train_ranks=2,
        train_hosts=HOSTILE,
        log_dir=HOSTILE,
        train_flags=["--recipe=tutorial", f"--classes={HOSTILE}"],
    )

    assert ended.state == "success", ended.log
    assert fake.calls == [
        ["download", f"--into={HOSTILE}", f"--base-url={HOSTILE}", "--allow-other"],
        [
            "prepare",
            f"--source={HOSTILE}",
            f"--out={out}",
            "--short-side=480",
            "--quality=90",
            "--keep-original",
            "--allow-subset",
            "--max-bad=0",
            "--workers=0",
            "--",
            HOSTILE,
        ],
        ["verify", out, "--level=crc", "--if-changed", "--workers=0"],
        ["replicate", out, f"--to={HOSTILE}"],
        [
            "launch",
            "--num-processes=2",
            f"--hosts={HOSTILE}",
            "--",
            "train",
            f"--data-dir={out}",
            f"--log-dir={HOSTILE}",
            "--recipe=tutorial",
            f"--classes={HOSTILE}",
        ],
    ]
    assert ended.xcoms["train.digest"] == "d1ge57"


def test_later_tasks_use_the_verified_resized_copy(
    airflow: Airflow, fake: Fake, tmp_path: Path
) -> None:
    copy = tmp_path / "small"
    copy.mkdir()
    (copy / "dataset.json").write_text('{"digest": "5ma11", "splits": {}}')
    ended = airflow.test(
        source="s3://bucket/ilsvrc2012",
        out=str(fake.out),
        resize_to=str(copy),
        resize_short_side=128,
        replicate_to="/replica",
        train_ranks=1,
        log_dir="/log",
    )

    # The page of the copy does not exist, since the program is a fake.
    assert ended.tasks["report"][0] == "failed"
    assert fake.calls[0][:2] == ["prepare", "--source=s3://bucket/ilsvrc2012"]
    resized, verified, replicated, reported = fake.calls[2:6]
    assert resized == [
        "resize",
        f"--input-dir={fake.out}",
        f"--output-dir={copy}",
        "--splits=train,validation",
        "--short-side=128",
        "--quality=90",
        "--workers=0",
    ]
    assert verified == ["verify", str(copy), "--if-changed", "--workers=0"]
    assert replicated == ["replicate", str(copy), "--to=/replica"]
    assert reported == ["report", str(copy), "--workers=0"]
    assert ended.xcoms["prepare.digest"] == "d1ge57"
    assert ended.xcoms["resize.digest"] == ended.xcoms["replicate.digest"] == "5ma11"


def test_download_is_refused_if_source_is_an_address(airflow: Airflow, fake: Fake) -> None:
    address = "https://mirror.edu/ilsvrc2012"
    conf = {"source": address, "download_from": "https://mirror.edu/", "out": str(fake.out)}
    (told,) = airflow.tasks(conf)

    refused = says("download_from-source-read-place-empty", address, on="AirflowFailException")
    assert refused.match(told["download"])


def test_options_that_start_programs_need_administrators_permission(
    airflow: Airflow, fake: Fake
) -> None:
    airflow.env = {"IMAGENET_PREP_AIRFLOW_ALLOW_BEAM": "0"}
    flags = ["--train-shards=4", "--", "--environment_type=PROCESS"]
    (told,) = airflow.tasks({"out": str(fake.out), "prepare_flags": flags})

    assert list(told) == ["prepare"]
    assert "AirflowFailException: prepare_flags: -- starts options for Apache" in told["prepare"]
    assert not (fake.folder / "calls.jsonl").exists()


def test_files_outside_the_administrators_folder_are_refused(
    airflow: Airflow, fake: Fake, tmp_path: Path
) -> None:
    files = tmp_path / "files"
    out = {"out": str(fake.out)}
    files.mkdir()
    (files / "link").symlink_to("/proc/self/environ")
    elsewhere = ["/proc/self/environ", f"{files}/../x", f"{files}/link", "hosts", f"{files}2/x"]
    elsewhere.append(f"{files}/../y")
    confs: list[dict[str, Any]] = [
        {"prepare_flags": [f"--exclude={elsewhere[0]}"]},
        {"prepare_flags": ["--exclude", elsewhere[1]]},
        {"replicate_to": f"hosts:{elsewhere[2]}:/x"},
        {"train_ranks": 1, "train_hosts": elsewhere[3]},
        {"train_ranks": 1, "train_flags": ["--keys", elsewhere[4]]},
        {"train_ranks": 1, "train_flags": ["--exclude", elsewhere[5]]},
    ]
    good = {
        "prepare_flags": [f"--exclude={files}/keys"],
        "replicate_to": f"hosts:{files}/hosts:/x",
        "train_ranks": 1,
        "train_hosts": f"{files}/hosts",
        "train_flags": ["--keys", f"{files}/sub/keys", "--jit"],
    }
    metrics = tmp_path / "metrics"
    airflow.env = {
        "IMAGENET_PREP_AIRFLOW_FILES": str(files),
        "IMAGENET_PREP_AIRFLOW_METRICS": str(metrics),
    }
    *told, passed = airflow.tasks(*({**out, **conf} for conf in [*confs, good]))
    for conf, file, returned in zip(confs, elsewhere, told, strict=True):
        refused = says(
            "not-folder-names-worker-put", f"AirflowFailException: {list(conf)[-1]}", file
        )
        assert refused.match(list(returned.values())[-1])
    assert passed["train"]["digest"] == "d1ge57"
    assert [call[:2] for call in fake.calls[-4:]] == [
        [verb, f"--metrics-file={metrics}/imagenet-prep-{verb}.prom"]
        for verb in ("prepare", "verify", "replicate", "launch")
    ]

    airflow.env = {}
    (refused,) = airflow.tasks({**out, "prepare_flags": [f"--exclude={files}/keys"]})
    folder = "the folder that IMAGENET_PREP_AIRFLOW_FILES names on the worker"
    assert f"{folder} (not set)" in refused["prepare"]


def test_run_is_refused_if_address_has_a_password(airflow: Airflow, fake: Fake) -> None:
    confs: list[dict[str, Any]] = [
        {"download_from": f"https://ann:{SECRET}@mirror.edu/"},
        {"source": f"https://ann:{SECRET}@mirror.edu/"},
        {"replicate_to": f"s3://ann:{SECRET}@bucket/set"},
        {"train_flags": ["--recipe=tutorial", f"--mirror=s3://ann:{SECRET}@bucket/run"]},
        {"prepare_flags": [f"--source=https://ann:{SECRET}/x@mirror.edu/"]},
    ]
    words = [json.dumps({"out": str(fake.out), **conf}) for conf in confs]
    asked = airflow.call("trigger", *words)

    said = [line for line in asked.out.splitlines() if line.startswith(("refused: ", "runs: "))]
    refused = [f"refused: Invalid input for param {next(iter(conf))}" for conf in confs]
    assert said == [*refused, "runs: 0"], asked
    assert SECRET not in asked.out + asked.err
    kept = [path for path in airflow.home.rglob("*") if path.is_file()]
    assert [path for path in kept if SECRET.encode() in path.read_bytes()] == []


def test_address_with_password_reaches_no_log(airflow: Airflow, fake: Fake) -> None:
    word = f"--base-url=https://ann:{SECRET}@mirror.edu/"
    refused = airflow.call("command", word)

    assert says("address-parameters-contains-user-name", "AirflowFailException: prepare").search(
        refused.err
    )
    assert SECRET not in refused.out + refused.err
    assert not (fake.folder / "calls.jsonl").exists()


def test_transient_errors_are_retried_and_others_are_not(airflow: Airflow, fake: Fake) -> None:
    """Waiting for a different run does not use up tries."""
    airflow.env["IMAGENET_PREP_AIRFLOW_BUSY_S"] = "0.01"
    fake.ends(prepare=[75, 4, 137, 75, 75, -signal.SIGKILL], verify=[70, 0], replicate=[3])
    ended = airflow.test(out=str(fake.out), replicate_to="/elsewhere")

    assert ended.state == "failed"
    assert ended.tasks == {
        "download": ("skipped", 1),
        "prepare": ("success", 4),
        "verify": ("success", 2),
        "duplicates": ("skipped", 1),
        "resize": ("skipped", 1),
        "replicate": ("failed", 1),
        "report": ("upstream_failed", 0),
        "train": ("upstream_failed", 0),
    }
    error = "imagenet-prep: replicate has failed: twice so to say (exit code 3)"
    assert f"AirflowFailException: {error}" in ended.log
    assert says("imagenet-prep-ended-out-memory", "prepare", "SIGKILL").search(ended.log)
    assert [call[0] for call in fake.calls].count("prepare") == 7


def test_failure_that_needs_a_person_is_not_retried(airflow: Airflow, fake: Fake) -> None:
    fake.ends(verify=[1, 2, 3, 4, 70])
    told = airflow.tasks(*[{"out": str(fake.out)}] * 5)

    kinds = [each["verify"].partition(":")[0] for each in told]
    assert kinds == ["AirflowFailException"] * 3 + ["AirflowException"] * 2


def test_cross_split_duplicates_fail_the_run_if_requested(airflow: Airflow, fake: Fake) -> None:
    fake.ends(duplicates=[0, 3])
    out = str(fake.out)
    found, failed = airflow.tasks(*({"out": out, "duplicates": how} for how in ("find", "cross")))
    assert found["duplicates"] == {"duplicates": f"{out}-duplicates"}
    assert list(found)[-1] == "report"
    assert list(failed) == ["prepare", "verify", "duplicates"]
    assert failed["duplicates"].startswith("AirflowFailException: imagenet-prep: duplicates has")

    words = ["duplicates", str(fake.out), f"--out={fake.out}-duplicates"]
    assert [call for call in fake.calls if call[0] == "duplicates"] == [
        [*words, "--workers=0"],
        [*words, "--fail-on=cross", "--workers=0"],
    ]


def test_missing_program_is_named_and_not_retried(airflow: Airflow) -> None:
    airflow.program.unlink()
    finished = airflow.call("command")

    assert says(
        "no-such-program-install-imagenet-prep", f"AirflowFailException: {airflow.program}"
    ).search(finished.err)


def test_verify_again_reads_all_bytes_and_renews_report(airflow: Airflow, fake: Fake) -> None:
    os.utime(fake.out / "report.html", (0, 0))
    (told,) = airflow.tasks({"out": str(fake.out), "verify_again": True})

    assert list(told) == ["prepare", "verify", "report"], told
    assert [call[0] for call in fake.calls] == ["prepare", "verify", "report"]
    assert ["verify", str(fake.out), "--level=crc", "--workers=0"] in fake.calls


@pytest.mark.parametrize("how", [signal.SIGALRM, signal.SIGKILL], ids=["time-out", "kill"])
def test_ended_task_ends_its_command(airflow: Airflow, fake: Fake, how: signal.Signals) -> None:
    (fake.folder / "wait").touch()
    running = airflow.start("command")
    command.wait_until((fake.folder / "waits").exists, "the command waits")
    running.send(how)
    running.finish()

    assert running.left(command.PATIENCE_S) == []
    assert (fake.folder / "asked-to-end").exists()


def test_dag_file_loads_little_and_describes_its_parameters(
    airflow: Airflow,
) -> None:
    result = airflow.home / "described.json"
    finished = airflow.call("describe", result)
    assert finished.code == 0, finished
    told = json.loads(result.read_text())
    before, loaded = (
        {module.partition(".")[0] for module in told[when]} for when in ("before", "modules")
    )

    heavy = {"apache_beam", "boto3", "numpy", "pandas", "pyarrow", "requests", "tensorflow"}
    # They must not be loaded before, since then the test would not notice.
    assert (before | loaded) & {"imagenet_prep", "pipelines", *heavy} == set()

    for name, (_, description, schema) in told["params"].items():
        assert description.endswith("."), name
        assert {"type", "section"} <= schema.keys(), name
    assert told["params"]["verify_level"][2]["enum"] == ["manifest", "crc", "decode"]
    assert list(told["tasks"]) == TASKS
    for before, (name, task) in zip([None, *TASKS], told["tasks"].items(), strict=False):
        assert task["after"] == ([before] if before else [])
        assert task["pool"] == "default_pool"
        assert task["timeout_s"] >= 3600, name


def test_picture_of_the_dag_shows_all_tasks(airflow: Airflow, repository: Path) -> None:
    if shutil.which("dot") is None:
        pytest.skip("no dot; on Debian: sudo apt-get install graphviz")
    picture = repository / "build" / "airflow" / "dag.svg"
    picture.parent.mkdir(parents=True, exist_ok=True)
    finished = airflow.call("draw", picture)

    assert finished.code == 0, finished
    drawn = picture.read_text()
    assert [drawn.count(f"<title>{task}</title>") for task in TASKS] == [1] * len(TASKS)


def test_documents_show_the_current_tasks(repository: Path) -> None:
    drawn = (repository / "docs" / "airflow.svg").read_text("utf-8")
    nodes = re.findall(r'class="node">\s*<title>(\w+)</title>', drawn)

    assert sorted(nodes) == sorted(TASKS), "make picture"
    assert drawn.count('class="edge"') == len(TASKS) - 1
