"""A Spark cluster on loopback: a standalone master and workers, which start executors."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.kit import runners
from tests.kit.runners import Cluster

# The settings of Spark's own start scripts for Java 17 that its master and workers need.
_OPENS = runners.opens("java.lang", "java.lang.invoke", "java.nio", "java.util", "sun.nio.ch")
_EXECUTOR_MEMORY = "480m"


class Spark(Cluster):
    """Its members are Spark's workers; each of them has one executor for each job."""

    NAME = "Spark"
    # The master only knows that the driver has ended.
    CANCELLED = "FINISHED"

    def __init__(self, folder: Path, *args: Any, **how: Any) -> None:
        """Makes a folder like that of Spark's own distribution; arguments as for `Cluster`."""
        super().__init__(folder, *args, **how)
        # The job server's jar contains Spark; workers start executors with the files in `jars`.
        (folder / "jars").mkdir(exist_ok=True)
        (folder / "jars/job-server.jar").unlink(missing_ok=True)
        (folder / "jars/job-server.jar").symlink_to(self.job_server())
        (folder / "nothing.jar").touch()

    def jobs(self) -> dict[str, str]:
        """Returns the state of every job by its id: RUNNING, FINISHED, KILLED …"""
        state = self._get("/json/")
        return {each["id"]: each["state"] for each in state["activeapps"] + state["completedapps"]}

    def slots(self) -> int:
        """Returns the cores of the connected workers."""
        return int(self._get("/json/")["cores"])

    def _leader(self) -> subprocess.Popen[bytes]:
        ports = ("--port", str(self._port), "--webui-port", str(self._page))
        return self._of_spark("master.Master", *ports)

    def _member(self) -> subprocess.Popen[bytes]:
        size = ("--cores", "1", "--memory", _EXECUTOR_MEMORY)
        where = ("--work-dir", str(self._folder / "tmp"), "--webui-port", "0")
        return self._of_spark("worker.Worker", *size, *where, self._master)

    def _job_server(self, *args: str) -> subprocess.Popen[bytes]:
        main = "org.apache.beam.runners.spark.SparkJobServerDriver"
        flags = [*_OPENS, *self._properties()]
        jar = str(self.job_server())
        return self._java("640m", jar, flags, main, "--spark-master-url", self._master, *args)

    def _options(self) -> list[str]:
        return [
            f"--spark_master_url={self._master}",
            # The executors have the job server's jar, so it need not be sent to them.
            f"--files_to_stage={self._folder / 'nothing.jar'}",
            *(f"--job_server_jvm_properties={each}" for each in self._properties()),
        ]

    def _properties(self) -> list[str]:
        """Returns the settings of the driver, which is the job server."""
        return [
            f"-Dspark.executor.memory={_EXECUTOR_MEMORY}",
            "-Dspark.driver.host=127.0.0.1",
            f"-Dspark.local.dir={self._folder / 'tmp'}",
            # Its page of a job ends with the job.
            "-Dspark.ui.enabled=false",
        ]

    @property
    def _master(self) -> str:
        return f"spark://127.0.0.1:{self._port}"

    def _of_spark(self, name: str, *args: str) -> subprocess.Popen[bytes]:
        settings = {
            "SPARK_HOME": str(self._folder),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_SCALA_VERSION": "2.12",
        }
        main = f"org.apache.spark.deploy.{name}"
        jar = str(self.job_server())
        return self._java("192m", jar, _OPENS, main, "--host", "127.0.0.1", *args, **settings)


if __name__ == "__main__":
    sys.exit(runners.main(Spark, *sys.argv[1:]))
