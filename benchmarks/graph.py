"""The graph of prepare on two TaskManagers of Flink: Deal at scale, and one slow worker.

python -m benchmarks.graph deal --images 1000000
python -m benchmarks.graph slow
"""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import measure
from imagenet_prep import engine
from imagenet_prep.dataset.member import Member
from imagenet_prep.engine import Lease, Stage, cluster
from imagenet_prep.preparation.job import Job
from imagenet_prep.preparation.selection import Selection
from imagenet_prep.sources.labels import ClassList
from imagenet_prep.sources.source import IndexTask, Part, Stored
from imagenet_prep.storage.folder import LocalStore
from tests.kit import flink

_CLASS_IMAGES = 650  # ImageNet-21K has so many on average
_SHARD_IMAGES = 1250
_TASK_S = 0.2


@dataclass(frozen=True)
class Generated(Stored):
    """A source of images that are nowhere: only their descriptors are dealt."""

    images: int = 0

    @property
    def reader(self) -> Any:
        """Nothing is read."""
        raise NotImplementedError

    def index_tasks(self, split: str) -> list[IndexTask]:
        """One task a class."""
        return [IndexTask(n, split, "all.tar", i) for i, n in enumerate(self.classes.wnids)]

    def index(self, task: IndexTask) -> list[Member]:
        """The images of a class."""
        wnid, index = task.name, task.class_index
        assert index is not None
        number = self.images // len(self.classes.wnids)
        keys = (f"{wnid}/{wnid}_{i:06d}.JPEG" for i in range(number))
        return [Member(key, "all.tar", i << 17, 110_000, index) for i, key in enumerate(keys)]

    def count_problems(self, *_: object) -> list[str]:
        """Any number will do."""
        return []


class Sleep(NamedTuple):
    """A task that takes its time."""

    name: str


def sleep(_: Sleep) -> engine.Result:
    """Works for a while, by the clock of the CPU: a worker that is held takes longer."""
    end = time.thread_time() + _TASK_S
    while time.thread_time() < end:
        pass
    return engine.Result({"pid": os.getpid()})


def execute(task: Sleep, stage: Stage[Sleep]) -> None:
    """What a plain Map does with a task."""
    stage.execute(task)


def deal(made: flink.Cluster, out: Path, images: int) -> str:
    """Lists and deals so many descriptors; returns the table's row."""
    from apache_beam.options import pipeline_options  # noqa: F401 - so that it is not timed

    from pipelines import graph

    wnids = tuple(f"n{number:08d}" for number in range(images // _CLASS_IMAGES))
    source = Generated(ClassList(wnids, wnids), (Part("all.tar", 1, 1),), images)
    selection = Selection(
        source=source,
        where="generated",
        annotations=None,
        splits=("train",),
        classes=frozenset(range(len(wnids))),
        per_class=None,
        any_counts=True,
        num_shards={"train": images // _SHARD_IMAGES},
        seed=0,
    )
    store = LocalStore(out)
    job = Job(selection, "", None, 0, engine.Workers(), None, {}, {}, False, True)  # type: ignore[arg-type]
    lease = Lease.take_over(store)
    ours = graph.Preparation(job, store, lease)
    log = ours.index.log("runner")
    with memory(made) as peak:
        start = time.monotonic()

        def build(pipeline: Any) -> None:
            _ = pipeline | graph.Archives(ours) | graph.Index(ours) | graph.Deal(ours)

        with cluster.submit(made.options(), build, name=f"deal-{lease.job}", log=log) as running:
            while running.wait(1.0):
                pass
        seconds = time.monotonic() - start
    found = ours.plan.found()
    assert found is not None
    number = found.plans[0].examples
    each = f"{1e6 * seconds / number:,.1f}"
    parts = " ".join(f"{name} {size / 1e6:,.0f} MB" for name, size in sorted(peak.items()))
    return f"{number:,} descriptors: {seconds:,.0f} s, {each} µs each; {parts}"


@contextmanager
def memory(made: flink.Cluster) -> Iterator[dict[str, int]]:
    """Yields the peaks of resident memory: launcher, each TaskManager, Python workers together."""
    peak: dict[str, int] = {}
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(0.5):
            sizes = {"launcher": rss(os.getpid()), "workers": sum(map(rss, made.workers()))}
            for number, each in enumerate(made.task_managers):
                sizes[f"TaskManager {number}"] = rss(each.pid)
            for name, size in sizes.items():
                peak[name] = max(size, peak.get(name, 0))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield peak
    finally:
        ended.set()
        thread.join()


def rss(pid: int) -> int:
    """Returns the resident bytes of a process; 0 where it has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def slow(made: flink.Cluster, out: Path, tasks: int, *, claims: bool) -> float:
    """Returns the seconds of so many tasks while one worker gets a quarter of its time."""
    import apache_beam as beam

    from imagenet_prep.engine.transform import Receipts

    store = LocalStore(out)
    stage: Stage[Sleep] = Stage("sleep", os.urandom(8).hex(), store, sleep)
    todo = [Sleep(str(number)) for number in range(tasks)]
    lease = Lease.take_over(store)

    def build(pipeline: Any) -> None:
        begun = pipeline | beam.Create(todo)
        if claims:
            _ = begun | Receipts(stage, lease)
        else:
            _ = begun | beam.Reshuffle() | beam.Map(execute, stage)

    ended = threading.Event()
    with cluster.submit(
        made.options(), build, name=f"slow-{lease.job}", log=stage.log("runner")
    ) as running:
        thread = threading.Thread(target=hold, args=(made, ended))
        thread.start()
        try:
            while running.wait(0.2):
                pass
        finally:
            ended.set()
            thread.join()
    receipts = stage.receipts(task.name for task in todo).values()
    start = min(receipt["start_s"] for receipt in receipts)
    return max(float(r["start_s"] + r["seconds"]) for r in receipts) - start


def hold(made: flink.Cluster, ended: threading.Event) -> None:
    """Stops one of two workers for three quarters of the time, once both are there."""
    while not ended.wait(0.05):
        pids = sorted(made.workers())
        if len(pids) < flink.NUM_TASK_MANAGERS:
            continue
        for number, seconds in ((signal.SIGSTOP, 0.3), (signal.SIGCONT, 0.1)):
            try:
                os.kill(pids[0], number)
            except ProcessLookupError:
                return
            time.sleep(seconds)


def main(argv: Sequence[str] | None = None) -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m benchmarks.graph")
    parser.add_argument("what", choices=["deal", "slow"])
    parser.add_argument("--images", type=int, default=1_000_000)
    parser.add_argument("--tasks", type=int, default=100)
    args = parser.parse_args(argv)
    if lack := flink.lacking():
        parser.error(lack)
    with tempfile.TemporaryDirectory() as place, flink.cluster(Path(place) / "flink") as made:
        out = Path(place) / "out"
        if args.what == "deal":
            measure.say(deal(made, out, args.images))
            return
        for number in range(2):
            for claims in (True, False):
                seconds = slow(made, out / f"{number}-{claims}", args.tasks, claims=claims)
                name = "claims" if claims else "Reshuffle | Map"
                measure.say(f"{name}: {seconds:,.1f} s for {args.tasks} tasks of {_TASK_S} s")


if __name__ == "__main__":
    # Workers find the classes of tasks in this module, and not in their own `__main__`.
    from benchmarks import graph  # noqa: PLW0406

    graph.main()
