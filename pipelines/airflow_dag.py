"""A DAG for Airflow 3: ImageNet from the archives to a trained network, one command per task.

    download -> prepare -> verify -> duplicates -> resize -> replicate -> report -> train

Copy this file into Airflow's DAG folder. It needs only Airflow there; `imagenet-prep` has a
separate environment on the workers, and IMAGENET_PREP_COMMAND is the path of this command.

You can clear or rerun any task at any time: it only does the remaining work. A task fails at
once with exit codes 1 (failed), 2 (usage) and 3 (damaged data), since the same command would fail
again. With 75 (another run is active), the task waits and tries again, within its time-out.
All other exit codes are retried.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shlex
import shutil
import signal
import stat
import subprocess
import time
from collections import deque
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from airflow.sdk import Param, dag, task
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

_FINAL = {1, 2, 3}
# A different run is writing the output. The task waits, without using one of its retries.
_BUSY = 75
_BUSY_S = float(os.environ.get("IMAGENET_PREP_AIRFLOW_BUSY_S", "60"))
# Seconds for a command to save its work, e.g. a checkpoint.
_GRACE_S = 120
# The limit of imagenet-prep itself.
_MOST_MANIFEST_BYTES = 128 << 20
# Matches user:password@ in an address, which is refused, since Airflow shows parameters to users.
_LOGIN = r"""://[^/?#\s"',;<>\[]*(?:@|:[0-9]*[^0-9/?#\s"',;<>}])"""
_NO_LOGIN = {"pattern": rf"^(?![\s\S]*{_LOGIN})"}
_FOLDER = {"type": "string", "pattern": "^/"}
_NO_FOLDER = {"type": ["null", "string"], "pattern": "^/"}
# Read in place: an absolute path, or an address of archives.
_SOURCE = {"type": "string", "pattern": rf"^(?![\s\S]*{_LOGIN})(/|s3://|https?://)"}
_ADDRESS = {"type": ["null", "string"], **_NO_LOGIN}
_WORDS = {"type": ["null", "array"], "items": {"type": "string", **_NO_LOGIN}}
_SWITCH = {"type": "boolean"}
# Environment variables of Airflow's Python, some of which contain keys.
_PRIVATE = ("AIRFLOW", "PYTHON", "_AIRFLOW")
_NUMBER, _POSITIVE = ({"type": "integer", "minimum": least} for least in (0, 1))
# "1" allows options of Apache Beam. They can start programs and send code to hosts, so any user who
# can trigger a run could do anything on the worker.
_ALLOW_BEAM = "IMAGENET_PREP_AIRFLOW_ALLOW_BEAM"
# A command reads files with the worker's rights, so parameters may only name files in this folder.
_FILES = "IMAGENET_PREP_AIRFLOW_FILES"
# If set, each command writes its metrics to this folder, for node_exporter.
_METRICS = "IMAGENET_PREP_AIRFLOW_METRICS"
# Flags allowed in `prepare_flags` and `train_flags`: switches, flags with a value, and flags with
# files to read. All other flags are refused, such as flags with files to write.
_ALLOWED = {
    "prepare_flags": (
        "allow-subset allow-unknown dry-run follow-links json keep-original no-boxes rehash",
        """check codec holdout holdout-per-class label-offset licence max-bad on-bad-image
        orientation quality seed short-side source-kind splits subset-classes subset-per-class
        train-shards validation-shards worker-kind workers""",
        "classes-of exclude",
    ),
    "train_flags": (
        """clear-log evaluate fp16-compression increased-aug jit local-ckpt nesterov no-evaluation
        remap synthetic train-accuracy""",
        """backend batch-size checkpoint-every classes comm crop-area crop-aspect crop-filter
        crop-share crops device display-every eval-every fraction framework image-size keep
        label-smoothing loss-scale lr lr-decay-lrs lr-decay-steps model momentum num-batches
        num-epochs optimizer precision recipe schedule seed trust-coefficient warmup-epochs
        warmup-lr weight-decay""",
        "also exclude keys labels",
    ),
}

log = logging.getLogger("imagenet_prep")

_source, _set, _resized, _replicas, _training = (
    partial(Param, section=title)
    for title in ("Source", "Dataset", "Smaller images", "Replicas", "Training")
)

PARAMS = {
    "source": _source(
        "/data/ilsvrc2012",
        "Folder of the archives or images, which `download` fills, or the s3:// or http(s):// "
        "address of the archives, which are read in place.",
        **_SOURCE,
    ),
    "download_from": _source(
        None,
        "Download the ILSVRC2012 archives from http(s)://, s3:// or a folder, with the credentials "
        "in the worker's environment. Empty: they are already in `source`.",
        **_ADDRESS,
    ),
    "allow_subset": _source(False, "Accept unofficial archives and image counts.", **_SWITCH),
    "out": _set(
        "/data/imagenet-480", "Folder of the dataset, the same on every worker.", **_FOLDER
    ),
    "short_side": _set(
        480, "Downscale images whose shorter side is longer than this, in pixels.", **_POSITIVE
    ),
    "quality": _set(90, "JPEG quality of re-encoded images.", **_POSITIVE, maximum=100),
    "keep_original": _set(False, "Keep all sizes; copy valid RGB JPEGs byte for byte.", **_SWITCH),
    "max_bad": _set(
        None, "Maximum number of bad images. Empty: no limit.", type=["null", "integer"], minimum=0
    ),
    "workers": _set(0, "Number of images processed at a time; 0: one per core.", **_NUMBER),
    "prepare_flags": _set(
        None,
        "More flags of `imagenet-prep prepare`, one per line, e.g. --train-shards=256; "
        f"options for Apache Beam go after a line with --, if the worker has {_ALLOW_BEAM}=1.",
        **_WORDS,
    ),
    "verify_level": _set(
        "crc",
        "manifest: only names and sizes of files, in seconds; crc: every byte; decode: also every "
        "image, label and class count.",
        type="string",
        enum=["manifest", "crc", "decode"],
    ),
    "verify_again": _set(
        False, "Read every byte, even if no file has changed, to find disk errors.", **_SWITCH
    ),
    "duplicates": _set(
        "no",
        "Find duplicate images. find: list them in the folder OUT-duplicates; cross: also fail if "
        "duplicates are in different splits.",
        type="string",
        enum=["no", "find", "cross"],
    ),
    "resize_to": _resized(
        None,
        "Folder for a copy with smaller images. Replicas, report and training then use this copy. "
        "Empty: no copy.",
        **_NO_FOLDER,
    ),
    "resize_short_side": _resized(
        256, "Downscale the images of the copy to this shorter side, in pixels.", **_POSITIVE
    ),
    "resize_quality": _resized(
        90, "JPEG quality of the images of the copy.", **_POSITIVE, maximum=100
    ),
    "replicate_to": _replicas(
        None,
        "A folder, s3://bucket/prefix, or hosts:HOSTSFILE:PATH with a hosts file in the "
        f"folder that {_FILES} names on the worker. Empty: no replica.",
        **_ADDRESS,
    ),
    "train_ranks": _training(0, "Number of ranks, one per GPU; 0: no training.", **_NUMBER),
    "train_hosts": _training(
        None,
        f"Hosts file, in the folder that {_FILES} names on the worker. Empty: train on the worker.",
        **_ADDRESS,
    ),
    "log_dir": _training(
        "/data/imagenet_resnet",
        "Folder of checkpoints and logs; training resumes from it.",
        **_FOLDER,
    ),
    "train_flags": _training(
        None, "More flags of `imagenet-prep train`, one per line, e.g. --recipe=tutorial.", **_WORDS
    ),
}


# Time-outs are several times the duration for ImageNet on a modest host.
@task(execution_timeout=timedelta(hours=48))
def download(params: dict[str, Any]) -> dict[str, Any]:
    """Downloads the archives that are not in `source` yet."""
    unknown = sorted(params.keys() - PARAMS.keys())
    if unknown:
        raise AirflowFailException(
            f"{', '.join(unknown)}: not a parameter of this DAG, so nothing was started. Expected "
            f"some of {', '.join(PARAMS)}."
        )
    if not params["download_from"]:
        raise AirflowSkipException("download_from is empty: source has the archives")
    source = params["source"]
    if "://" in source:
        raise AirflowFailException(
            f"download_from: the source {source} is read in place. Empty download_from, or set "
            "source to the folder that the archives are downloaded to."
        )
    flags = _flags(
        into=source, base_url=params["download_from"], allow_other=params["allow_subset"]
    )
    run("download", *flags)
    return {"source": source}


@task(execution_timeout=timedelta(hours=48))
def prepare(params: dict[str, Any]) -> dict[str, Any]:
    """Builds the missing shards."""
    names = ("source", "out", "short_side", "quality", "keep_original", "allow_subset", "max_bad")
    flags = _flags(**{name: params[name] for name in names}, workers=params["workers"])
    more = params["prepare_flags"] or []
    of_beam = more[more.index("--") :] if "--" in more else []
    if of_beam and os.environ.get(_ALLOW_BEAM) != "1":
        raise AirflowFailException(
            "prepare_flags: -- starts options for Apache Beam, which can run any program on the "
            f"worker. Remove them, or set {_ALLOW_BEAM}=1 in the environment of the workers."
        )
    allowed = _allowed("prepare_flags", more[: len(more) - len(of_beam)])
    run("prepare", *flags, *allowed, *of_beam)
    return _lineage(params, params["out"])


@task(execution_timeout=timedelta(hours=12))
def verify(params: dict[str, Any]) -> dict[str, Any]:
    """Verifies the dataset at `verify_level`; by default, only if a file has changed."""
    level = params["verify_level"]
    if_changed = not params["verify_again"]
    flags = _flags(level=level, if_changed=if_changed, workers=params["workers"])
    run("verify", params["out"], *flags)
    return {**_lineage(params, params["out"]), "level": level}


@task(execution_timeout=timedelta(hours=24))
def duplicates(params: dict[str, Any]) -> dict[str, Any]:
    """Lists duplicate images; an image that was hashed before is not decoded again."""
    mode = params["duplicates"]
    if mode == "no":
        raise AirflowSkipException("duplicates is 'no': no search was requested")
    folder = f"{params['out'].rstrip('/')}-duplicates"
    fail_on = mode if mode == "cross" else None
    flags = _flags(out=folder, fail_on=fail_on, workers=params["workers"])
    run("duplicates", params["out"], *flags)
    return {"duplicates": folder}


@task(execution_timeout=timedelta(hours=24))
def resize(params: dict[str, Any]) -> dict[str, Any]:
    """Writes a copy with smaller images, and verifies it."""
    copy = params["resize_to"]
    if not copy:
        raise AirflowSkipException("resize_to is empty: no smaller images were requested")
    original = Path(params["out"]) / "dataset.json"
    flags = _flags(
        input_dir=params["out"],
        output_dir=copy,
        splits=",".join(_manifest(original)["splits"]),
        short_side=params["resize_short_side"],
        quality=params["resize_quality"],
        workers=params["workers"],
    )
    run("resize", *flags)
    run("verify", copy, *_flags(if_changed=True, workers=params["workers"]))
    return _lineage(params)


@task(execution_timeout=timedelta(hours=24))
def replicate(params: dict[str, Any]) -> dict[str, Any]:
    """Copies the missing files to the replicas."""
    if not params["replicate_to"]:
        raise AirflowSkipException("replicate_to is empty: no replica was requested")
    kind, _, rest = params["replicate_to"].partition(":")
    if kind == "hosts":
        _require_allowed("replicate_to", rest.partition(":")[0])
    run("replicate", _used(params), *_flags(to=params["replicate_to"]))
    return {**_lineage(params), "to": params["replicate_to"]}


@task(execution_timeout=timedelta(hours=2))
def report(params: dict[str, Any]) -> dict[str, Any]:
    """Builds the dataset's report, unless it is up to date."""
    out = Path(_used(params))
    page = out / "report.html"
    sources = (out / "dataset.json", out / ".work" / "replicas.jsonl")
    changed = max((path.stat().st_mtime_ns for path in sources if path.exists()), default=0)
    if page.exists() and page.stat().st_mtime_ns >= changed:
        log.info("%s is up to date", page)
    else:
        run("report", str(out), *_flags(workers=params["workers"]))
    return {"report": str(page), "bytes": page.stat().st_size}


@task(execution_timeout=timedelta(days=14))
def train(params: dict[str, Any]) -> dict[str, Any]:
    """Trains, starting from the last checkpoint if there is one."""
    ranks = params["train_ranks"]
    hosts = params["train_hosts"] or None
    if not ranks:
        raise AirflowSkipException("train_ranks is 0: no training was requested")
    more = _allowed("train_flags", params["train_flags"] or [])
    if hosts is not None:
        _require_allowed("train_hosts", hosts)
    command = ["train", *_flags(data_dir=_used(params), log_dir=params["log_dir"]), *more]
    if ranks > 1 or hosts is not None:
        command = ["launch", *_flags(num_processes=ranks, hosts=hosts), "--", *command]
    run(*command)
    return {**_lineage(params), "log_dir": params["log_dir"]}


@dag(
    dag_id="imagenet_prep",
    description="ImageNet's archives -> verified shards, replicas, a report, a trained network",
    doc_md=__doc__,
    schedule=None,
    catchup=False,
    max_active_runs=1,
    tags=["imagenet"],
    params=PARAMS,
    default_args={
        # Our commands use all cores; in a pool with one slot per host, they run one at a time.
        "pool": os.environ.get("IMAGENET_PREP_POOL", "default_pool"),
        "retries": 3,
        "retry_delay": timedelta(minutes=2),
        "retry_exponential_backoff": True,
        "max_retry_delay": timedelta(minutes=30),
        # A task that was not requested is skipped, and the tasks after it still run.
        "trigger_rule": "none_failed",
    },
)
def imagenet_prep() -> None:
    """Chains the tasks, each of which runs one `imagenet-prep` command."""
    prepared = download() >> prepare() >> verify() >> duplicates()
    prepared >> resize() >> replicate() >> report() >> train()


def run(*arguments: str) -> None:
    """Runs `imagenet-prep ARGUMENTS` without a shell, with its output in the task's log."""
    if any(re.search(_LOGIN, word) for word in arguments):
        raise AirflowFailException(
            f"{arguments[0]}: an address in the parameters contains a user name or password. Put "
            "them into ~/.netrc on the workers, or into their environment variables."
        )
    program = os.environ.get("IMAGENET_PREP_COMMAND", "imagenet-prep")
    if shutil.which(program) is None:
        raise AirflowFailException(
            f"{program}: no such program. Install imagenet-prep on this worker, and set "
            "IMAGENET_PREP_COMMAND to its path."
        )
    folder = os.environ.get(_METRICS)
    if folder:
        file = f"{folder}/imagenet-prep-{arguments[0]}.prom"
        arguments = (arguments[0], *_flags(metrics_file=file), *arguments[1:])
    output: deque[str] = deque(maxlen=100)
    while (code := _once(program, arguments, output)) == _BUSY:
        log.info("another run is active; trying again in %g s", _BUSY_S)
        time.sleep(_BUSY_S)
    if code < 0:
        name = signal.Signals(-code).name
        raise AirflowException(f"imagenet-prep {arguments[0]}: ended by {name}; out of memory?")
    if code:
        failure = AirflowFailException if code in _FINAL else AirflowException
        raise failure(f"{_message(output)} (exit code {code})")


def _once(program: str, arguments: Sequence[str], output: deque[str]) -> int:
    """Runs a command and returns its exit code; adds the lines of its output to `output`."""
    log.info("%s", shlex.join([program, *arguments]))
    process = subprocess.Popen(
        # If Airflow kills the task, the kernel sends SIGTERM to the command.
        ["setpriv", "--pdeathsig=TERM", program, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={name: os.environ[name] for name in os.environ if not name.startswith(_PRIVATE)}
        | {"IMAGENET_PREP_LOG_FORMAT": "text"},
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            output.append(line.rstrip())
            log.info("%s", output[-1])
        return process.wait()
    finally:
        if process.poll() is None:  # After a time-out, the command saves its work.
            process.terminate()
            try:
                process.communicate(timeout=_GRACE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _message(output: deque[str]) -> str:
    """Returns the error message in a command's output, else the last line of the output."""
    lines = [" ".join(line.split()) for line in output if line] or ["imagenet-prep: no output"]
    starts = [n for n, line in enumerate(lines) if line.startswith("imagenet-prep")]
    return " ".join(lines[starts[-1] if starts else -1 :])


def _flags(**values: Any) -> list[str]:
    """Returns flags as single arguments (--short-side=480), so that no value can act as a flag."""
    flags = []
    for name, value in values.items():
        if value is not None and value is not False:
            flag = f"--{name.replace('_', '-')}"
            flags.append(flag if value is True else f"{flag}={value}")
    return flags


def _allowed(parameter: str, words: Sequence[str]) -> list[str]:
    """Returns a parameter's flags as single arguments: --keys FILE becomes --keys=FILE."""
    switches, values, files = map(str.split, _ALLOWED[parameter])
    rest = iter(words)
    flags = []
    if any("\0" in word for word in words):
        raise AirflowFailException(f"{parameter}: a flag contains a null character. Remove it.")
    for word in rest:
        flag, equals, value = word.partition("=")
        name = flag.removeprefix("--").replace("_", "-")
        is_switch = name in switches and not equals
        if not flag.startswith("--") or not (is_switch or name in [*values, *files]):
            names = ", ".join(f"--{name}" for name in sorted([*switches, *values, *files]))
            raise AirflowFailException(f"{parameter}: {flag}: not allowed here. Allowed: {names}.")
        if not is_switch and not equals:
            value = next(rest, "")
        if name in files:
            _require_allowed(parameter, value, *value.split(","))
        flags.append(f"--{name}" if is_switch else f"--{name}={value}")
    return flags


def _require_allowed(parameter: str, *files: str) -> None:
    """Raises AirflowFailException if a file is not in the administrator's folder."""
    folder = os.environ.get(_FILES)
    for file in files:
        # Resolve links and .. first. Refuse ~, which a command would expand to the worker's home.
        is_path = Path(file).is_absolute() and "\0" not in file
        path = Path(os.path.realpath(file)) if is_path else None
        if not folder or path is None or not path.is_relative_to(os.path.realpath(folder)):
            raise AirflowFailException(
                f"{parameter}: {file}: not in the folder that {_FILES} names on the worker "
                f"({folder or 'not set'}). Put the file there, and give its path."
            )


def _used(params: dict[str, Any]) -> str:
    """Returns the dataset for replicas, report and training: the smaller copy if there is one."""
    return str(params["resize_to"] or params["out"])


def _lineage(params: dict[str, Any], dataset: str | None = None) -> dict[str, Any]:
    """Returns the path of a dataset, and the digest that identifies its content."""
    dataset = dataset or _used(params)
    return {"dataset": dataset, "digest": _manifest(Path(dataset) / "dataset.json")["digest"]}


def _manifest(path: Path) -> dict[str, Any]:
    # The same as `core/small_files`, since imagenet-prep is not in Airflow's environment.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        status = os.fstat(file.fileno())
        is_file = stat.S_ISREG(status.st_mode) and status.st_size <= _MOST_MANIFEST_BYTES
        try:
            content = json.loads(file.read(_MOST_MANIFEST_BYTES) if is_file else "")
            return {"digest": content["digest"], "splits": list(content.get("splits", ()))}
        except (AttributeError, ValueError, LookupError, TypeError, RecursionError):
            raise AirflowFailException(f"{path} is not a manifest. Verify the dataset.") from None


imagenet_prep()
