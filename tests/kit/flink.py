"""A Flink cluster of processes on loopback: JobManager, TaskManagers and a pool of Beam workers.

The tests start it for themselves. For people, `make flink-up` leaves one running in
build/flink and `make flink-down` ends it.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.kit import command

# The Makefile puts Flink's jars and the job server's here.
JARS = Path.home() / ".cache/imagenet-prep/flink"
NUM_TASK_MANAGERS = 2
# Compiled once and not again, without the collector's threads: cheaper for a JVM that lives for a
# minute, slower for one that works for long.
SHORT_LIVED = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")

# What Flink's own start scripts add for Java 17.
_OPENS = [
    f"--add-opens=java.base/{package}=ALL-UNNAMED"
    for package in (
        "java.lang",
        "java.lang.invoke",
        "java.lang.reflect",
        "java.net",
        "java.io",
        "java.nio",
        "java.util",
        "java.util.concurrent",
        "java.util.concurrent.atomic",
        "sun.nio.ch",
        "sun.net.util",
    )
]
_LOG4J = """\
rootLogger.level = INFO
rootLogger.appenderRef.console.ref = console
appender.console.name = console
appender.console.type = Console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss,SSS} %p %c{1} %m%n
"""
_MEMORY = {
    "taskmanager.cpu.cores": "1.0",
    "taskmanager.memory.task.heap.size": "192m",
    "taskmanager.memory.framework.heap.size": "128m",
    "taskmanager.memory.task.off-heap.size": "64m",
    "taskmanager.memory.framework.off-heap.size": "64m",
    "taskmanager.memory.managed.size": "64m",
    "taskmanager.memory.network.min": "64m",
    "taskmanager.memory.network.max": "64m",
    # Of several shuffles at a time each would want 16 MB.
    "taskmanager.network.sort-shuffle.min-buffers": 64,
    "taskmanager.memory.jvm-metaspace.size": "256m",
    "taskmanager.memory.jvm-overhead.min": "64m",
    "taskmanager.memory.jvm-overhead.max": "64m",
}


class Cluster:
    """A running cluster; `cluster` makes and ends one.

    Attributes:
      url: of the JobManager.
      task_managers: their processes; one slot each.
    """

    def __init__(
        self,
        folder: Path,
        environment: dict[str, str] | None = None,
        jvm: Sequence[str] = (),
    ) -> None:
        """Writes the configuration; `start` starts.

        Args:
          folder: for settings and logs.
          environment: variables that workers see besides, e.g. credentials.
          jvm: flags of all Java programs, the job server's too, e.g. SHORT_LIVED.
        """
        self._folder = folder
        self._environment = environment or {}
        self._jvm = jvm
        self._rpc, self._rest, self._blob, self._pool = _free_ports(4)
        self.url = f"http://127.0.0.1:{self._rest}"
        self._numbers = itertools.count()
        self.task_managers: list[subprocess.Popen[bytes]] = []
        self._others: list[subprocess.Popen[bytes]] = []
        (folder / "tmp").mkdir(parents=True, exist_ok=True)
        settings: dict[str, Any] = {
            "jobmanager.rpc.address": "127.0.0.1",
            "jobmanager.rpc.port": self._rpc,
            "jobmanager.bind-host": "127.0.0.1",
            "taskmanager.bind-host": "127.0.0.1",
            "taskmanager.host": "127.0.0.1",
            "taskmanager.numberOfTaskSlots": 1,
            "rest.address": "127.0.0.1",
            "rest.bind-address": "127.0.0.1",
            "rest.port": self._rest,
            "blob.server.port": self._blob,
            "io.tmp.dirs": str(folder / "tmp"),
            "parallelism.default": NUM_TASK_MANAGERS,
            # A dead TaskManager is noticed by its broken connection; this is for a frozen one.
            "heartbeat.interval": 1000,
            "heartbeat.timeout": 10_000,
            "heartbeat.rpc-failure-threshold": 1,
            # A thread of Beam's that has no memory left would leave a job that waits for ever.
            "cluster.uncaught-exception-handling": "FAIL",
            # Beam keeps a job's workers from step to step only if Flink's own class loader has
            # loaded its runner, not the one that each job gets for the jar that it brings.
            "classloader.resolve-order": "parent-first",
        }
        (folder / "config.yaml").write_text(json.dumps(settings | _MEMORY))
        (folder / "log4j.properties").write_text(_LOG4J)

    def start(self) -> None:
        """Starts all processes and returns when every TaskManager has a slot to offer."""
        self._others.append(
            self._java("org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint")
        )
        environment = command.environment(**self._environment)
        argv = [sys.executable, "-P", "-m", "imagenet_prep.engine.pool", f"--port={self._pool}"]
        self._others.append(self._process("pool", argv, environment))
        for _ in range(NUM_TASK_MANAGERS):
            self._add_task_manager()
        command.wait_until(self._ready, f"Flink answers; see {self._folder}/*.log")

    def complete(self) -> None:
        """Starts a TaskManager for each that has died, and waits until Flink has noticed both."""
        dead = [each for each in self.task_managers if each.poll() is not None]
        for each in dead:
            self.task_managers.remove(each)
            self._add_task_manager()
        command.wait_until(self._ready, "Flink has all its slots")

    def _add_task_manager(self) -> None:
        heap = "320m"
        main = "org.apache.flink.runtime.taskexecutor.TaskManagerRunner"
        self.task_managers.append(self._java(main, heap))

    def options(self) -> list[str]:
        """Returns what goes after `--` on the command line."""
        return [
            "--runner=FlinkRunner",
            f"--flink_master={self.url}",
            f"--flink_job_server_jar={JARS / 'job-server.jar'}",
            "--environment_type=EXTERNAL",
            f"--environment_config=127.0.0.1:{self._pool}",
            # From one step to the next.
            "--environment_cache_millis=10000",
            *(f"--job_server_jvm_properties={flag}" for flag in self._jvm),
            # Beam asks pip for a list of all packages, for the logs of its containers.
            "--experiments=disable_logging_submission_environment",
        ]

    def jobs(self) -> dict[str, str]:
        """Returns the state of every job by its id: RUNNING, FINISHED, CANCELED …"""
        return {job["jid"]: job["state"] for job in self._get("/v1/jobs/overview")["jobs"]}

    @contextlib.contextmanager
    def stopped_workers(self) -> Iterator[None]:
        """Holds the worker processes of running jobs where they are."""
        pids = self.workers()
        _signal(pids, signal.SIGSTOP)
        try:
            yield
        finally:
            _signal(pids, signal.SIGCONT)

    def workers(self) -> list[int]:
        """Returns the worker processes of running jobs."""
        return children_of(self._others[1].pid)

    def slots(self) -> int:
        """Returns the slots of the TaskManagers that are there."""
        return int(self._get("/v1/overview")["slots-total"])

    def logs(self) -> str:
        """Returns the end of every log."""
        return "\n".join(
            f"{path.name}:\n{path.read_text(errors='replace')[-3000:]}"
            for path in sorted(self._folder.glob("*.log"))
        )

    def pids(self) -> list[int]:
        """Returns the processes that `start` started."""
        return [process.pid for process in [*self._others, *self.task_managers]]

    def stop(self) -> None:
        """Ends everything that was started, and what that started, by pid."""
        processes = [*self.task_managers, *self._others]
        for process in processes:
            _signal([*children_of(process.pid), process.pid], signal.SIGKILL)
        for process in processes:
            process.wait(command.PATIENCE_S)

    def _ready(self) -> bool:
        for process in [*self._others, *self.task_managers]:
            if process.poll() is not None:
                raise AssertionError(f"ended with {process.returncode}:\n{self.logs()}")
        try:
            with socket.create_connection(("127.0.0.1", self._pool), timeout=command.PATIENCE_S):
                if self.slots() == NUM_TASK_MANAGERS:
                    return True
        except OSError:
            pass
        time.sleep(0.1)  # it has work of its own
        return False

    def _get(self, path: str) -> Any:
        with urllib.request.urlopen(self.url + path, timeout=command.PATIENCE_S) as answer:
            return json.load(answer)

    def _java(self, main: str, heap: str = "448m") -> subprocess.Popen[bytes]:
        settings = f"-Dlog4j.configurationFile={self._folder / 'log4j.properties'}"
        argv = ["java", f"-Xmx{heap}", f"-Xms{heap}", *self._jvm, *_OPENS, settings]
        # Flink's own jars come first: Beam's has an older Flink in it.
        jars = f"{JARS}/lib/*:{JARS / 'job-server.jar'}"
        argv += ["-cp", jars, main, "--configDir", str(self._folder)]
        name = f"{main.rpartition('.')[2]}-{next(self._numbers)}"
        return self._process(name, argv, command.environment())

    def _process(
        self, name: str, argv: list[str], environment: dict[str, str]
    ) -> subprocess.Popen[bytes]:
        with open(self._folder / f"{name}.log", "wb") as log:
            return subprocess.Popen(
                argv,
                cwd=self._folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )


@contextlib.contextmanager
def cluster(
    folder: Path, environment: dict[str, str] | None = None, jvm: Sequence[str] = ()
) -> Iterator[Cluster]:
    """Yields a cluster that keeps its logs in `folder`; skips where Java or the jars lack.

    The arguments are those of `Cluster`.
    """
    if lack := lacking():
        pytest.skip(lack)
    made = Cluster(folder, environment, jvm)
    try:
        made.start()
        yield made
    finally:
        made.stop()


def lacking() -> str | None:
    """Returns why no cluster can be started here, or None."""
    if shutil.which("java") is None:
        return "no Java here: apt-get install openjdk-17-jre-headless"
    if not (JARS / "job-server.jar").exists():
        return f"no Flink in {JARS}: make flink"
    return None


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


def _signal(pids: list[int], signum: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signum)


def children_of(pid: int) -> list[int]:
    """Returns the children of all threads of a process."""
    found = []
    for thread in command.threads(pid):
        with contextlib.suppress(OSError):
            found += [int(child) for child in (thread / "children").read_text().split()]
    return found


def _up(folder: Path) -> int:
    """Starts a cluster that outlives this process."""
    if lack := lacking():
        print(lack, file=sys.stderr)
        return 1
    if (folder / "pids").exists():
        print(f"{folder}/pids: a cluster is running; make flink-down ends it", file=sys.stderr)
        return 1
    folder.mkdir(parents=True, exist_ok=True)
    made = Cluster(folder)
    try:
        made.start()
    except BaseException:
        made.stop()
        raise
    (folder / "pids").write_text("".join(f"{pid}\n" for pid in made.pids()))
    print(f"Flink is up, {NUM_TASK_MANAGERS} TaskManagers: {made.url}\n")
    print("imagenet-prep prepare --source DIR --out DIR -- \\\n  " + " \\\n  ".join(made.options()))
    return 0


def _down(folder: Path) -> int:
    """Ends it; a pid that has become another program's is left alone."""
    for line in (folder / "pids").read_text().split() if (folder / "pids").exists() else []:
        with contextlib.suppress(OSError):
            if str(folder).encode() in Path(f"/proc/{line}/environ").read_bytes() or _ours(line):
                for pid in [*children_of(int(line)), int(line)]:
                    os.kill(pid, signal.SIGTERM)
    (folder / "pids").unlink(missing_ok=True)
    return 0


def _ours(pid: str) -> bool:
    text = Path(f"/proc/{pid}/cmdline").read_bytes()
    return b"org.apache.flink" in text or b"imagenet_prep.engine.pool" in text


if __name__ == "__main__":
    verb, where = sys.argv[1], Path(sys.argv[2]).absolute()
    sys.exit(_up(where) if verb == "up" else _down(where))
