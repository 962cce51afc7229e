"""`imagenet-prep sagemaker`: runs `train` or the user's own script as an Amazon SageMaker job."""

from __future__ import annotations

import json
import re
import secrets
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from imagenet_prep import train
from imagenet_prep.core import program, small_files
from imagenet_prep.core.errors import EXIT_DONE, EXIT_INTERRUPTED, ImagenetPrepError, UsageError
from imagenet_prep.core.flags import (
    AddressKind,
    Settings,
    after_dashes,
    flag,
    optional,
    switch,
    text_of,
)
from imagenet_prep.core.strict_json import Json
from imagenet_prep.launching import rank_command
from imagenet_prep.launching.rank_command import RankCommand
from imagenet_prep.pipelines.sagemaker_container import CHANNELS, TOKEN_VARIABLE
from imagenet_prep.pipelines.sagemaker_job import LOG_GROUP, JobLog, Service, wait
from imagenet_prep.storage.remote import TransientError

HELP = """\
Train as an Amazon SageMaker job. After --: train and its flags, or python and your script.

Examples:
  imagenet-prep sagemaker --image URI --role ARN --data s3://bucket/imagenet-480 \\
      --output s3://bucket/runs --instance-type ml.p4d.24xlarge --instances 4 --spot --wait \\
      -- train --recipe tutorial --precision bfloat16
  imagenet-prep sagemaker --image URI --role ARN --data fsx:fs-0123456789abcdef0:/fsx/set \\
      --subnets subnet-1 --security-groups sg-1 --output s3://bucket/runs \\
      --instance-type ml.g5.48xlarge --dry-run -- train
  imagenet-prep sagemaker --image URI --role ARN --output s3://bucket/runs --follow \\
      --data train=s3://bucket/set/train,validation=s3://bucket/set/validation \\
      --instance-type ml.g5.12xlarge -- python my_train.py --epochs 30"""

_CODE = "code"
_MOST_FILES = 100
_LOCAL = "/opt/ml"
_NAME = re.compile(r"(?!.{64})[a-zA-Z0-9](-*[a-zA-Z0-9])*")
_FILE_SYSTEM = re.compile(r"(fsx|efs):(fs-[0-9a-f]{8,17}):(/.*)")
_FILE_SYSTEM_TYPES = {"fsx": "FSxLustre", "efs": "EFS"}
# SageMaker's console plots numbers from the rows that rank 0 of `train` prints; see trainer/log.py.
_ROW = r"\d+ +\d+\.\d +{0} +{1} +{2} +{3}"
_NUMBER = r"(-?\d+\.\d+)"
_RATE = r"\d+\.\d{5}"
# Evaluations of validation end with the time, evaluations of other splits with the split's name.
_SAVED = r"\d{4}-\d\d-\d\d \S+$"
METRICS = {
    "train:images_per_s": _ROW.format(_NUMBER, r"\S+", r"\S+", _RATE),
    "train:loss": _ROW.format(r"\S+", _NUMBER, r"\S+", _RATE),
    "train:total_loss": _ROW.format(r"\S+", r"\S+", _NUMBER, _RATE),
    "train:learning_rate": _ROW.format(r"\S+", r"\S+", r"\S+", f"({_RATE})"),
    "validation:top1": _ROW.format(_NUMBER, r"\S+", r"\S+", _SAVED),
    "validation:top5": _ROW.format(r"\S+", _NUMBER, r"\S+", _SAVED),
    "validation:loss": _ROW.format(r"\S+", r"\S+", _NUMBER, _SAVED),
}


@dataclass(frozen=True)
class SageMakerConfig(Settings):
    """Settings of one job; see the help of each flag."""

    groups = {  # noqa: RUF012
        "Instances": "image role instance_type instances spot subnets security_groups",
        "Data and output": "data input_mode output checkpoints",
        "Job": "name wait follow dry_run",
    }
    image: str = flag(
        help="the container image: target sagemaker of docker/Dockerfile, pushed to Amazon ECR",
        metavar="URI",
    )
    role: str = flag(help="the IAM role under which the job runs", metavar="ARN")
    output: str = flag(
        place=AddressKind.BUCKET,
        help="s3://bucket/prefix for the model, TensorBoard's files and checkpoints",
        metavar="URL",
    )
    instance_type: str = flag(
        help="the type of instance, e.g. ml.p4d.24xlarge, which has 8 GPUs", metavar="TYPE"
    )
    instances: int = flag(1, least=1, help="number of instances")
    processes: int = flag(0, least=0, help="ranks per instance; 0: one per GPU, at least one")
    data: tuple[str, ...] = flag(
        (),
        positional=True,
        aliases=("--data-dir", "--data"),
        help="the dataset at s3://bucket/prefix, fsx:FILE-SYSTEM-ID:/PATH or efs:…; not needed "
        "with train --synthetic or --data-dir s3://…. For several channels, one location each: "
        "train=WHERE,validation=WHERE,eval=WHERE",
        metavar="WHERE",
    )
    input_mode: str = flag(
        "File",
        choices=("File", "FastFile"),
        help="how instances read --data in S3. File: copy all of it to every instance first; "
        "FastFile: fetch data when it is read, which is slow for shuffled reads",
    )
    volume_size: int = flag(
        300, least=1, help="size of the EBS volume of instances without a local disk", metavar="GB"
    )
    name: str | None = optional(help="unique name of the job (default: imagenet-prep-DATE-TIME)")
    checkpoints: str | None = optional(
        place=AddressKind.BUCKET,
        help="s3://bucket/prefix for checkpoints. The job resumes from the last checkpoint "
        "there; to continue an ended job, give its prefix (default: OUTPUT/NAME/checkpoints)",
        metavar="URL",
    )
    spot: bool = switch(help="use spot instances; an interrupted job resumes from its checkpoint")
    max_runtime: int = flag(
        86_400, least=1, help="stop the job after this many seconds of training", metavar="S"
    )
    subnets: tuple[str, ...] = flag(
        (), help="subnets of the VPC for the instances; needed for fsx and efs", metavar="ID,…"
    )
    security_groups: tuple[str, ...] = flag(
        (),
        help="security groups of the instances, with --subnets; they must let instances reach each "
        "other",
        metavar="ID,…",
    )
    tags: tuple[str, ...] = flag((), help="tags of the job", metavar="KEY=VALUE,…")
    wait: bool = switch(help="print each state of the job until it has ended")
    follow: bool = switch(
        help="like --wait, and also print the job's output; Ctrl-C leaves the job running"
    )
    dry_run: bool = switch(help="print the request; submit nothing", without=("wait", "follow"))
    command: tuple[str, ...] = after_dashes("the command of every rank goes")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.name is not None and not _NAME.fullmatch(self.name):
            raise ValueError(f"--name {self.name}: expected up to 63 letters, digits and hyphens")
        if bool(self.subnets) != bool(self.security_groups):
            raise ValueError("--subnets, --security-groups: expected both or none")
        for where in self.channels.values():
            if where.startswith("s3://"):
                continue
            if not _FILE_SYSTEM.fullmatch(where):
                raise ValueError(
                    f"--data {where}: expected s3://bucket/prefix, fsx:fs-…:/PATH or efs:fs-…:/PATH"
                )
            if not self.subnets:
                raise ValueError(f"--data {where}: needs --subnets and --security-groups")
            if self.input_mode != "File":
                raise ValueError("--input-mode is for data in S3")
        wrong = [tag for tag in self.tags if not tag.partition("=")[2]]
        if wrong:
            raise ValueError(f"--tags {wrong[0]}: expected KEY=VALUE")

    @property
    def channels(self) -> dict[str, str]:
        """The locations of the dataset, by channel."""
        if len(self.data) == 1 and self.data[0].partition("=")[0] not in CHANNELS:
            return {CHANNELS[0]: self.data[0]}
        parts = [word.partition("=") for word in self.data]
        channels = {name: where for name, _, where in parts}
        wrong = sorted(channels.keys() - set(CHANNELS))
        if wrong:
            raise ValueError(f"--data {wrong[0]}: expected {' or '.join(CHANNELS)} before each =")
        if self.data and (
            len(channels) < len(self.data) or channels.keys().isdisjoint(CHANNELS[:2])
        ):
            raise ValueError("--data: expected the channel train, and no channel twice")
        return channels


def hyperparameters(words: Sequence[str], *, has_data: bool) -> dict[str, str]:
    """Returns the `train` flags that differ from the defaults, in SageMaker's format."""
    channel = ["--data-dir", f"{_LOCAL}/input/data/{CHANNELS[0]}"] if has_data else []
    config = train.parse([*channel, *words], {})
    if has_data and (config.synthetic or config.data_dir != channel[1]):
        raise UsageError("expected either --data, or --data-dir after --, not both")
    values = config.changed()
    lost = sorted(values.keys() & {"log_dir", "tensorboard_dir", "export"})
    if lost:
        raise UsageError(
            f"--{lost[0].replace('_', '-')}: SageMaker has its own folder for that, which it "
            "copies to --output. Remove this flag."
        )
    if has_data:
        del values["data_dir"]
    return {name: text_of(value) for name, value in sorted(values.items())}


def _words(own: RankCommand) -> list[str]:
    words = ["python", *own.argv[2:]]
    if own.script is not None:
        words[words.index(str(own.script))] = f"{_LOCAL}/input/data/{_CODE}/{own.script.name}"
    return words


def request(
    config: SageMakerConfig, name: str, train: Mapping[str, str], own: RankCommand | None = None
) -> Json:
    """Returns the CreateTrainingJob request for `train`, or for the user's script `own`."""
    output = config.output.rstrip("/")
    arguments = ["--processes", str(config.processes), *(["--", *_words(own)] if own else [])]
    job: Json = {
        "TrainingJobName": name,
        "RoleArn": config.role,
        "AlgorithmSpecification": {
            "TrainingImage": config.image,
            "TrainingInputMode": config.input_mode,
            "ContainerEntrypoint": ["imagenet-prep", "sagemaker-container"],
            "ContainerArguments": arguments,
        },
        "HyperParameters": dict(train),
        # Not a hyperparameter, since SageMaker shows those in comparisons of experiments.
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
        # The time to wait for instances and to train.
        job["StoppingCondition"]["MaxWaitTimeInSeconds"] = 2 * config.max_runtime
    if own is None:
        job["AlgorithmSpecification"]["MetricDefinitions"] = [
            {"Name": name, "Regex": regex} for name, regex in METRICS.items()
        ]
    code = {_CODE: f"{output}/{name}/{_CODE}"} if own and own.script else {}
    sources = config.channels | code
    if sources:
        job["InputDataConfig"] = [
            {"ChannelName": channel, "DataSource": _source(where)}
            for channel, where in sources.items()
        ]
    if config.subnets:
        groups = list(config.security_groups)
        subnets = list(config.subnets)
        job["VpcConfig"] = {"SecurityGroupIds": groups, "Subnets": subnets}
    if config.tags:
        pairs = [tag.partition("=") for tag in config.tags]
        job["Tags"] = [{"Key": key, "Value": value} for key, _, value in pairs]
    return job


def _source(data: str) -> Json:
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
            # Without the slash, the prefix would also match imagenet-480-old.
            "S3Uri": f"{data.rstrip('/')}/",
            "S3DataDistributionType": "FullyReplicated",
        }
    }


def upload_script(script: Path, prefix: str) -> None:
    """Uploads a script, and the Python files next to it, to s3://bucket/prefix."""
    files = sorted(script.parent.glob("*.py"))
    if len(files) > _MOST_FILES:
        raise UsageError(
            f"{script.parent} has {len(files)} Python files, which would all be sent with "
            f"{script.name}. Move the script and its modules to a separate folder."
        )
    for path in files:
        target = path.resolve()
        if path != script and not target.is_relative_to(script.parent.resolve()):
            raise UsageError(
                f"{path} is a link to {target}, which would be sent with {script.name}. Replace "
                "the link with a copy, or remove it."
            )
    from imagenet_prep.storage.store import open_store

    code = open_store(prefix)
    for path in files:
        code.write(path.name, small_files.read(path))


@program.verb("imagenet_prep.pipelines.sagemaker", SageMakerConfig, HELP)
def run(config: SageMakerConfig) -> int:
    name = config.name or time.strftime("imagenet-prep-%Y%m%d-%H%M%S", time.gmtime())
    if config.command[:1] == ("train",):
        own = None
        flags = hyperparameters(config.command[1:], has_data=bool(config.data))
    else:
        own = rank_command.own(config.command)
        flags = {}
    job = request(config, name, flags, own)
    if config.dry_run:
        print(json.dumps(job, indent=2))
        return EXIT_DONE
    service = Service("sagemaker")
    try:
        if own is not None and own.script is not None:
            upload_script(own.script, f"{config.output.rstrip('/')}/{name}/{_CODE}")
        arn = service.call("create_training_job", **job)["TrainingJobArn"]
    except TransientError as error:
        raise ImagenetPrepError(f"{error}. Submit the job again.") from error
    print(f"{name}: {arn}\ncheckpoints: {job['CheckpointConfig']['S3Uri']}", flush=True)
    try:
        if config.wait or config.follow:
            wait(service, name, JobLog(Service("logs"), name) if config.follow else None)
    except KeyboardInterrupt:
        print(
            f"{name} is still running. To stop it: aws sagemaker stop-training-job "
            f"--training-job-name {name}. To see its output: aws logs tail {LOG_GROUP} --follow "
            f"--log-stream-name-prefix {name}/",
            file=sys.stderr,
        )
        return EXIT_INTERRUPTED
    return EXIT_DONE
