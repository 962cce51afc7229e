"""Failures of Beam's runners become one error with its class; silent servers are named."""

from __future__ import annotations

import contextlib
import http.server
import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from imagenet_prep import engine
from imagenet_prep.core.errors import DataDamagedError, ImagenetPrepError, JobLostError, StoreError
from imagenet_prep.engine import cluster
from imagenet_prep.engine.cluster import ClusterJob
from imagenet_prep.storage.folder import LocalStore
from tests.kit.limits import Limits
from tests.kit.messages import says

HARNESS = "java.lang.RuntimeException: Error received from SDK harness: Traceback (most recent"
STEP = " [while running 'Shard/Images/Do-ptransform-57']\n\n\tat org.apache.beam.Java(Java.java)"


# It may name an earlier, handled error of this program.
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
            "Flink: java.net.ConnectException: refused. The complete log is /log",
        ),
    ],
    ids=["store", "worker", "bug", "lost"],
)
def test_failure_on_a_worker_keeps_its_class(said: str, kind: type, message: str) -> None:
    job = ClusterJob("Flink", Path("/log"), lambda: None)
    step = "" if kind is JobLostError else STEP
    error = job._explained(RuntimeError(f"{HARNESS}\n{said}{step}"))
    assert (type(error), str(error)) == (kind, message)


def refusal(log: Path, *args: str) -> str:
    """Returns the refusal of Beam's options, before a pipeline is made."""

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
def test_endpoint_without_a_server_is_named_at_once(
    endpoint: str, reason: str, tmp_path: Path
) -> None:
    """Beam itself waits for five minutes."""
    said = refused_endpoint(endpoint, tmp_path / "log")
    assert says("job-server-not-answer-check", endpoint).fullmatch(said)
    assert re.search(rf"\({reason}\)", said)


@pytest.mark.beam
def test_silent_endpoint_is_given_up(limits: Limits, tmp_path: Path) -> None:
    limits(cluster_answer_s=0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"127.0.0.1:{silent.getsockname()[1]}"
        said = refused_endpoint(endpoint, tmp_path / "log")
    assert says("job-server-not-answer-check", endpoint, "DEADLINE_EXCEEDED").search(said)


@pytest.mark.beam
def test_endpoint_of_a_different_service_is_named(tmp_path: Path) -> None:
    """The pool of workers listens next to the job server, and is easily confused with it."""
    import grpc

    server = grpc.server(futures.ThreadPoolExecutor(1))
    endpoint = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        said = refused_endpoint(endpoint, tmp_path / "log")
    finally:
        server.stop(0)
    assert says("job-server-not-answer-check", endpoint, "UNIMPLEMENTED").search(said)


@pytest.mark.beam
@pytest.mark.parametrize("runner", ["FlinkRunner", "SparkRunner"])
def test_missing_java_is_named(
    runner: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    said = refusal(tmp_path / "log", f"--runner={runner}")
    assert says("no-machine-beam-s-job", "'java'").match(said)


@contextlib.contextmanager
def flink(slots: int, *names: str) -> Iterator[tuple[str, list[str]]]:
    """Yields the address of a simulated JobManager of Flink, and the list of its requests.

    Jobs with these names are running on it.
    """
    jobs = [{"jid": f"id-of-{name}", "name": name} for name in names]
    answers = {"/v1/overview": {"slots-total": slots}, "/v1/jobs/overview": {"jobs": jobs}}
    asked: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(f"{self.command} {self.path}")
            body = json.dumps(answers.get(self.path, {})).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_PATCH = do_GET  # noqa: N815 - the server asks for this name

        def log_message(self, *_: object) -> None:
            """Logs nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}", asked
        finally:
            server.shutdown()
            serving.join()


@pytest.mark.beam
def test_flink_without_a_task_manager_is_named(tmp_path: Path) -> None:
    with flink(0) as (address, _):
        said = refusal(tmp_path / "log", "--runner=FlinkRunner", f"--flink_master={address}")
    assert says("flink-no-taskmanager-start-one", f"http://{address}").match(said)


@pytest.mark.beam
@pytest.mark.parametrize(
    ("asked_for", "given"),
    [([], 5), *(([f"--parallelism={number}"], number) for number in (1, 2, 5, 9))],
)
def test_failed_job_is_cancelled_after_taking_all_slots(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, asked_for: list[str], given: int
) -> None:
    from apache_beam.options.pipeline_options import FlinkRunnerOptions

    # It fails before Java is started.
    (tmp_path / "java").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    found: list[int] = []

    def build(pipeline: Any) -> None:
        import apache_beam as beam

        found.append(pipeline.options.view_as(FlinkRunnerOptions).parallelism)
        _ = pipeline | beam.Create([1])

    with flink(5, "another", "job") as (address, asked):
        args = ["--runner=FlinkRunner", f"--flink_master={address}", *asked_for]
        args.append("--environment_type=unknown")
        with pytest.raises(JobLostError, match="^FlinkRunner: "):
            cluster.submit(args, build, name="job", log=tmp_path / "log")
    assert found == [given]
    assert asked == [
        "GET /v1/overview",
        "GET /v1/jobs/overview",
        "PATCH /v1/jobs/id-of-job?mode=cancel",
    ]


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
def test_error_on_a_real_runner_keeps_its_class(
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
def test_missing_spark_master_is_named_at_once(masters: str, tmp_path: Path) -> None:
    """Spark itself looks for it for a minute, in each of three jobs."""
    url = f"spark://{masters}"
    said = refusal(tmp_path / "log", "--runner=SparkRunner", f"--spark_master_url={url}")
    assert says("spark-not-answer-check-cluster", url).match(said)
