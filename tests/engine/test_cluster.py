"""What a runner says of a failure becomes one error with its class; who is silent is named."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from concurrent import futures
from pathlib import Path
from typing import NamedTuple

import pytest

from imagenet_prep import engine
from imagenet_prep.core.errors import DataDamagedError, ImagenetPrepError, JobLostError, StoreError
from imagenet_prep.engine import cluster
from imagenet_prep.engine.cluster import Job
from imagenet_prep.storage.folder import LocalStore
from tests.kit.limits import Limits

HARNESS = "java.lang.RuntimeException: Error received from SDK harness: Traceback (most recent"
STEP = " [while running 'Shard/Images/Do-ptransform-57']\n\n\tat org.apache.beam.Java(Java.java)"


# It may name an error of ours that was handled before.
BUG = "imagenet_prep.core.errors.StoreError: first\n\nDuring handling\nKeyError: 'x'"


@pytest.mark.parametrize(
    ("said", "kind", "message"),
    [
        ("imagenet_prep.core.errors.StoreError: the disk", StoreError, "the disk"),
        (
            "imagenet_prep.core.errors.DataDamagedError: a (on worker w)",
            DataDamagedError,
            "a (on worker w)",
        ),
        (f"imagenet_prep.engine.transform.BugError: {BUG}", RuntimeError, BUG),
        (
            "x\nCaused by: java.net.ConnectException: refused",
            JobLostError,
            "Flink: java.net.ConnectException: refused. All it said is in /log",
        ),
    ],
    ids=["store", "worker", "bug", "lost"],
)
def test_a_failure_on_a_worker_keeps_its_class(said: str, kind: type, message: str) -> None:
    job = Job("Flink", Path("/log"), lambda: None)
    step = "" if kind is JobLostError else STEP
    error = job._explained(RuntimeError(f"{HARNESS}\n{said}{step}"))
    assert (type(error), str(error)) == (kind, message)


def refusal(log: Path, *args: str) -> str:
    """Returns what is said of Beam's options, before a pipeline is made."""

    def build(_: object) -> None:
        raise AssertionError("the job was made before it was known who answers")

    with pytest.raises(ImagenetPrepError) as raised:
        cluster.submit(args, build, name="job", log=log)
    assert type(raised.value) is ImagenetPrepError
    assert raised.value.exit_code == 1
    return str(raised.value)


def refused_endpoint(endpoint: str, log: Path) -> str:
    return refusal(log, "--runner=PortableRunner", f"--job_endpoint={endpoint}")


@pytest.mark.beam
@pytest.mark.parametrize(
    ("endpoint", "reason"),
    [("127.0.0.1:1", "UNAVAILABLE: .*Connection refused"), ("localhost:port", "UNAVAILABLE: .*")],
)
def test_an_endpoint_at_which_nobody_listens_is_named_at_once(
    endpoint: str, reason: str, tmp_path: Path
) -> None:
    """Beam alone waits for five minutes."""
    said = refused_endpoint(endpoint, tmp_path / "log")
    assert re.fullmatch(rf"no job server answers at {endpoint} \({reason}\)\. Expected .*", said)


@pytest.mark.beam
def test_an_endpoint_that_accepts_and_says_nothing_is_given_up(
    limits: Limits, tmp_path: Path
) -> None:
    limits(cluster_answer_s=0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"127.0.0.1:{silent.getsockname()[1]}"
        said = refused_endpoint(endpoint, tmp_path / "log")
    assert f"no job server answers at {endpoint} (DEADLINE_EXCEEDED" in said


@pytest.mark.beam
def test_an_endpoint_of_another_service_is_named(tmp_path: Path) -> None:
    """The pool of workers listens beside the job server, and is easily taken for it."""
    import grpc

    server = grpc.server(futures.ThreadPoolExecutor(1))
    endpoint = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        said = refused_endpoint(endpoint, tmp_path / "log")
    finally:
        server.stop(0)
    assert f"no job server answers at {endpoint} (UNIMPLEMENTED" in said


@pytest.mark.beam
@pytest.mark.parametrize("runner", ["FlinkRunner", "SparkRunner"])
def test_a_client_without_java_is_told_so(
    runner: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    said = refusal(tmp_path / "log", f"--runner={runner}")
    assert said.startswith("no 'java' on this machine: Beam's job server needs Java.")


class Made(NamedTuple):
    """The content of a receipt."""

    task: str


class Task(NamedTuple):
    name: str


def damaged(task: Task) -> engine.Result[Made]:
    raise DataDamagedError(f"{task.name} is damaged") from OSError("the cause")


def unforeseen(task: Task) -> engine.Result[Made]:
    raise KeyError(task.name)


@pytest.mark.beam
@pytest.mark.parametrize(
    ("work", "kind", "message"),
    [
        (damaged, DataDamagedError, r"shard is damaged \(on worker [^\n]+\)"),
        (unforeseen, RuntimeError, r"(?s)Traceback .*KeyError: 'shard'\nTask: shard"),
    ],
    ids=["damage", "bug"],
)
def test_an_error_on_a_worker_of_a_real_runner_keeps_its_class(
    work: Callable[[Task], engine.Result[Made]], kind: type[Exception], message: str, tmp_path: Path
) -> None:
    """Beam's own runner wraps it in the same words as Flink and Spark."""
    stage = engine.Stage("write", "0" * 64, LocalStore(tmp_path), work, Made)
    workers = engine.Workers(beam_args=("--runner=DirectRunner",))
    with pytest.raises(kind) as raised:
        engine.run(stage, [Task("shard")], workers, title="", quiet=True)
    assert type(raised.value) is kind
    assert re.fullmatch(message, str(raised.value))


@pytest.mark.beam
@pytest.mark.parametrize("masters", ["127.0.0.1:1", "127.0.0.1:1,[::1]:1", "localhost:port", "it"])
def test_a_spark_master_that_is_not_there_is_named_at_once(masters: str, tmp_path: Path) -> None:
    """Spark alone looks for it for a minute, in each of three jobs."""
    url = f"spark://{masters}"
    said = refusal(tmp_path / "log", "--runner=SparkRunner", f"--spark_master_url={url}")
    assert said.startswith(f"no Spark answers at {url} (")
