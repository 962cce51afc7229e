"""Requests to SageMaker, and how its answers are reported."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from imagenet_prep import train
from imagenet_prep.core import errors
from imagenet_prep.core.errors import (
    DataDamagedError,
    ImagenetPrepError,
    IncompleteError,
    UsageError,
)
from imagenet_prep.pipelines import sagemaker, sagemaker_container, sagemaker_job
from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.trainer import rendezvous
from imagenet_prep.trainer.evaluation import Score
from imagenet_prep.trainer.log import TrainingLog
from tests.kit import command
from tests.kit.messages import says

pytestmark = pytest.mark.sagemaker

GOLDEN = Path(__file__).parents[1] / "golden" / "sagemaker_request.json"
MODEL = "s3://bucket/runs/resnet-1/output/model.tar.gz"
JOB = (
    "--image",
    "123456789012.dkr.ecr.eu-west-1.amazonaws.com/imagenet-prep:train",
    "--role",
    "arn:aws:iam::123456789012:role/training",
    "--output",
    "s3://bucket/runs/",
    "--instance-type",
    "ml.p4d.24xlarge",
    "--name",
    "resnet-1",
)
SPOT = (
    "--data",
    "s3://bucket/imagenet-480",
    "--instances",
    "4",
    "--spot",
    "--max-runtime",
    "7200",
    "--tags",
    "team=vision,cost=a=b",
    "--subnets",
    "subnet-1,subnet-2",
    "--security-groups",
    "sg-1",
)
TRAIN = ("--", "train", "--recipe", "tutorial", "-b", "128", "--jit", "--lr", "0.1")


@pytest.fixture
def stubber(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Answers in place of SageMaker; botocore compares requests with the service's own model."""
    stub = pytest.importorskip("botocore.stub")
    # boto3 keeps the first credentials for all tests of this process.
    monkeypatch.setattr("boto3.DEFAULT_SESSION", None)
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "DEFAULT_REGION"):
        monkeypatch.setenv(f"AWS_{name}", "eu-west-1")
    service = sagemaker.Service("sagemaker")
    monkeypatch.setattr(sagemaker, "Service", lambda _: service)
    with stub.Stubber(service.client) as stubbing:
        yield stubbing
        stubbing.assert_no_pending_responses()


def answer(status: str, secondary: str, *states: tuple[str, str], **more: Any) -> dict[str, Any]:
    now = dt.datetime(2026, 11, 21, 10, 0, tzinfo=dt.UTC)
    return {
        "TrainingJobName": "resnet-1",
        "TrainingJobArn": "arn:aws:sagemaker:eu-west-1:123456789012:training-job/resnet-1",
        "ModelArtifacts": {"S3ModelArtifacts": MODEL},
        "TrainingJobStatus": status,
        "SecondaryStatus": secondary,
        "StoppingCondition": {},
        "CreationTime": now,
        "CheckpointConfig": {"S3Uri": "s3://bucket/runs/resnet-1/checkpoints"},
        "SecondaryStatusTransitions": [
            {"Status": state, "StartTime": now, "StatusMessage": message}
            for state, message in states
        ],
        **more,
    }


def test_request_matches_golden_file(
    stubber: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    golden = json.loads(GOLDEN.read_text())
    tokens = iter(["the-token-of-the-first-job", "the-token-of-another-job"])
    monkeypatch.setattr(
        "imagenet_prep.pipelines.sagemaker.secrets.token_urlsafe", lambda _: next(tokens)
    )
    arn = "arn:aws:sagemaker:eu-west-1:123456789012:training-job/resnet-1"
    stubber.add_response("create_training_job", {"TrainingJobArn": arn}, golden)

    assert sagemaker.run([*JOB, *SPOT, *TRAIN]) == 0
    said = capsys.readouterr().out
    assert said == f"resnet-1: {arn}\ncheckpoints: s3://bucket/runs/resnet-1/checkpoints\n"
    assert sagemaker.run([*JOB, *SPOT, "--dry-run", *TRAIN]) == 0
    golden["Environment"] = {"IMAGENET_PREP_JOB_TOKEN": "the-token-of-another-job"}
    assert json.loads(capsys.readouterr().out) == golden


def test_each_job_has_its_own_valid_token() -> None:
    config = sagemaker.SageMakerConfig("image", "role", "s3://bucket/runs", "ml.p4d.24xlarge")
    tokens = {
        sagemaker.request(config, "resnet-1", {})["Environment"]["IMAGENET_PREP_JOB_TOKEN"]
        for _ in range(20)
    }

    assert len(tokens) == 20
    assert all(rendezvous.TOKEN.fullmatch(token) and len(token) >= 43 for token in tokens)


@pytest.mark.parametrize("mode", ["File", "FastFile"])
def test_input_mode_is_that_of_the_request(mode: str) -> None:
    words = (*JOB, "--data", "s3://bucket/set", "--input-mode", mode, "--dry-run", "--", "train")
    shown = command.run("sagemaker", *words)

    assert shown.json["AlgorithmSpecification"]["TrainingInputMode"] == mode


def test_a_file_system_is_mounted_read_only() -> None:
    where = "fsx:fs-0123456789abcdef0:/fsx/set"
    shown = command.run(
        *("sagemaker", *JOB, "--data", where, "--subnets", "subnet-1", "--security-groups", "sg-1"),
        "--dry-run",
        "--",
        "train",
    )

    assert shown.json["InputDataConfig"] == [
        {
            "ChannelName": "training",
            "DataSource": {
                "FileSystemDataSource": {
                    "FileSystemId": "fs-0123456789abcdef0",
                    "FileSystemType": "FSxLustre",
                    "DirectoryPath": "/fsx/set",
                    "FileSystemAccessMode": "ro",
                }
            },
        }
    ]
    assert shown.json["VpcConfig"]["Subnets"] == ["subnet-1"]
    assert "MaxWaitTimeInSeconds" not in shown.json["StoppingCondition"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--", "prepare"), says("expected-command-ranks-after-such")),
        (
            ("--data", "train=s3://b/set,evil=s3://b/set", "--", "train"),
            says("data-expected-before-each", "evil"),
        ),
        (
            ("--data", "eval=s3://b/set,test=s3://b/set", "--", "train"),
            says("data-expected-channel-train-no"),
        ),
        (
            ("--data", "train=s3://b/set,train=s3://b/older", "--", "train"),
            says("data-expected-channel-train-no"),
        ),
        (
            ("--data", "/data/set", "--", "train"),
            says("data-expected-s3-bucket-prefix", "/data/set"),
        ),
        (
            ("--data", "efs:fs-01234567:/set", "--", "train"),
            says("data-needs-subnets-security-groups"),
        ),
        (("--", "train"), says("give-either-data-dir-synthetic")),
        (
            ("--data", "s3://b/set", "--", "train", "--synthetic"),
            says("give-either-data-dir-synthetic"),
        ),
        *(
            (
                ("--", "train", "--synthetic", f"--{name}", "x"),
                says("sagemaker-own-folder-copies-output", name),
            )
            for name in ("log-dir", "tensorboard-dir", "export")
        ),
        (
            ("--", "train", "--synthetic", "--btch-size", "9"),
            says("no-such-flag", "--btch-size", "train", "Did you mean --batch-size?"),
        ),
        (("--tags", "team", "--", "train", "--synthetic"), says("tags-expected-key-value", "team")),
    ],
)
def test_sagemaker_refuses_invalid_arguments_before_submission(
    words: tuple[str, ...], said: str
) -> None:
    refused = command.run("sagemaker", *JOB, "--dry-run", *words)

    assert refused.code == 2, refused
    assert re.search(said, refused.err)


# A name has at most 63 characters, with the hyphens.
NOT_NAMES = ("a" * 64, "a" + "-b" * 32, "a" + "-" * 62 + "b", "-a", "a-", "a_b", "")
VPC = {"subnets": ("subnet-1",), "security_groups": ("sg-1",)}
LUSTRE = ("fsx:fs-0123456789abcdef0:/set",)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        *(({"name": name}, "name-expected-up-63-letters") for name in NOT_NAMES),
        *(({name: VPC[name]}, "subnets-security-groups-expected-both-none") for name in VPC),
        ({"data": LUSTRE, "input_mode": "FastFile", **VPC}, "input-mode-data-s3"),
        *(({"name": name}, "") for name in ("a", "a" * 63, "7--b", "a" + "-b" * 31)),
        ({"data": LUSTRE, **VPC}, ""),
        ({"data": ("s3://b/set",), "input_mode": "FastFile"}, ""),
    ],
)
def test_requests_are_checked_as_amazon_does(more: dict[str, Any], said: str) -> None:
    words = {"image": "image", "role": "role", "output": "s3://b/runs", "instance_type": "type"}
    refused = pytest.raises(ValueError, match=says(said)) if said else contextlib.nullcontext()
    with refused:
        sagemaker.SageMakerConfig(**words, **more)


def test_wait_prints_each_job_state_once(stubber: Any, capsys: pytest.CaptureFixture[str]) -> None:
    started = ("Starting", "Launching instances")
    training = ("Training", "Image pulled")
    stubber.add_response("describe_training_job", answer("InProgress", "Starting", started))
    stubber.add_client_error("describe_training_job", "ThrottlingException", "Rate exceeded")
    both = answer("Completed", "Completed", started, training, BillableTimeInSeconds=3600)
    stubber.add_response("describe_training_job", both)
    pauses: list[float] = []
    sagemaker.wait(sagemaker.Service("sagemaker"), "resnet-1", pause=pauses.append)

    assert len(pauses) == 1
    assert capsys.readouterr().out.splitlines() == [
        "10:00:00  Starting: Launching instances",
        "10:00:00  Training: Image pulled",
        "resnet-1 has ended, 3,600 s billed on each instance; model: " + MODEL,
    ]


@pytest.mark.parametrize("known", [(1, 1, 2, 3), (0, 2, 3, 3), (3,)])
def test_wait_prints_states_of_every_poll(
    capsys: pytest.CaptureFixture[str], known: tuple[int, ...]
) -> None:
    """`known` has the number of states that SageMaker knows at each poll."""
    states = [(name, "") for name in ("Starting", "Downloading", "Training")]
    polls = [answer("InProgress", "Training", *states[:number]) for number in known]
    job = Cloud(describe_training_job=[*polls, answer("Completed", "Completed", *states)])
    sagemaker.wait(job, "resnet-1", pause=lambda _: None)  # type: ignore[arg-type]

    printed = capsys.readouterr().out.splitlines()[:-1]
    assert printed == [f"10:00:00  {name}: " for name, _ in states]


@pytest.mark.parametrize(
    ("status", "secondary", "reason", "error", "said"),
    [
        ("Failed", "Failed", "AlgorithmError: rank 0: x is\ncut, exit code: 3", DataDamagedError,
         says("output-each-rank-cloudwatch-log", "resnet-1", "rank 0: x is cut, exit code: 3")),
        ("Failed", "Failed", "AlgorithmError: , exit code: 2", UsageError, "exit code: 2"),
        ("Failed", "Failed", "CapacityError: no ml.p4d", ImagenetPrepError, "CapacityError"),
        ("Stopped", "MaxRuntimeExceeded", "", IncompleteError,
         "MaxRuntimeExceeded.*--checkpoints s3://bucket/runs/resnet-1/checkpoints"),
    ],
)  # fmt: skip
def test_failed_job_gives_one_line_and_exit_code(
    stubber: Any, status: str, secondary: str, reason: str, error: type[Exception], said: str
) -> None:
    more = {"FailureReason": reason} if reason else {}
    stubber.add_response("describe_training_job", answer(status, secondary, **more))
    with pytest.raises(ImagenetPrepError, match=said) as caught:
        sagemaker.wait(sagemaker.Service("sagemaker"), "resnet-1")

    assert type(caught.value) is error


def test_sagemaker_error_is_reported_in_its_words(stubber: Any) -> None:
    limit = "The account-level service limit is 0 Instances"
    stubber.add_client_error("create_training_job", "ResourceLimitExceeded", limit, 400)

    with pytest.raises(ImagenetPrepError, match=f"ResourceLimitExceeded: {limit}"):
        sagemaker.run([*JOB, *SPOT, *TRAIN])


def test_nothing_is_submitted_without_a_region() -> None:
    pytest.importorskip("boto3")
    environment = {"AWS_EC2_METADATA_DISABLED": "true", "HOME": "/nonexistent"}
    refused = command.run("sagemaker", *JOB, *TRAIN, "--synthetic", env=environment)

    assert refused.code == 2
    assert "You must specify a region" in refused.err


def test_metrics_match_rows_of_the_training_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def row(*values: float) -> dict[str, float]:
        names = ("epoch", "images_per_s", "loss", "total_loss", "learning_rate")
        return dict(zip(names, values, strict=True))

    log = TrainingLog(tmp_path, tmp_path, speaks=True)
    log.train(2450, row(12.3, 3012.4, 6.907, 8.052, 0.1))
    score = Score(top1=0.75716, top5=0.9291, loss=1.034, examples=50_000)
    log.evaluation(2450, 12.3, "validation", score, 1.6e9, num_classes=1000)
    log.evaluation(2450, 12.3, "holdout", score._replace(top1=0.5), 1.6e9, num_classes=1000)
    log.train(0, row(0.0, 0.1, float("nan"), float("nan"), 12.8))
    found: dict[str, list[str]] = {}
    for line in capsys.readouterr().out.splitlines():
        for name, regex in sagemaker.METRICS.items():
            found.setdefault(name, []).extend(re.findall(regex, line))

    assert found == {
        "train:images_per_s": ["3012.4", "0.1"],
        "train:loss": ["6.907"],
        "train:total_loss": ["8.052"],
        "train:learning_rate": ["0.10000", "12.80000"],
        "validation:top1": ["75.716"],
        "validation:top5": ["92.91"],
        "validation:loss": ["1.03"],
    }


def test_script_arguments_become_hyperparameters() -> None:
    words = ["--fp16", "--use_larc", "--lr_decay_mode", "linear_cosine", "--device", "gpu"]

    assert sagemaker.hyperparameters(words, has_data=True) == {
        "device": "gpu",
        "optimizer": "larc",
        "precision": "float16",
        "schedule": "linear-cosine",
    }


@pytest.mark.parametrize(
    "given",
    [
        "--classes n01440764",
        "--classes n01440764,n01443537 --remap",
        "--also s3://b/v2 --also s3://b/r --labels real.json",
        "--schedule steps --lr-decay-steps 30,60 --momentum 0.9 --jit",
        "--fraction 0.1 --lr 1e-05 --seed 7 --keys=-list",
    ],
)
def test_flags_reach_the_container_unchanged(given: str) -> None:
    sent = sagemaker.hyperparameters(given.split(), has_data=True)
    received = sagemaker_container.train_flags(sent)

    asked, told = (train.parse(["--data-dir", "x", *each]) for each in (given.split(), received))
    assert told == asked


def test_channels_of_the_guide_exist() -> None:
    data = "train=s3://b/set/train,validation=s3://b/set/validation,eval=s3://b/set/eval"
    shown = command.run("sagemaker", *JOB, "--data", data, "--dry-run", "--", "train")

    channels = {
        each["ChannelName"]: each["DataSource"]["S3DataSource"]["S3Uri"]
        for each in shown.json["InputDataConfig"]
    }
    assert channels == {name: f"s3://b/set/{name}/" for name in ("train", "validation", "eval")}


class Cloud:
    """A service with scripted answers by operation; it records the requests."""

    def __init__(self, **answers: list[Any]) -> None:
        self.answers = answers
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def call(self, operation: str, **arguments: Any) -> dict[str, Any]:
        self.asked.append((operation, arguments))
        answer = self.answers[operation].pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer  # type: ignore[no-any-return]

    def insist(self, _: str, operation: str, **arguments: Any) -> dict[str, Any]:
        return self.call(operation, **arguments)


def test_custom_script_is_uploaded_with_neighbours_and_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("my_train.py", "nets.py", "notes.txt"):
        (tmp_path / name).write_text(name)
    arn = {"TrainingJobArn": "arn"}
    cloud = Cloud(create_training_job=[arn])
    bucket = LocalStore(tmp_path / "b")
    places = []
    monkeypatch.setattr(sagemaker, "Service", lambda _: cloud)
    opened = "imagenet_prep.storage.store.open_store"
    monkeypatch.setattr(opened, lambda place: places.append(place) or bucket)
    script = str(tmp_path / "my_train.py")
    assert sagemaker.run([*JOB, "--data", "s3://b/set", "--", "python", script, "--epochs=3"]) == 0

    assert places == ["s3://bucket/runs/resnet-1/code"]
    assert [*bucket.names("")] == ["my_train.py", "nets.py"]
    assert bucket.read("nets.py") == b"nets.py"
    made = cloud.asked[-1][1]
    algorithm = made["AlgorithmSpecification"]
    words = ["python", "/opt/ml/input/data/code/my_train.py", "--epochs=3"]
    assert algorithm["ContainerArguments"] == ["--processes", "0", "--", *words]
    assert "MetricDefinitions" not in algorithm
    assert made["HyperParameters"] == {}
    code = made["InputDataConfig"][-1]
    assert code["ChannelName"] == "code"
    assert code["DataSource"]["S3DataSource"]["S3Uri"] == "s3://bucket/runs/resnet-1/code/"

    for number in range(101):
        (tmp_path / f"{number}.py").touch()
    with pytest.raises(UsageError, match=says("python-files-would-sent-move", ..., "103")):
        sagemaker.run([*JOB, "--", "python", script])


def lines(end: str, *messages: str) -> dict[str, Any]:
    return {"events": [{"message": each} for each in messages], "nextForwardToken": end}


def test_follow_prints_all_log_lines_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    job = Cloud(
        describe_training_job=[
            answer("InProgress", "Starting"),
            answer("InProgress", "Training", ResourceConfig={"InstanceCount": 2}),
            answer("Completed", "Completed", ResourceConfig={"InstanceCount": 2}),
        ]
    )
    first, second = ({"logStreamName": f"resnet-1/algo-{n}-170000"} for n in (1, 2))
    logs = Cloud(
        describe_log_streams=[
            sagemaker_job.MissingError("no such group"),
            {"logStreams": [first]},
            {"logStreams": [first], "nextToken": "more"},
            {"logStreams": [second]},
        ],
        get_log_events=[
            lines("1", "a\n"),
            lines("2", "b"),
            lines("2"),
            lines("2"),
            lines("9", "of the second"),
            lines("9"),
        ],
    )
    pauses: list[float] = []
    log = sagemaker_job.JobLog(logs, "resnet-1")  # type: ignore[arg-type]
    sagemaker_job.wait(job, "resnet-1", log, pause=pauses.append)  # type: ignore[arg-type]

    said = capsys.readouterr().out.splitlines()
    assert said[:3] == ["[algo-1] a", "[algo-1] b", "[algo-2] of the second"]
    assert says("ended-s-billed-each-instance", "resnet-1").match(said[3])
    assert len(pauses) == 3
    tokens = [asked.get("nextToken") for name, asked in logs.asked if name == "get_log_events"]
    assert tokens == [None, "1", "2", "2", None, "9"]


@pytest.mark.parametrize("end", ["Completed", "Stopped", "Failed"])
def test_lines_after_the_end_are_shown(capsys: pytest.CaptureFixture[str], end: str) -> None:
    """The last lines, with the reason of a failure, are in the log only after the job's end."""
    stream = {"logStreamName": "resnet-1/algo-1-170000"}
    events = [lines("1"), lines("1")]
    logs = Cloud(describe_log_streams=[{"logStreams": [stream]}], get_log_events=events)
    job = Cloud(describe_training_job=[answer(end, end)])

    def arrive(_: float) -> None:
        events[0] = lines("1", "the last line")

    log = sagemaker_job.JobLog(logs, "resnet-1")  # type: ignore[arg-type]
    with contextlib.suppress(ImagenetPrepError):
        sagemaker_job.wait(job, "resnet-1", log, pause=arrive)  # type: ignore[arg-type]

    assert "the last line" in capsys.readouterr().out.splitlines()


def test_job_is_followed_if_log_access_is_denied(
    capsys: pytest.CaptureFixture[str],
) -> None:
    states = [answer("InProgress", "Training"), answer("Completed", "Completed")]
    job = Cloud(describe_training_job=states)
    logs = Cloud(describe_log_streams=[ImagenetPrepError("logs: AccessDeniedException")])
    log = sagemaker_job.JobLog(logs, "resnet-1")  # type: ignore[arg-type]
    sagemaker_job.wait(job, "resnet-1", log, pause=lambda _: None)  # type: ignore[arg-type]

    shown = capsys.readouterr()
    assert shown.err == "logs: AccessDeniedException. The log is no longer followed.\n"
    assert says("ended-s-billed-each-instance", "resnet-1").match(shown.out)


def test_ctrl_c_keeps_the_job_running(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud = Cloud(
        create_training_job=[{"TrainingJobArn": "arn"}],
        describe_training_job=[KeyboardInterrupt()],
    )
    monkeypatch.setattr(sagemaker, "Service", lambda _: cloud)

    assert sagemaker.run([*JOB, "--follow", *TRAIN, "--synthetic"]) == errors.EXIT_INTERRUPTED
    said = capsys.readouterr().err
    assert says("still-running-stop-aws-sagemaker", "resnet-1").match(said)
    assert says("still-running-stop-aws-sagemaker", ..., ..., "/aws/sagemaker/TrainingJobs").search(
        said
    )


def test_upload_refuses_links_to_files_outside_folder(tmp_path: Path) -> None:
    code = tmp_path / "code"
    mine = tmp_path / "credentials"
    code.mkdir()
    mine.write_text("secret")
    (code / "train.py").touch()
    (code / "inner.py").symlink_to("train.py")
    (code / "helper.py").symlink_to(mine)
    with pytest.raises(UsageError, match=says("link-would-sent-replace-link", "helper.py", mine)):
        sagemaker.upload_script(code / "train.py", "s3://bucket/code")
