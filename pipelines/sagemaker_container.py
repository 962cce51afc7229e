"""`imagenet-prep sagemaker-container`: runs in each container of a SageMaker job.

It reads SageMaker's files in /opt/ml, and runs one rank per GPU. Containers cannot connect by ssh,
so each container starts its own ranks. The ranks connect through a server in the first container.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import secrets
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from imagenet_prep.core import children, program, small_files, strict_json
from imagenet_prep.core.address import refuse_logins
from imagenet_prep.core.errors import ImagenetPrepError, UsageError
from imagenet_prep.core.flags import AddressKind, Settings, after_dashes, flag
from imagenet_prep.core.imports import is_there
from imagenet_prep.core.terminal import counted
from imagenet_prep.dataset import schema
from imagenet_prep.hosts.commands import Host
from imagenet_prep.launching import rank_command
from imagenet_prep.launching.host import Answer, probe
from imagenet_prep.launching.host_checks import differences, understood
from imagenet_prep.launching.ranks import Rank, Ranks
from imagenet_prep.trainer import rendezvous
from imagenet_prep.trainer.config import TrainConfig

HELP = """\
Train in a container of a SageMaker job. SageMaker runs this in each container.

Examples:
  imagenet-prep sagemaker-container
  imagenet-prep sagemaker-container -- python /opt/ml/input/data/code/my_train.py
  imagenet-prep sagemaker-container --root /tmp/ml --processes 2    # a rehearsal"""

# The variable with a token that only the containers of a job know.
TOKEN_VARIABLE = "IMAGENET_PREP_JOB_TOKEN"  # noqa: S105 - the name of a variable

# Channels of the dataset: the first or second channel has all of it, or several have a part each.
CHANNELS = ("training", "train", "validation", "eval", "test")
# Ignored hyperparameters of SageMaker's SDK and of the guide's script.
_KNOWN = {"gpu_count", "model_dir", "output_data_dir", "tensorboard_logs"}

# Any port above 1024 works: a container does not share its network.
_PORT = 29_431
_TORCH_PORT = 29_432
# Seconds to wait for the other containers, each of which starts when its data is there.
_HOSTS_S = 1800.0
_END_S = 30.0
# Seconds for ranks to save a checkpoint and update a mirror; SageMaker kills 120 s after SIGTERM.
_GRACE_S = 90.0
_POLL_S = 0.1


@dataclass(frozen=True)
class SageMakerContainerConfig(Settings):
    """Settings of one container; see the help of each flag."""

    root: str = flag("/opt/ml", place=AddressKind.FOLDER, help="the folder that SageMaker fills")
    processes: int = flag(0, least=0, help="ranks per host; 0: one per GPU, at least one")
    command: tuple[str, ...] = after_dashes("the command of every rank goes")


@dataclass(frozen=True)
class TrainingJob:
    """SageMaker's description of the job: `host` is this container, which is one of `hosts`.

    `interface` is the hosts' network interface. `token` is the secret of the job, or "".
    """

    host: str
    hosts: tuple[str, ...]
    interface: str
    hyperparameters: Mapping[str, str]
    token: str


def read_job(root: Path) -> TrainingJob:
    """Returns the job that the files in `root`/input/config describe."""
    folder = root / "input" / "config"
    try:
        resources = strict_json.loads(small_files.read(folder / "resourceconfig.json"))
        path = folder / "hyperparameters.json"
        hyperparameters = strict_json.loads(small_files.read(path)) if path.exists() else {}
        job = TrainingJob(
            resources["current_host"],
            tuple(resources["hosts"]),
            resources.get("network_interface_name", "eth0"),
            {str(key): str(value) for key, value in hyperparameters.items()},
            os.environ.get(TOKEN_VARIABLE, ""),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{folder}: {type(error).__name__}: {error}. SageMaker writes resourceconfig.json and "
            "hyperparameters.json there. For a different folder, set --root."
        ) from error
    if job.host not in job.hosts:
        raise UsageError(
            f"{folder}: current_host {job.host} is not in hosts: {', '.join(job.hosts)}"
        )
    return job


def train_flags(hyperparameters: Mapping[str, str]) -> list[str]:
    """Returns hyperparameters as flags of `train`; values may be plain text or JSON strings."""
    switches = {field.name for field in dataclasses.fields(TrainConfig) if field.type == "bool"}
    words = []
    for key, value in _settings(hyperparameters):
        name = key.replace("-", "_")
        if name in _KNOWN:
            print(f"hyperparameter {key}: not needed, so it is ignored")
            continue
        flag = f"--{name.replace('_', '-')}"
        if name not in switches:
            words += [f"{flag}={value}"]
        elif value.lower() in ("true", "1", ""):
            words += [flag]
        elif value.lower() not in ("false", "0"):
            raise UsageError(f"hyperparameter {key}: {value!r}, expected true or false")
    refuse_logins(words)
    return words


def _settings(hyperparameters: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yields names and plain values of hyperparameters, except those for SageMaker's SDK."""
    for key, value in sorted(hyperparameters.items()):
        if key.startswith("sagemaker_"):
            continue
        if value.startswith('"') and value.endswith('"') and len(value) > 1:
            with contextlib.suppress(ValueError):  # from the console, with literal quotes
                value = str(strict_json.loads(value))
        yield key, value


def data_set(root: Path) -> Path | None:
    """Returns the folder of the dataset, or None if no channel has one.

    If several channels have shards of one dataset, returns a folder of links to all shards.
    """
    channels = [root / "input" / "data" / name for name in CHANNELS]
    folders = [folder for folder in channels if (folder / schema.MANIFEST).exists()]
    if len(folders) < 2:
        return folders[0] if folders else None
    first = small_files.read(folders[0] / schema.MANIFEST)
    for folder in folders[1:]:
        if small_files.read(folder / schema.MANIFEST) != first:
            raise UsageError(
                f"channels {folders[0].name} and {folder.name} have different datasets: their "
                f"{schema.MANIFEST} files differ. Use one dataset, or its parts, for all channels."
            )
    joined = root / "input" / "joined"
    for folder in folders:
        for path in folder.rglob("*"):
            link = joined / path.relative_to(folder)
            link.parent.mkdir(parents=True, exist_ok=True)
            if path.is_file() and not link.exists():
                link.symlink_to(path)
    return joined


def run_container(config: SageMakerContainerConfig) -> int:
    """Runs the ranks of this host; returns 0 or raises the error of a rank."""
    root = Path(config.root)
    job = read_job(root)
    if len(job.hosts) > 1 and not rendezvous.TOKEN.fullmatch(job.token):
        raise UsageError(
            f"{TOKEN_VARIABLE}: {'invalid' if job.token else 'not set'}. Hosts of a job use it to "
            "recognise each other. `imagenet-prep sagemaker` sets it. In your own request, add it "
            "to Environment: 16 to 128 random letters, digits, - and _, new for each job."
        )
    channels = sorted(path for path in root.glob("input/data/*") if path.is_dir())
    environment = {f"SM_CHANNEL_{path.name.upper()}": str(path) for path in channels}
    environment["SM_MODEL_DIR"] = str(root / "model")
    data = data_set(root)
    if data is not None:
        environment["SM_CHANNEL_TRAINING"] = str(data)
    if config.command:
        own = rank_command.own(config.command)
        settings = _settings(job.hyperparameters)
        command = [*own.argv, *(f"--{key}={value}" for key, value in settings)]
        environment |= own.variables() | {"SM_OUTPUT_DATA_DIR": str(root / "output" / "data")}
        (root / "output" / "data").mkdir(parents=True, exist_ok=True)
    else:
        command = children.python("-m", "imagenet_prep", "train")
        command += ["--log-dir", str(root / "checkpoints")]
        command += ["--tensorboard-dir", str(root / "output" / "tensorboard")]
        command += train_flags(job.hyperparameters)
    facts = probe(str(data) if data else None)
    ranks = config.processes or facts.gpus or 1
    hosts = [Host(name, ranks) for name in job.hosts]
    words = " ".join(command[2:] if config.command else command[4:])
    place = f"{job.host} of {counted(len(hosts), 'host')}, {counted(ranks, 'rank')} each"
    print(f"{place}: {words}", flush=True)
    environment["SM_NUM_GPUS"] = str(facts.gpus)
    if len(hosts) == 1 and ranks == 1:
        return _run(command, [environment])
    with _meeting(job, hosts, facts) as ranks_variables:
        return _run(command, [environment | of_rank for of_rank in ranks_variables])


@contextlib.contextmanager
def _meeting(
    job: TrainingJob, hosts: Sequence[Host], facts: Answer
) -> Iterator[list[dict[str, str]]]:
    """Waits for all hosts and checks them; yields the variables of each rank of this host."""
    interface = "lo"
    place = rendezvous.RendezvousAddress("127.0.0.1", 0, secrets.token_urlsafe(32))
    if len(hosts) > 1:
        interface = job.interface
        place = rendezvous.RendezvousAddress(_address(job.hosts[0]), _PORT, job.token)
    with contextlib.ExitStack() as stack:
        if job.host == job.hosts[0]:
            place = stack.enter_context(rendezvous.serving(hosts, place))
        answers = rendezvous.exchange(
            "facts", json.dumps(vars(facts)), hosts, job.host, place, limit_s=_HOSTS_S
        )
        every = {host: _facts(host, answers[host.address]) for host in hosts}
        problems: list[str] = []
        for host, its in every.items():
            problems += [f"{host.address}: {problem}" for problem in its.problems]
        for host in hosts[1:]:
            problems += differences(hosts[0], every[hosts[0]], host, every[host])
        try:
            if problems:
                raise ImagenetPrepError("nothing was started:\n  " + "\n  ".join(problems))
            reached = [interface] * len(hosts)
            torchrun = rank_command.of_torchrun(hosts, reached, place.address, _TORCH_PORT)
            own = torchrun[job.hosts.index(job.host)]
            of_horovod: list[dict[str, str]] = [{}] * len(own)
            if is_there("horovod"):
                of_horovod = rendezvous.environments(hosts, job.host, place, interface)
            pairs = zip(own, of_horovod, strict=True)
            yield [rank | more | rank_command.of_horovod() for rank, more in pairs]
        finally:
            # The first host waits until all hosts have ended, since they need its server.
            waits_for = hosts if job.host == job.hosts[0] else []
            with contextlib.suppress(ImagenetPrepError):
                rendezvous.exchange("end", "-", waits_for, job.host, place, limit_s=_END_S)


def _facts(host: Host, answer: str) -> Answer:
    facts = understood(answer)
    if facts is None:
        problem = f"{host.address}: its answer is invalid: {answer[:200]!r}"
        raise ImagenetPrepError(f"{problem}. Run the same image in all containers.")
    return facts


def _address(host: str) -> str:
    deadline = time.monotonic() + _HOSTS_S
    while True:
        try:
            return socket.gethostbyname(host)
        except OSError as error:
            if time.monotonic() > deadline:
                raise ImagenetPrepError(f"{host}: no address found: {error.strerror}") from error
            time.sleep(_POLL_S)


def _run(command: Sequence[str], environments: Sequence[Mapping[str, str]]) -> int:
    """Runs all ranks to their end; returns 0 or raises the error of the first failed rank."""
    ranks = Ranks()
    failed: list[Rank] = []

    def note(rank: Rank) -> None:
        # The other ranks lose a peer and end by themselves, unless they hang.
        failed.append(rank)
        ranks.limit(_GRACE_S)

    with program.handled(lambda *_: ranks.ask()):  # SIGTERM is passed on to the ranks
        ranks.start(command, environments)
        ranks.wait(note)
    if not failed:
        return 0
    # A rank that lost a peer did not cause the failure.
    first = next((rank for rank in failed if not rank.voice.left), failed[0])
    error = ImagenetPrepError(first.reason())
    error.exit_code = first.code()
    raise error


@program.verb("imagenet_prep.pipelines.sagemaker_container", SageMakerContainerConfig, HELP)
def run(config: SageMakerContainerConfig) -> int:
    try:
        return run_container(config)
    except ImagenetPrepError as error:
        # SageMaker shows the first 1024 characters as the job's FailureReason.
        failure = Path(config.root) / "output" / "failure"
        with contextlib.suppress(OSError):
            failure.parent.mkdir(parents=True, exist_ok=True)
            with small_files.replaced(failure, None) as file:
                file.write(str(error)[:1024].encode(errors="replace"))
        raise
