"""`imagenet-prep sagemaker`: the same training as a job of Amazon SageMaker.

A plain CreateTrainingJob: what is asked of SageMaker is one JSON document, which --dry-run
prints. `pipelines.sagemaker_container` is what the job runs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from imagenet_prep.core import cli
from imagenet_prep.core.errors import (
    DataDamagedError,
    ImagenetPrepError,
    IncompleteError,
    UsageError,
)
from imagenet_prep.storage.remote import PASSING, UnavailableError, reason
from imagenet_prep.storage.retry import RetryBudget, with_retries
from imagenet_prep.trainer.config import Config as TrainConfig
from pipelines.sagemaker_container import TOKEN_VARIABLE

EXAMPLES = """\
  imagenet-prep sagemaker --image URI --role ARN --data s3://bucket/imagenet-480 \\
      --output s3://bucket/runs --instance-type ml.p4d.24xlarge --instances 4 --spot --wait \\
      -- train --recipe tutorial --precision bfloat16
  imagenet-prep sagemaker --image URI --role ARN --data fsx:fs-0123456789abcdef0:/fsx/set \\
      --subnets subnet-1 --security-groups sg-1 --output s3://bucket/runs \\
      --instance-type ml.g5.48xlarge --dry-run -- train"""

_CHANNEL = "training"
_LOCAL = "/opt/ml"
_NAME = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}")
_FILE_SYSTEM = re.compile(r"(fsx|efs):(fs-[0-9a-f]{8,17}):(/.*)")
_FILE_SYSTEM_TYPES = {"fsx": "FSxLustre", "efs": "EFS"}
_EXIT_CODE = re.compile(r"exit code: (\d+)", re.IGNORECASE)
_ERRORS = {error.exit_code: error for error in (UsageError, DataDamagedError, IncompleteError)}
_POLL_S, _RETRIES = 20.0, 30


class Service:
    """One of Amazon's services, with credentials from boto3's standard chain.

    Attributes:
      client: boto3's.
    """

    def __init__(self, name: str) -> None:
        """Makes a client; nothing is asked of the service yet.

        Raises:
          UsageError: region or credentials cannot be loaded, or boto3 is not installed.
        """
        try:
            import boto3
            import botocore.exceptions
        except ImportError:
            raise UsageError(f"{name} needs boto3: pip install 'imagenet-prep[s3]'") from None
        self._name = name
        self._errors = botocore.exceptions
        with self._explained("client"):
            self.client = boto3.client(name)

    def call(self, operation: str, **arguments: Any) -> dict[str, Any]:
        """Returns what an operation answers.

        Raises:
          UnavailableError: try again.
          UsageError: region or credentials are missing, or the request cannot be.
          ImagenetPrepError: the service refuses, in its own words.
        """
        with self._explained(operation):
            answer: dict[str, Any] = getattr(self.client, operation)(**arguments)
            return answer

    @contextlib.contextmanager
    def _explained(self, operation: str) -> Iterator[None]:
        try:
            yield
        except self._errors.ClientError as error:
            status = error.response["ResponseMetadata"].get("HTTPStatusCode", 0)
            code = error.response["Error"].get("Code", "")
            said = f"{self._name} {operation}: {code}: {error.response['Error'].get('Message', '')}"
            if status in PASSING or "Throttl" in code:
                raise UnavailableError(said) from None
            raise ImagenetPrepError(said) from None
        except (self._errors.ConnectionError, self._errors.HTTPClientError) as error:
            raise UnavailableError(f"{self._name} {operation}: {reason(error)}") from None
        except self._errors.BotoCoreError as error:
            raise UsageError(
                f"{self._name} {operation}: {error}. Region and credentials come from AWS_… "
                "variables, ~/.aws or the machine's role."
            ) from None


@dataclass(frozen=True)
class Config(cli.Settings):
    """Settings of one job; see the help of each flag."""

    image: str = cli.flag(
        help="the container image: target sagemaker of docker/Dockerfile, pushed to Amazon ECR",
        metavar="URI",
    )
    role: str = cli.flag(help="the IAM role under which the job runs", metavar="ARN")
    output: str = cli.flag(
        place=cli.Place.BUCKET,
        help="where model, TensorBoard's files and checkpoints go: s3://bucket/prefix",
        metavar="URL",
    )
    instance_type: str = cli.flag(
        help="the type of instance, e.g. ml.p4d.24xlarge, which has 8 GPUs", metavar="TYPE"
    )
    instances: int = cli.flag(1, least=1, help="number of instances")
    processes: int = cli.flag(
        0, least=0, help="ranks on each instance; 0: one for each GPU, or one without a GPU"
    )
    data: str | None = cli.flag(
        None,
        help="the data set: s3://bucket/prefix, fsx:FILE-SYSTEM-ID:/PATH or efs:…; not needed "
        "with train --synthetic or --data-dir s3://…",
        metavar="WHERE",
    )
    input_mode: str = cli.flag(
        "File",
        choices=("File", "FastFile"),
        help="how instances read --data in S3. File: copy all of it to every instance first; "
        "FastFile: fetch what is read, which is slow for shuffled reads",
    )
    volume_size: int = cli.flag(
        300, least=1, help="size of the disk of instances that have none of their own", metavar="GB"
    )
    name: str | None = cli.flag(
        None, help="name of the job, not used before (default: imagenet-prep-DATE-TIME)"
    )
    checkpoints: str | None = cli.flag(
        None,
        place=cli.Place.BUCKET,
        help="where checkpoints are kept: s3://bucket/prefix. A job resumes from the last one "
        "there, so give that of an ended job to continue it (default: OUTPUT/NAME/checkpoints)",
        metavar="URL",
    )
    spot: bool = cli.flag(
        False, help="use spot instances; after an interruption the job resumes from its checkpoint"
    )
    max_runtime: int = cli.flag(
        86_400, least=1, help="seconds of training after which the job is stopped", metavar="S"
    )
    max_wait: int = cli.flag(
        0,
        least=0,
        help="with --spot: seconds of waiting for instances and training together (default: twice "
        "--max-runtime)",
        metavar="S",
    )
    subnets: tuple[str, ...] = cli.flag(
        (), help="subnets of the VPC for the instances; needed for fsx and efs", metavar="ID,…"
    )
    security_groups: tuple[str, ...] = cli.flag(
        (),
        help="security groups of the instances, with --subnets; they must let instances reach each "
        "other",
        metavar="ID,…",
    )
    tags: tuple[str, ...] = cli.flag((), help="tags of the job", metavar="KEY=VALUE,…")
    wait: bool = cli.flag(False, help="print each state of the job until it has ended")
    dry_run: bool = cli.flag(False, help="print the request, submit nothing")
    command: tuple[str, ...] = cli.after_dashes()

    def __post_init__(self) -> None:
        """Refuses what SageMaker would refuse, before it costs anything."""
        super().__post_init__()
        if self.name is not None and not _NAME.fullmatch(self.name):
            raise ValueError(f"--name {self.name}: expected up to 63 letters, digits and hyphens")
        if self.max_wait and (not self.spot or self.max_wait < self.max_runtime):
            raise ValueError("--max-wait: is for --spot, and at least --max-runtime")
        if bool(self.subnets) != bool(self.security_groups):
            raise ValueError("--subnets and --security-groups go together")
        if self.data is not None and not self.data.startswith("s3://"):
            if not _FILE_SYSTEM.fullmatch(self.data):
                raise ValueError(
                    f"--data {self.data}: expected s3://bucket/prefix, fsx:fs-…:/PATH or "
                    "efs:fs-…:/PATH"
                )
            if not self.subnets:
                raise ValueError(f"--data {self.data}: needs --subnets and --security-groups")
            if self.input_mode != "File":
                raise ValueError("--input-mode is for data in S3")
        if wrong := [tag for tag in self.tags if not tag.partition("=")[2]]:
            raise ValueError(f"--tags {wrong[0]}: expected KEY=VALUE")
        if self.wait and self.dry_run:
            raise ValueError("--dry-run has nothing to --wait for")


def hyperparameters(words: Sequence[str], *, has_data: bool) -> dict[str, str]:
    """Returns flags of `train` that differ from its defaults, proven, as SageMaker takes them.

    Raises:
      UsageError: the job has two data sets, or would write to a folder that is lost with it.
    """
    channel = ["--data-dir", f"{_LOCAL}/input/data/{_CHANNEL}"] if has_data else []
    config = cli.parse(
        TrainConfig,
        [*channel, *words],
        verb="train",
        description="What each rank of the job runs.",
        examples=EXAMPLES,
    )
    if has_data and (config.synthetic or config.data_dir != channel[1]):
        raise UsageError("give either --data, or --data-dir behind --")
    values = {
        field.name: getattr(config, field.name)
        for field in dataclasses.fields(TrainConfig)
        if getattr(config, field.name) != field.default
    }
    if lost := sorted(values.keys() & {"log_dir", "tensorboard_dir", "export"}):
        raise UsageError(
            f"--{lost[0].replace('_', '-')}: SageMaker has folders of its own for that, which it "
            "copies to --output. Leave it out."
        )
    if has_data:
        del values["data_dir"]
    return {name: "true" if value is True else str(value) for name, value in sorted(values.items())}


def request(config: Config, name: str, train: Mapping[str, str]) -> dict[str, Any]:
    """Returns the CreateTrainingJob request of a job, with a token of its own."""
    output = config.output.rstrip("/")
    arguments = ["--processes", str(config.processes)]
    made: dict[str, Any] = {
        "TrainingJobName": name,
        "RoleArn": config.role,
        "AlgorithmSpecification": {
            "TrainingImage": config.image,
            "TrainingInputMode": config.input_mode,
            "ContainerEntrypoint": ["imagenet-prep", "sagemaker-container"],
            "ContainerArguments": arguments,
        },
        "HyperParameters": dict(train),
        # Not a hyperparameter: those are shown wherever experiments are compared.
        "Environment": {TOKEN_VARIABLE: secrets.token_urlsafe(32)},
        "OutputDataConfig": {"S3OutputPath": output},
        "ResourceConfig": {
            "InstanceType": config.instance_type,
            "InstanceCount": config.instances,
            "VolumeSizeInGB": config.volume_size,
        },
        "StoppingCondition": {"MaxRuntimeInSeconds": config.max_runtime},
        "EnableManagedSpotTraining": config.spot,
        "CheckpointConfig": {
            "S3Uri": (config.checkpoints or f"{output}/{name}/checkpoints").rstrip("/"),
            "LocalPath": f"{_LOCAL}/checkpoints",
        },
        "TensorBoardOutputConfig": {
            "S3OutputPath": output,
            "LocalPath": f"{_LOCAL}/output/tensorboard",
        },
    }
    if config.spot:
        made["StoppingCondition"]["MaxWaitTimeInSeconds"] = (
            config.max_wait or 2 * config.max_runtime
        )
    if config.data is not None:
        made["InputDataConfig"] = [{"ChannelName": _CHANNEL, "DataSource": _source(config.data)}]
    if config.subnets:
        made["VpcConfig"] = {
            "SecurityGroupIds": list(config.security_groups),
            "Subnets": list(config.subnets),
        }
    if config.tags:
        pairs = [tag.partition("=") for tag in config.tags]
        made["Tags"] = [{"Key": key, "Value": value} for key, _, value in pairs]
    return made


def _source(data: str) -> dict[str, Any]:
    if match := _FILE_SYSTEM.fullmatch(data):
        return {
            "FileSystemDataSource": {
                "FileSystemId": match[2],
                "FileSystemType": _FILE_SYSTEM_TYPES[match[1]],
                "DirectoryPath": match[3],
                "FileSystemAccessMode": "ro",
            }
        }
    return {
        "S3DataSource": {
            "S3DataType": "S3Prefix",
            # Without the slash the prefix would also be that of imagenet-480-old.
            "S3Uri": f"{data.rstrip('/')}/",
            "S3DataDistributionType": "FullyReplicated",
        }
    }


def wait(service: Service, name: str, *, pause: Callable[[float], object] = time.sleep) -> None:
    """Says each state of a job until it has ended.

    Raises:
      IncompleteError: it was stopped, or its time was over; checkpoints are kept.
      ImagenetPrepError: it failed; with the exit code of its container.
    """
    said = 0
    while True:
        budget = RetryBudget(name, _RETRIES, threading.Event(), remedy="The job goes on.")
        job = with_retries(
            lambda: service.call("describe_training_job", TrainingJobName=name), budget
        )
        states = job.get("SecondaryStatusTransitions", [])
        for state in states[said:]:
            at = state["StartTime"].strftime("%H:%M:%S")
            print(f"{at}  {state['Status']}: {state.get('StatusMessage', '')}", flush=True)
        said = len(states)
        status = job["TrainingJobStatus"]
        if status == "Completed" and job["SecondaryStatus"] == "Completed":
            model = job.get("ModelArtifacts", {}).get("S3ModelArtifacts", "none")
            billed = job.get("BillableTimeInSeconds", job.get("TrainingTimeInSeconds", 0))
            print(f"{name} has ended, {billed:,} s billed on each instance; model: {model}")
            return
        if status in ("Completed", "Stopped"):
            again = job.get("CheckpointConfig", {}).get("S3Uri", "")
            raise IncompleteError(
                f"{name}: {job['SecondaryStatus']}. Submit the same job with --checkpoints {again} "
                "to go on from its last checkpoint."
            )
        if status == "Failed":
            reason = " ".join(job.get("FailureReason", "no reason given").split())
            found = _EXIT_CODE.search(reason)
            error = _ERRORS.get(int(found[1]) if found else 1, ImagenetPrepError)
            raise error(f"{name}: {reason}. Each rank's lines are in CloudWatch's log {name}.")
        pause(_POLL_S)


def submit(config: Config) -> None:
    """Starts a job, and waits for its end where that is asked for.

    Raises:
      UsageError: flags that do not go together; no region or credentials.
      ImagenetPrepError: SageMaker refuses, or the job failed.
    """
    name = config.name or time.strftime("imagenet-prep-%Y%m%d-%H%M%S", time.gmtime())
    made = request(
        config, name, hyperparameters(config.command[1:], has_data=config.data is not None)
    )
    if config.dry_run:
        print(json.dumps(made, indent=2))
        return
    service = Service("sagemaker")
    try:
        arn = service.call("create_training_job", **made)["TrainingJobArn"]
    except UnavailableError as error:
        raise ImagenetPrepError(f"{error}. Submit it again.") from error
    print(f"{name}: {arn}\ncheckpoints: {made['CheckpointConfig']['S3Uri']}", flush=True)
    if config.wait:
        wait(service, name)


def run(argv: Sequence[str]) -> int:
    """Runs the verb and returns its exit code; errors are raised."""
    config = cli.parse(
        Config,
        argv,
        verb="sagemaker",
        description="Train as a job of Amazon SageMaker. After --: train and its flags.",
        examples=EXAMPLES,
    )
    if config.command[:1] != ("train",):
        raise UsageError("after -- comes what every rank runs: -- train --recipe tutorial ...")
    submit(config)
    return 0


if __name__ == "__main__":
    cli.main("pipelines.sagemaker")
