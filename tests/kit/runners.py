"""A cluster of processes on loopback, of Flink or Spark, with a pool of Beam workers next to it.

Tests start a cluster of their own. For developers, `make flink-up` leaves one running in
build/flink and `make flink-down` ends it; `make spark-up` and `make spark-down` likewise.
"""

from __future__ import annotations

import abc
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
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Self

import pytest

from tests.kit import command
from tests.kit.ports import free_ports

# The Makefile puts the jars of Flink, and Beam's job servers, here.
JARS = Path.home() / ".cache/imagenet-prep/jars"
NUM_MEMBERS = 2


class Cluster(abc.ABC):
    """A running cluster; `running` makes and ends one.

    Attributes:
      NAME: of the runner.
      CANCELLED: the state of a job that was cancelled.
      url: address of its status.
      members: the processes that offer slots, one each.
    """

    NAME: ClassVar[str]
    CANCELLED: ClassVar[str]

    def __init__(
        self,
        folder: Path,
        environment: dict[str, str] | None = None,
        *,
        short_lived: bool = False,
    ) -> None:
        """Prepares its settings; `start` starts it.

        Args:
          folder: for settings and logs.
          environment: additional variables of workers, e.g. credentials.
          short_lived: compile only once: cheaper for a JVM that runs for a minute, slower for one
            that works for long.
        """
        self._folder = folder
        self._environment = environment or {}
        self._short_lived = short_lived
        self._port, page, self._pool = free_ports(3)
        self.url = f"http://127.0.0.1:{page}"
        self._page = page
        self._numbers = itertools.count()
        self.members: list[subprocess.Popen[bytes]] = []
        self._others: list[subprocess.Popen[bytes]] = []
        (folder / "tmp").mkdir(parents=True, exist_ok=True)

    @abc.abstractmethod
    def jobs(self) -> dict[str, str]:
        """Returns the state of every job by its id: RUNNING, FINISHED …"""

    @abc.abstractmethod
    def slots(self) -> int:
        """Returns the number of slots of the connected members."""

    @abc.abstractmethod
    def _leader(self) -> subprocess.Popen[bytes]:
        """Starts the process that members report to."""

    @abc.abstractmethod
    def _member(self) -> subprocess.Popen[bytes]:
        """Starts a process with a slot."""

    @abc.abstractmethod
    def _options(self) -> list[str]:
        """Returns the options that name the cluster."""

    @abc.abstractmethod
    def _job_server(self, *args: str) -> subprocess.Popen[bytes]:
        """Starts Beam's job server for this cluster."""

    @classmethod
    def job_server(cls) -> Path:
        """Returns the jar of Beam's job server."""
        return JARS / f"{cls.NAME.lower()}-job-server.jar"

    @classmethod
    def lacking(cls) -> str | None:
        """Returns why no cluster can be started here, or None."""
        if shutil.which("java") is None:
            return "no Java here: apt-get install openjdk-17-jre-headless"
        if not cls.job_server().exists():
            return f"no {cls.NAME} in {JARS}: make jars"
        return None

    @classmethod
    @contextlib.contextmanager
    def running(cls, *args: Any, **how: Any) -> Iterator[Self]:
        """Yields a cluster; skips if Java or the jars are missing. Arguments as for the class."""
        if lack := cls.lacking():
            pytest.skip(lack)
        made = cls(*args, **how)
        try:
            made.start()
            yield made
        finally:
            made.stop()

    def start(self) -> None:
        """Starts all processes and returns when every member offers a slot."""
        self._others.append(self._leader())
        environment = command.environment(**self._environment)
        argv = [sys.executable, "-P", "-m", "imagenet_prep.engine.pool", f"--port={self._pool}"]
        self._others.append(self._process("pool", argv, environment))
        self.members += [self._member() for _ in range(NUM_MEMBERS)]
        command.wait_until(self._ready, f"{self.NAME} answers; see {self._folder}/*.log")

    def complete(self) -> None:
        """Starts members if some have died, and waits until all slots are available."""
        alive = [each for each in self.members if each.poll() is None]
        self.members = alive + [self._member() for _ in range(NUM_MEMBERS - len(alive))]
        command.wait_until(self._ready, f"{self.NAME} has all its slots")

    def kill_member(self) -> None:
        """Kills a member and its descendants, as if a host were lost."""
        pid = self.members[0].pid
        _signal([*children_of(pid), pid], signal.SIGKILL)

    def options(self) -> list[str]:
        """Returns the arguments after `--` on the command line."""
        jar = f"--{self.NAME.lower()}_job_server_jar={self.job_server()}"
        return [*self._options(), jar, *self._of_any_run()]

    @contextlib.contextmanager
    def served(self) -> Iterator[list[str]]:
        """Yields options that name a job server which keeps running until the block ends."""
        (port,) = free_ports(1)
        ports = ("--job-port", str(port), "--artifact-port", "0", "--expansion-port", "0")
        artifacts = ("--artifacts-dir", str(self._folder / "tmp"))
        server = self._job_server(*ports, *artifacts)

        def ready() -> bool:
            assert server.poll() is None, self.logs()
            return _listens(port)

        try:
            command.wait_until(ready, "the job server listens")
            yield [f"--job_endpoint=127.0.0.1:{port}", *self._of_any_run()]
        finally:
            _signal([server.pid], signal.SIGKILL)
            server.wait(command.PATIENCE_S)

    def _of_any_run(self) -> list[str]:
        return options_of_any_run(self.NAME, self._pool)

    @contextlib.contextmanager
    def stopped_workers(self) -> Iterator[None]:
        """Stops the worker processes of running jobs."""
        pids = self.workers()
        _signal(pids, signal.SIGSTOP)
        try:
            yield
        finally:
            _signal(pids, signal.SIGCONT)

    def workers(self) -> list[int]:
        """Returns the worker processes of running jobs."""
        return children_of(self._others[1].pid)

    def logs(self) -> str:
        """Returns the end of every log."""
        return "\n".join(
            f"{path.name}:\n{path.read_text(errors='replace')[-3000:]}"
            for path in sorted(self._folder.glob("*.log"))
        )

    def pids(self) -> list[int]:
        """Returns the processes that `start` started."""
        return [process.pid for process in [*self._others, *self.members]]

    def stop(self) -> None:
        """Ends all started processes and their descendants, by pid."""
        processes = [*self.members, *self._others]
        for process in processes:
            _signal([*children_of(process.pid), process.pid], signal.SIGKILL)
        for process in processes:
            process.wait(command.PATIENCE_S)
        shutil.rmtree(self._folder / "tmp", ignore_errors=True)

    def _ready(self) -> bool:
        for process in [*self._others, *self.members]:
            if process.poll() is not None:
                raise AssertionError(f"ended with {process.returncode}:\n{self.logs()}")
        with contextlib.suppress(OSError):
            if _listens(self._pool) and self.slots() == NUM_MEMBERS:
                return True
        time.sleep(0.1)  # it has jobs
        return False

    def _get(self, path: str) -> Any:
        with urllib.request.urlopen(self.url + path, timeout=command.PATIENCE_S) as answer:
            return json.load(answer)

    def _java(
        self, heap: str, jars: str, flags: list[str], main: str, *args: str, **more: str
    ) -> subprocess.Popen[bytes]:
        """Starts a class; `more` are variables of its environment."""
        environment = command.environment(**more)
        if not self._short_lived:
            del environment["JDK_JAVA_OPTIONS"]
        name = f"{main.rpartition('.')[2]}-{next(self._numbers)}"
        argv = ["java", f"-Xmx{heap}", f"-Xms{heap}", *flags, "-cp", jars, main, *args]
        return self._process(name, argv, environment)

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


def _listens(port: int) -> bool:
    """Returns whether a process accepts connections at a port of this machine."""
    with (
        contextlib.suppress(OSError),
        socket.create_connection(("127.0.0.1", port), timeout=command.PATIENCE_S),
    ):
        return True
    return False


def options_of_any_run(name: str, pool: int) -> list[str]:
    """Returns the options of a runner with workers of the pool at a port."""
    return [
        f"--runner={name}Runner",
        "--environment_type=EXTERNAL",
        f"--environment_config=127.0.0.1:{pool}",
        # Between two steps.
        "--environment_cache_millis=10000",
        # Beam runs pip for a list of all packages, for the logs of its containers.
        "--experiments=disable_logging_submission_environment",
    ]


def opens(*packages: str) -> list[str]:
    """Returns the flags that give access to Java 17's own packages."""
    return [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in packages]


def children_of(pid: int) -> list[int]:
    """Returns the children of all threads of a process."""
    found = []
    for thread in command.threads(pid):
        with contextlib.suppress(OSError):
            found += [int(child) for child in (thread / "children").read_text().split()]
    return found


def _signal(pids: list[int], signum: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signum)


def main(kind: type[Cluster], verb: str, folder: str) -> int:
    """Starts a cluster that outlives this process (`up`), or ends it; returns the exit code."""
    where = Path(folder).absolute()
    return _up(kind, where) if verb == "up" else _down(where)


def _up(kind: type[Cluster], folder: Path) -> int:
    if lack := kind.lacking():
        print(lack, file=sys.stderr)
        return 1
    name = kind.NAME
    if (folder / "pids").exists():
        end = f"make {name.lower()}-down ends it"
        print(f"{folder}/pids: a cluster is running; {end}", file=sys.stderr)
        return 1
    folder.mkdir(parents=True, exist_ok=True)
    made = kind(folder)
    try:
        made.start()
    except BaseException:
        made.stop()
        raise
    (folder / "pids").write_text("".join(f"{pid}\n" for pid in made.pids()))
    print(f"{name} is up, {NUM_MEMBERS} slots: {made.url}\n")
    print("imagenet-prep prepare --source DIR --out DIR -- \\\n  " + " \\\n  ".join(made.options()))
    return 0


def _down(folder: Path) -> int:
    """Ends the cluster, except pids that belong to a different program by now."""
    for line in (folder / "pids").read_text().split() if (folder / "pids").exists() else []:
        with contextlib.suppress(OSError):
            if os.path.samefile(f"/proc/{line}/cwd", folder):
                for pid in [*children_of(int(line)), int(line)]:
                    os.kill(pid, signal.SIGTERM)
    (folder / "pids").unlink(missing_ok=True)
    shutil.rmtree(folder / "tmp", ignore_errors=True)
    return 0
