"""Runs inside Airflow's environment, which lacks pytest: `driver.py VERB DAG_FILE ...`."""

from __future__ import annotations

import json
import runpy
import signal
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any


def load(dag_file: str) -> Any:
    """Returns the DAG, whose failed tasks are retried without a pause."""
    from airflow.dag_processing.dagbag import DagBag

    bag = DagBag(dag_file)
    assert not bag.import_errors, bag.import_errors
    dag = bag.dags["imagenet_prep"]
    for task in dag.tasks:
        task.retry_delay = timedelta(0)
        task.retry_exponential_backoff = 0
    return dag


def run(dag_file: str, conf: str, result: str) -> None:
    """Runs the DAG once and writes the result."""
    ended = load(dag_file).test(run_conf=json.loads(conf))
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session

    with create_session() as session:
        found = session.query(XComModel).filter(XComModel.run_id == ended.run_id).all()
        xcoms = {f"{x.task_id}.{x.key}": XComModel.deserialize_value(x) for x in found}
    tasks = {ti.task_id: [str(ti.state), ti.try_number] for ti in ended.get_task_instances()}
    told = {"state": str(ended.state), "tasks": tasks, "xcoms": xcoms}
    Path(result).write_text(json.dumps(told))


def tasks(dag_file: str, result: str, *confs: str) -> None:
    """Calls the functions of the tasks one after the other with each conf, without Airflow's run.

    Writes the results of each conf's tasks by name; the last one may be an error, as its text.
    """
    from airflow.sdk.exceptions import AirflowException, AirflowSkipException

    params = {name: param.value for name, param in runpy.run_path(dag_file)["PARAMS"].items()}
    told = []
    for conf in confs:
        returned: dict[str, Any] = {}
        told.append(returned)
        for task in load(dag_file).tasks:
            try:
                returned[task.task_id] = task.python_callable(params | json.loads(conf))
            except AirflowSkipException:
                continue
            except AirflowException as error:
                returned[task.task_id] = f"{type(error).__name__}: {error}"
                break
    Path(result).write_text(json.dumps(told))


def describe(dag_file: str, result: str) -> None:
    """Writes the modules that parsing the file loads, and the visible facts of the DAG."""
    # Modules that Airflow loaded are not loaded by the file.
    before = set(sys.modules)
    names = runpy.run_path(dag_file)
    dag = load(dag_file)
    told = {
        "before": sorted(before),
        "modules": sorted(set(sys.modules) - before),
        "params": {
            name: [param.value, param.description, param.schema]
            for name, param in names["PARAMS"].items()
        },
        "tasks": {
            task.task_id: {
                "after": sorted(task.upstream_task_ids),
                "pool": task.pool,
                "timeout_s": task.execution_timeout.total_seconds(),
                "doc": task.python_callable.__doc__,
            }
            for task in dag.tasks
        },
    }
    Path(result).write_text(json.dumps(told))


def draw(dag_file: str, picture: str) -> None:
    """Draws the tasks and their dependencies."""
    from airflow.utils.dot_renderer import render_dag

    graph = render_dag(load(dag_file))
    for attributes in (graph.graph_attr, graph.node_attr):
        attributes["fontname"] = "Helvetica,Arial,sans-serif"
    Path(picture).write_bytes(graph.pipe("svg"))


def trigger(dag_file: str, *confs: str) -> None:
    """Triggers a run with each conf; prints how each is refused, and the number of runs."""
    from airflow.models.dagrun import DagRun
    from airflow.sdk.exceptions import ParamValidationError
    from airflow.utils.session import create_session

    dag = load(dag_file)
    for conf in confs:
        try:
            dag.test(run_conf=json.loads(conf))
        except ParamValidationError as error:
            print("refused:", str(error).partition(":")[0])
    with create_session() as session:
        print("runs:", session.query(DagRun).count())


def command(dag_file: str, *words: str) -> None:
    """Runs one of our commands, which SIGALRM ends like Airflow's timeouts."""
    from airflow.sdk.exceptions import AirflowTaskTimeout

    def end(*_: object) -> None:
        raise AirflowTaskTimeout("timed out")

    signal.signal(signal.SIGALRM, end)
    runpy.run_path(dag_file)["run"]("prepare", *words)


def main() -> None:
    """Runs the function of the first argument."""
    known = {"run": run, "tasks": tasks, "describe": describe, "draw": draw}
    known |= {"trigger": trigger, "command": command}
    what, *arguments = sys.argv[1:]
    known[what](*arguments)


if __name__ == "__main__":
    main()
