"""The metrics of a job: each finished task is counted once, in all jobs together."""

from __future__ import annotations

import importlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from imagenet_prep import engine
from imagenet_prep.engine import Lease
from imagenet_prep.storage.folder import LocalStore

pytestmark = pytest.mark.beam


class Task(NamedTuple):
    name: str


class Problem(NamedTuple):
    """An image that was changed or left out."""

    action: str
    reason: str


@dataclass(frozen=True)
class Made:
    """The content of a receipt."""

    examples: int
    source_bytes: int
    num_bytes: int
    resized: int
    incidents: tuple[Problem, ...]


MADE = {
    "a": Made(3, 300, 200, 2, (Problem("repaired", "CMYK JPEG"), Problem("repaired", "PNG"))),
    "b": Made(5, 500, 400, 0, (Problem("quarantined", "PNG"),)),
    "c": Made(1, 100, 100, 1, (Problem("repaired", "PNG"),)),
}
NAMES = {"images": "examples", "bytes_in": "source_bytes", "bytes_out": "num_bytes"}


def work(task: Task) -> engine.Result[Made]:
    return engine.Result(MADE[task.name])


@pytest.fixture
def transform() -> ModuleType:
    return importlib.import_module("imagenet_prep.engine.transform")


def counted(transform: ModuleType, store: LocalStore, names: str) -> tuple[dict[str, int], int]:
    """Runs a job on these tasks; returns its counters and its number of measured tasks."""
    import apache_beam as beam

    stage = engine.Stage("write", "0" * 64, store, work, Made)
    pipeline: Any = beam.Pipeline("apache_beam.runners.portability.fn_api_runner.FnApiRunner")
    tasks = pipeline | beam.Create([*map(Task, names)]).with_output_types(Any)
    _ = tasks | transform.Receipts(stage, Lease.acquire(store))
    result = pipeline.run()
    result.wait_until_finish()
    found = result.metrics().query()
    own = {
        kind: [each for each in found[kind] if each.key.metric.namespace == transform.METRICS]
        for kind in ("counters", "distributions")
    }
    measured = {each.key.metric.name: each.result.count for each in own["distributions"]}
    assert measured.keys() <= {"write_ms"}
    counters = {each.key.metric.name: each.result for each in own["counters"]}
    return counters, measured.get("write_ms", 0)


def expected(names: str) -> Counter[str]:
    total = Counter[str]()
    for made in map(MADE.__getitem__, names):
        total.update({name: getattr(made, field) for name, field in NAMES.items()})
        total["resized"] += made.resized
        total.update(f"{action}_{reason}".replace(" ", "_") for action, reason in made.incidents)
    return total


def test_tasks_of_earlier_jobs_are_not_counted(transform: ModuleType, tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "set")
    jobs = [counted(transform, store, names) for names in ("a", "abc", "abc")]

    assert [measured for _, measured in jobs] == [1, 2, 0]
    assert [+Counter(counters) for counters, _ in jobs] == [
        expected("a"),
        expected("bc"),
        Counter(),
    ]
