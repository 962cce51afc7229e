"""Airflow as a user installs it: its own environment, a home and a database for each test."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.kit import command

DAG_FILE = command.REPOSITORY / "pipelines" / "airflow_dag.py"
DRIVER = str(Path(__file__).with_name("driver.py"))

_SETTINGS = {
    "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    "AIRFLOW__CORE__UNIT_TEST_MODE": "False",
    # Ours is never to be found there, whatever the folder.
    "PYTHONPATH": "",
    "PYTHONSAFEPATH": "1",
}


class Ended(NamedTuple):
    """One run of the DAG: its state, (state, tries) a task, XComs by task.key, and the log."""

    state: str
    tasks: dict[str, tuple[str, int]]
    xcoms: dict[str, Any]
    log: str


class Airflow:
    """An AIRFLOW_HOME with our DAG in it."""

    def __init__(self, python: Path, home: Path, program: Path) -> None:
        self.python, self.home = python, home
        self.dag_file = home / "dags" / DAG_FILE.name
        self.program = program
        self.env: dict[str, str] = {}

    def use(self, *argv: str | Path) -> None:
        """Lets IMAGENET_PREP_COMMAND be `argv`, with the task's arguments after it."""
        words = shlex.join(map(str, argv))
        self.program.write_text(f'#!/bin/sh\nexec env PYTHONDONTWRITEBYTECODE=1 {words} "$@"\n')
        self.program.chmod(0o755)

    @contextlib.contextmanager
    def started(self, program: Sequence[str], *arguments: str | Path) -> Iterator[command.Running]:
        env = _SETTINGS | {
            "AIRFLOW_HOME": str(self.home),
            "IMAGENET_PREP_COMMAND": str(self.program),
        }
        env |= self.env
        with command.started(*arguments, program=program, python=self.python, env=env) as running:
            yield running

    def call(self, program: Sequence[str], *arguments: str | Path) -> command.Finished:
        with self.started(program, *arguments) as running:
            return running.finish(command.PATIENCE_S)

    @contextlib.contextmanager
    def running(self, **conf: Any) -> Iterator[command.Running]:
        """Starts a run of the DAG with `conf` by dag.test()."""
        self._result.unlink(missing_ok=True)
        arguments = ("run", self.dag_file, json.dumps(conf), self._result)
        with self.started((DRIVER,), *arguments) as running:
            yield running

    def finish(self, running: command.Running) -> Ended:
        finished = running.finish(command.PATIENCE_S)
        log = finished.out + finished.err
        assert finished.code == 0, log
        told = json.loads(self._result.read_text())
        tasks = {name: (state, tries) for name, (state, tries) in told["tasks"].items()}
        return Ended(told["state"], tasks, told["xcoms"], log)

    def test(self, **conf: Any) -> Ended:
        """Runs the DAG with `conf` to its end."""
        with self.running(**conf) as running:
            return self.finish(running)

    @property
    def _result(self) -> Path:
        return self.home / "result.json"


@pytest.fixture(scope="session")
def airflow_python() -> Path:
    """The interpreter of Airflow's environment, beside ours."""
    folder = Path(sys.prefix) / "airflow" / "bin"
    if not (folder / "airflow").exists():
        pytest.skip("Airflow is not installed; make test installs it into .venv/airflow")
    return folder / "python"


@pytest.fixture(scope="session")
def database(airflow_python: Path, shared_cache: Path) -> Path:
    """Airflow's database, empty; made once a run, whoever comes first."""
    final = shared_cache / "airflow.db"
    if not final.exists():
        with tempfile.TemporaryDirectory(dir=shared_cache) as home:
            made = subprocess.run(
                [airflow_python, "-m", "airflow", "db", "migrate"],
                env=command.environment(**_SETTINGS, AIRFLOW_HOME=home),
                capture_output=True,
                text=True,
                timeout=command.PATIENCE_S,
            )
            assert made.returncode == 0, made.stdout + made.stderr
            os.replace(Path(home) / "airflow.db", final)
    return final


@pytest.fixture
def airflow(airflow_python: Path, database: Path, tmp_path: Path) -> Airflow:
    """An Airflow of the test's own, which runs the checkout's `imagenet-prep`."""
    home = tmp_path / "airflow"
    (home / "dags").mkdir(parents=True)
    shutil.copy(database, home / "airflow.db")
    shutil.copy(DAG_FILE, home / "dags")
    made = Airflow(airflow_python, home, tmp_path / "imagenet-prep")
    path = f"PYTHONPATH={command.REPOSITORY}"
    made.use(path, sys.executable, *command.PROGRAM)
    return made
