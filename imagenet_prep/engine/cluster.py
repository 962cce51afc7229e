"""Submits a Beam job to a cluster, and waits for its end or cancels it.

Beam itself would print a page of Java traceback per failure, and leave its job server and the Flink
job running.
"""

from __future__ import annotations

import contextlib
import logging
import re
import shutil
import signal
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent import futures
from pathlib import Path
from typing import Any, NamedTuple

from imagenet_prep.core import children, errors
from imagenet_prep.core.terminal import printable
from imagenet_prep.engine.workers import Started

_ANSWER_TIMEOUT_S = 20.0
_ENDING_S = 5.0
_OURS = re.compile(
    r"imagenet_prep\.core\.errors\.(\w+): (.*?)(?: \[while running|\n\n|\Z)", re.DOTALL
)
_BUG = re.compile(r"engine\.transform\.BugError: (.*?)(?: \[while running|\Z)", re.DOTALL)
# Java and Python tracebacks name the root cause last.
_CAUSE = re.compile(r"^(?:Caused by: )?([\w$.]*(?:Error|Exception)\b.*)$", re.MULTILINE)


class ClusterJob(Started):
    """A job that `submit` has started."""

    def __init__(self, runner: str, log: Path, cancel: Callable[[], None]) -> None:
        self._runner = runner
        self._log = log
        self._cancel = cancel
        self._ending = contextlib.ExitStack()
        self._result: futures.Future[Any] = futures.Future()

    def __exit__(self, kind: object, *_: object) -> None:
        # Beam's threads lose their connection to the job server. Hide their tracebacks.
        hook = threading.excepthook
        threading.excepthook = lambda _: None
        try:
            if kind is not None:
                self._cancel()
        finally:
            self._ending.close()
            futures.wait([self._result], _ENDING_S)
            threading.excepthook = hook

    def wait(self, seconds: float) -> bool:
        """Waits at most `seconds`; returns whether the job is still running."""
        if not futures.wait([self._result], seconds).done:
            return True
        error = self._result.exception()
        if error:
            raise self._explained(error)
        return False

    def _explained(self, error: BaseException) -> Exception:
        text = str(error)
        # A remote runner only sends the text of a worker's error; a local runner raises the error.
        named = f"{type(error).__module__}.{type(error).__name__}: {text}"
        if match := _BUG.search(named):
            return RuntimeError(match[1].strip())
        if match := _OURS.search(named):
            return errors.by_name(match[1])(match[2].strip())
        causes = _CAUSE.findall(text) or [text.strip().partition("\n")[0] or type(error).__name__]
        return errors.JobLostError(
            f"{self._runner}: {causes[-1][:300]}. The complete log is {self._log}"
        )


def _require_known(options: Any) -> None:
    """Raises UsageError for options that Beam would ignore; job servers check their own."""
    given = options.get_all_options(retain_unknown_options=True)
    unknown = [f"--{name}" for name in given.keys() - options.get_all_options().keys()]
    if unknown:
        raise errors.UsageError(
            f"Beam's DirectRunner has no option {', '.join(sorted(unknown))}. Correct the options "
            "after --"
        )


def submit(
    args: Sequence[str], build: Callable[[Any], object], *, name: str, log: Path
) -> ClusterJob:
    """Starts a job with a unique name. Call this in the main thread: Beam sets a SIGINT handler."""
    logged = _logged_to(log)
    import apache_beam as beam
    from apache_beam.options import pipeline_options
    from apache_beam.runners.portability.portable_runner import PortableRunner

    options = pipeline_options.PipelineOptions([*args, f"--job_name={name}"])
    runner = options.view_as(pipeline_options.StandardOptions).runner
    flink = _Flink.of(options, name)
    job = ClusterJob(runner, log, flink.cancel if flink else lambda: None)
    with logged as ending:
        if flink:
            flink.prepare(options)
        # For DirectRunner, Beam itself would choose a runner that it has to download first.
        local = "apache_beam.runners.portability.fn_api_runner.FnApiRunner"
        try:
            pipeline = beam.Pipeline(local if runner == "DirectRunner" else None, options)
        except (ValueError, ImportError, AttributeError) as error:
            # The runner is unknown or not installed, or one of its options is missing.
            raise errors.UsageError(
                f"Beam refuses the options after --: {printable(str(error))[:500]}"
            ) from error
        if runner == "DirectRunner":
            _require_known(options)
        if isinstance(pipeline.runner, PortableRunner):
            _job_server(pipeline.runner, options, ending)
        build(pipeline)
        ours = signal.getsignal(signal.SIGINT)
        try:
            result = pipeline.run()
        except BaseException as error:
            job._cancel()
            if isinstance(error, Exception):
                raise job._explained(error) from error
            raise
        finally:
            # Beam's handler would stop the job server before the job is cancelled.
            signal.signal(signal.SIGINT, ours)
        if not flink:
            job._cancel = result.cancel
        job._ending = ending.pop_all()
        job._result = futures.ThreadPoolExecutor(1, "job").submit(result.wait_until_finish)
    return job


def _logged_to(log: Path) -> contextlib.ExitStack:
    """Writes all log records to a file until the returned stack is closed."""
    root = logging.getLogger()
    handler = logging.FileHandler(log, delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(message)s"))
    ending = contextlib.ExitStack()
    ending.callback(handler.close)
    ending.callback(root.setLevel, root.level)
    ending.callback(root.removeHandler, handler)
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    return ending


def _job_server(runner: Any, options: Any, ending: contextlib.ExitStack) -> None:
    """Sets up Beam's job server. Fails at once if a server is down; Beam would wait for minutes."""
    from apache_beam.options import pipeline_options

    endpoint = options.view_as(pipeline_options.PortableOptions).job_endpoint
    if endpoint:
        _require_answer(endpoint)
        return
    kind = type(runner).__name__
    if kind == "PortableRunner":
        raise errors.UsageError(
            "--runner=PortableRunner needs --job_endpoint=HOST:PORT, the address of a job server."
        )
    make = runner.default_job_server
    if kind == "PrismRunner":
        runner.default_job_server = lambda options: _explaining(make(options), kind)
        return
    master = options.view_as(pipeline_options.SparkRunnerOptions).spark_master_url
    if master.startswith("spark://"):
        _require_spark(master)
    launcher = options.view_as(pipeline_options.JobServerOptions).job_server_java_launcher
    if shutil.which(launcher) is None:
        raise errors.ImagenetPrepError(
            f"no {launcher!r} on this machine, but Beam's job server needs Java. Install it "
            "(Debian: openjdk-17-jre-headless), or use a running job server: "
            "--runner=PortableRunner --job_endpoint=HOST:PORT."
        )

    def default_job_server(options: Any) -> Any:
        java = options.view_as(pipeline_options.JobServerOptions)
        # The kernel ends the server with this process. Beam's `atexit` does not run after a kill.
        first, *rest = children.bound([launcher, *java.job_server_jvm_properties])
        java.job_server_java_launcher, java.job_server_jvm_properties = first, rest
        server = make(options)
        ending.callback(server.stop)
        return _explaining(server, kind)

    runner.default_job_server = default_job_server


def _explaining(server: Any, kind: str) -> Any:
    """Makes a job server explain why it cannot start; otherwise, its workers would seem lost."""
    start = server.start

    def explained() -> Any:
        try:
            return start()
        except Exception as error:
            cause = printable(str(error))[:300] or type(error).__name__
            raise errors.ImagenetPrepError(
                f"{kind}: the job server cannot be started: {cause}. Beam downloads its program "
                "from the internet. Without it, give the address of a running job server: "
                "--job_endpoint=HOST:PORT."
            ) from error

    server.start = explained
    return server


def _require_answer(endpoint: str) -> None:
    import grpc
    from apache_beam.portability.api import beam_job_api_pb2, beam_job_api_pb2_grpc

    try:
        with grpc.insecure_channel(endpoint) as channel:
            beam_job_api_pb2_grpc.JobServiceStub(channel).DescribePipelineOptions(
                beam_job_api_pb2.DescribePipelineOptionsRequest(), timeout=_ANSWER_TIMEOUT_S
            )
    except grpc.RpcError as error:
        raise errors.ImagenetPrepError(
            f"the job server does not answer at {endpoint} ({error.code().name}: "
            f"{error.details()}). Check that Beam's job server is running and that --job_endpoint "
            "is its HOST:PORT, e.g. localhost:8099."
        ) from error


def _require_spark(url: str) -> None:
    refused = []
    for address in url.removeprefix("spark://").split(","):
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), port), _ANSWER_TIMEOUT_S).close()
        except OSError as error:
            refused.append(f"{address}: {error}")
        else:
            return
    raise errors.ImagenetPrepError(
        f"Spark does not answer at {url} ({', '.join(refused)}). Check that the cluster is running "
        "and that --spark_master_url is its master's address, e.g. spark://master:7077."
    )


class _Flink(NamedTuple):
    """Checks that a Flink cluster answers, and cancels the job there; Beam does neither."""

    url: str
    name: str

    @classmethod
    def of(cls, options: Any, name: str) -> _Flink | None:
        from apache_beam.options import pipeline_options

        master = options.view_as(pipeline_options.FlinkRunnerOptions).flink_master
        if master.startswith("["):
            return None
        return cls(master if "://" in master else f"http://{master}", name)

    def prepare(self, options: Any) -> None:
        """Checks that the cluster is up; requests all its slots if no parallelism is given."""
        from apache_beam.options import pipeline_options

        try:
            overview = self._ask("GET", "/v1/overview")
        except OSError as error:
            raise errors.ImagenetPrepError(
                f"Flink does not answer at {self.url} ({type(error).__name__}). Check that the "
                "cluster is running and that --flink_master is the REST address of its JobManager, "
                "e.g. http://jobmanager:8081."
            ) from error
        slots = overview["slots-total"]
        if not slots:
            raise errors.ImagenetPrepError(
                f"Flink at {self.url} has no TaskManager. Start one, then run the same command "
                "again."
            )
        flink_options = options.view_as(pipeline_options.FlinkRunnerOptions)
        if flink_options.parallelism < 1:
            flink_options.parallelism = slots

    def cancel(self) -> None:
        """Cancels the job if it still runs. Beam's own `cancel` leaves it running on Flink."""
        with contextlib.suppress(OSError, KeyError):
            for job in self._ask("GET", "/v1/jobs/overview")["jobs"]:
                if job["name"] == self.name:
                    self._ask("PATCH", f"/v1/jobs/{job['jid']}?mode=cancel")

    def _ask(self, method: str, path: str) -> Any:
        import requests

        answer = requests.request(method, self.url + path, timeout=_ANSWER_TIMEOUT_S)
        answer.raise_for_status()
        return answer.json()
