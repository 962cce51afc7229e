"""A Flink cluster on loopback: a JobManager and TaskManagers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.kit import runners
from tests.kit.ports import free_ports
from tests.kit.runners import JARS, NUM_MEMBERS, Cluster

# The settings of Flink's own start scripts for Java 17.
OPENS = runners.opens(
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
    # Each of several simultaneous shuffles would need 16 MB.
    "taskmanager.network.sort-shuffle.min-buffers": 64,
    "taskmanager.memory.jvm-metaspace.size": "256m",
    "taskmanager.memory.jvm-overhead.min": "64m",
    "taskmanager.memory.jvm-overhead.max": "64m",
}


class Flink(Cluster):
    """Its members are TaskManagers."""

    NAME = "Flink"
    CANCELLED = "CANCELED"

    def __init__(self, folder: Path, *args: Any, **how: Any) -> None:
        """Writes the configuration; arguments as for `Cluster`."""
        super().__init__(folder, *args, **how)
        settings: dict[str, Any] = {
            "jobmanager.rpc.address": "127.0.0.1",
            "jobmanager.rpc.port": self._port,
            "jobmanager.bind-host": "127.0.0.1",
            "taskmanager.bind-host": "127.0.0.1",
            "taskmanager.host": "127.0.0.1",
            "taskmanager.numberOfTaskSlots": 1,
            "rest.address": "127.0.0.1",
            "rest.bind-address": "127.0.0.1",
            "rest.port": self._page,
            "blob.server.port": free_ports(1)[0],
            "io.tmp.dirs": str(folder / "tmp"),
            "parallelism.default": NUM_MEMBERS,
            # A dead TaskManager is noticed by its broken connection; this is for a frozen one.
            "heartbeat.interval": 1000,
            "heartbeat.timeout": 10_000,
            "heartbeat.rpc-failure-threshold": 1,
            # If a thread of Beam's ran out of memory, its job would wait for ever.
            "cluster.uncaught-exception-handling": "FAIL",
            # Beam keeps a job's workers between steps only if Flink's own class loader has loaded
            # its runner, instead of the loader for the jar of each job.
            "classloader.resolve-order": "parent-first",
        }
        (folder / "config.yaml").write_text(json.dumps(settings | _MEMORY))
        (folder / "log4j.properties").write_text(_LOG4J)

    def jobs(self) -> dict[str, str]:
        """Returns the state of every job by its id: RUNNING, FINISHED, CANCELED …"""
        return {job["jid"]: job["state"] for job in self._get("/v1/jobs/overview")["jobs"]}

    def slots(self) -> int:
        """Returns the slots of the connected TaskManagers."""
        return int(self._get("/v1/overview")["slots-total"])

    def _leader(self) -> subprocess.Popen[bytes]:
        main = "org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint"
        return self._of_flink("448m", main)

    def _member(self) -> subprocess.Popen[bytes]:
        return self._of_flink("320m", "org.apache.flink.runtime.taskexecutor.TaskManagerRunner")

    def _job_server(self, *args: str) -> subprocess.Popen[bytes]:
        main = "org.apache.beam.runners.flink.FlinkJobServerDriver"
        address = self.url.removeprefix("http://")
        jar = str(self.job_server())
        return self._java("448m", jar, OPENS, main, "--flink-master", address, *args)

    def _options(self) -> list[str]:
        return [f"--flink_master={self.url}"]

    def _of_flink(self, heap: str, main: str) -> subprocess.Popen[bytes]:
        # Flink's own jars come first, because Beam's jar has an older Flink in it.
        jars = f"{JARS}/flink/*:{self.job_server()}"
        flags = [*OPENS, f"-Dlog4j.configurationFile={self._folder / 'log4j.properties'}"]
        return self._java(heap, jars, flags, main, "--configDir", str(self._folder))


if __name__ == "__main__":
    sys.exit(runners.main(Flink, *sys.argv[1:]))
