"""Airflow as a user installs it, in its own environment; each test has an empty database."""

from __future__ import annotations

import contextlib
import itertools
import json
import shlex
import shutil
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.kit import command
from tests.kit.warm import Warm

DAG_FILE = command.REPOSITORY / "pipelines" / "airflow_dag.py"
DRIVER = str(Path(__file__).with_name("driver.py"))

_SETTINGS = {
    "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    "AIRFLOW__CORE__UNIT_TEST_MODE": "False",
    "PYTHONSAFEPATH": "1",
}
# Our package must not be found there, in any folder.
_ALONE = {"PYTHONPATH": ""}


class Ended(NamedTuple):
    """One run of the DAG: its state, (state, tries) per task, XComs by task.key, and the log."""

    state: str
    tasks: dict[str, tuple[str, int]]
    xcoms: dict[str, Any]
    log: str


class Airflow:
    """An AIRFLOW_HOME with our DAG in it.

    An import of Airflow with its server takes ten seconds, a run takes one: `call` forks from a
    process that has imported it. `started` starts a new process.
    """

    def __init__(self, python: Path, home: Path, program: Path, warm: Warm) -> None:
        self.python, self.home, self.program = python, home, program
        self.dag_file = home / "dags" / DAG_FILE.name
        self.env: dict[str, str] = {}
        self._warm = warm

    def use(self, *argv: str | Path) -> None:
        """Sets IMAGENET_PREP_COMMAND to `argv`, with the task's arguments after it."""
        words = shlex.join(map(str, argv))
        self.program.write_text(f'#!/bin/sh\nexec env PYTHONDONTWRITEBYTECODE=1 {words} "$@"\n')
        self.program.chmod(0o755)

    @contextlib.contextmanager
    def started(self, what: str, *arguments: str | Path) -> Iterator[command.Running]:
        """Starts driver.py with this verb."""
        env = _SETTINGS | _ALONE | {"AIRFLOW_HOME": str(self.home)} | self._seen
        how: dict[str, Any] = {"program": (DRIVER,), "python": self.python, "env": env}
        with command.started(what, self.dag_file, *arguments, **how) as running:
            yield running

    def call(self, what: str, *arguments: str | Path) -> command.Finished:
        """Runs this verb of driver.py."""
        return self._forked("tests.commands.airflow.driver:main", what, self.dag_file, *arguments)

    def start(self, what: str) -> Warm:
        """Starts this verb of driver.py; returns the forking process, which passes signals on."""
        call = "tests.commands.airflow.driver:main"
        self._warm.start(what, self.dag_file, call=call, env=_ALONE | self._seen)
        return self._warm

    def cli(self, *arguments: str) -> command.Finished:
        """Runs `airflow`."""
        return self._forked("airflow.__main__:main", *arguments)

    @contextlib.contextmanager
    def running(self, **conf: Any) -> Iterator[command.Running]:
        """Starts a run of the DAG with `conf` by dag.test()."""
        with self.started("run", json.dumps(conf), self._result) as running:
            yield running

    def finish(self, running: command.Running) -> Ended:
        """Waits for the end of a run that was started."""
        return self._ended(running.finish(command.PATIENCE_S))

    def test(self, **conf: Any) -> Ended:
        """Runs the DAG with `conf` to its end."""
        return self._ended(self.call("run", json.dumps(conf), self._result))

    def tasks(self, *confs: dict[str, Any]) -> list[dict[str, Any]]:
        """Calls the tasks' functions with each conf; returns their results, or the last error.

        The process does not run Airflow's scheduler. Only `test` shows the values that tasks
        exchange, and Airflow's reaction to errors.
        """
        finished = self.call("tasks", self._result, *map(json.dumps, confs))
        assert finished.code == 0, finished
        told: list[dict[str, Any]] = json.loads(self._result.read_text())
        return told

    def _ended(self, finished: command.Finished) -> Ended:
        log = finished.out + finished.err
        assert finished.code == 0, log
        told = json.loads(self._result.read_text())
        tasks = {name: (state, tries) for name, (state, tries) in told["tasks"].items()}
        return Ended(told["state"], tasks, told["xcoms"], log)

    def _forked(self, call: str, *arguments: str | Path) -> command.Finished:
        ended = self._warm.run(*arguments, call=call, env=_ALONE | self._seen)
        assert not ended.hung, ended
        assert self._warm.left(0.0) == []
        return command.Finished(ended.code, ended.out.decode(), ended.err.decode())

    @property
    def _seen(self) -> dict[str, str]:
        return {"IMAGENET_PREP_COMMAND": str(self.program), **self.env}

    @property
    def _result(self) -> Path:
        return self.home / "result.json"


@pytest.fixture(scope="session")
def airflow_python() -> Path:
    """The interpreter of Airflow's environment, next to ours."""
    folder = Path(sys.prefix) / "airflow" / "bin"
    if not (folder / "airflow").exists():
        pytest.skip("Airflow is not installed; make test installs it into .venv/airflow")
    return folder / "python"


@pytest.fixture(scope="session")
def airflow_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All tests of a process share one AIRFLOW_HOME, since Airflow reads it at import."""
    home = tmp_path_factory.mktemp("airflow")
    (home / "dags").mkdir()
    shutil.copy(DAG_FILE, home / "dags")
    return home


@pytest.fixture(scope="session")
def warm_airflow(airflow_python: Path, airflow_home: Path) -> Iterator[Warm]:
    """A process that has loaded Airflow, and the server that each run of a DAG makes."""
    env = _SETTINGS | {"AIRFLOW_HOME": str(airflow_home)}
    with Warm(("tests.commands.airflow.loaded",), airflow_python, env) as warm:
        yield warm


@pytest.fixture(scope="session")
def database(warm_airflow: Warm, airflow_home: Path) -> Path:
    """Airflow's database, empty."""
    made = warm_airflow.run("db", "migrate", call="airflow.__main__:main")
    assert made.code == 0, made
    # Recent writes may still be in a file next to the database.
    with contextlib.closing(sqlite3.connect(airflow_home / "airflow.db")) as opened:
        opened.execute("VACUUM INTO ?", (str(airflow_home / "empty.db"),))
    return airflow_home / "empty.db"


@pytest.fixture
def airflow(
    airflow_python: Path, airflow_home: Path, warm_airflow: Warm, database: Path, tmp_path: Path
) -> Airflow:
    """An Airflow with a database and logs for each test; it runs our `imagenet-prep`."""
    shutil.rmtree(airflow_home / "logs", ignore_errors=True)
    for left in itertools.chain(airflow_home.glob("airflow.db*"), airflow_home.glob("*.json")):
        left.unlink()
    shutil.copy(database, airflow_home / "airflow.db")
    made = Airflow(airflow_python, airflow_home, tmp_path / "imagenet-prep", warm_airflow)
    made.use(f"PYTHONPATH={command.REPOSITORY}", sys.executable, *command.PROGRAM)
    return made
