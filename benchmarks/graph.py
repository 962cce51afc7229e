"""The graph of prepare on two TaskManagers of Flink: Deal at scale, and one slow worker.

python -m benchmarks.graph deal --images 1000000
python -m benchmarks.graph slow
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import measure
from imagenet_prep import engine
from imagenet_prep.dataset.class_list import ClassList
from imagenet_prep.dataset.member import Member
from imagenet_prep.engine import Lease, Stage, cluster
from imagenet_prep.preparation.config import Config
from imagenet_prep.preparation.job import Job
from imagenet_prep.preparation.selection import Selection
from imagenet_prep.sources.source import IndexTask, Part, Stored
from imagenet_prep.storage.folder import LocalStore
from tests.kit import runners
from tests.kit.flink import Flink

# ImageNet-21K's: so many images a class on average, and no more classes than that.
_CLASS_IMAGES = 650
_CLASSES = 21_841
# ImageNet's shards, and no more of them than docs/scaling.md plans.
_SHARD_IMAGES = 1250
_SHARDS = 65_536
_TASK_S = 0.2
_LINE_EVERY_S = 30.0
# Others need the disk, too.
_FREE_BYTES = 6 << 30


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
        return [IndexTask(n, split, "a", i) for i, n in enumerate(self.classes.wnids)]

    def index(self, task: IndexTask) -> list[Member]:
        """The images of a class."""
        wnid, index = task.name, task.class_index
        assert index is not None
        number = self.images // len(self.classes.wnids)
        return [Member(f"{wnid}/{i}", "a", i << 17, 110_000, index) for i in range(number)]

    def count_problems(self, *_: object) -> list[str]:
        """Any number will do."""
        return []


class Sleep(NamedTuple):
    """A task that takes its time."""

    name: str


@dataclass(frozen=True)
class Slept:
    """Who has done it."""

    pid: int


def sleep(_: Sleep) -> engine.Result[Slept]:
    """Works for a while, by the clock of the CPU: a worker that is held takes longer."""
    end = time.thread_time() + _TASK_S
    while time.thread_time() < end:
        pass
    return engine.Result(Slept(os.getpid()))


def execute(task: Sleep, stage: Stage[Sleep, Slept]) -> None:
    """What a plain Map does with a task."""
    stage.publish(task, stage.make(task))


def deal(made: Flink, out: Path, images: int) -> str:
    """Lists and deals so many descriptors; returns the table's row."""
    # Beam would send all that it logs to stderr as well.
    logging.getLogger().addHandler(logging.NullHandler())
    from apache_beam.options import pipeline_options  # noqa: F401 - so that it is not timed

    from imagenet_prep.pipelines import graph

    wnids = tuple(str(number) for number in range(min(_CLASSES, images // _CLASS_IMAGES)))
    source = Generated(ClassList(wnids, wnids), (Part("a", 1, 1),), images)
    num_shards = min(_SHARDS, images // _SHARD_IMAGES)
    recipe = Config("generated", str(out), splits=("train",), train_shards=num_shards).recipe()
    selection = Selection(
        source=source,
        where="generated",
        recipe=recipe,
        annotations=None,
        classes=frozenset(range(len(wnids))),
        any_counts=True,
    )
    store = LocalStore(out)
    job = Job(selection, "", None, engine.Workers(), None, {}, {}, False, True)  # type: ignore[arg-type]
    lease = Lease.acquire(store)
    ours = graph.Preparation(job, store, lease)
    log = ours.index.log("runner")
    with watched(made) as usage:
        start = said = time.monotonic()

        def build(pipeline: Any) -> None:
            _ = pipeline | graph.Archives(ours) | graph.Index(ours) | graph.Deal(ours)

        with cluster.submit(made.options(), build, name=f"deal-{lease.job}", log=log) as running:
            while running.wait(1.0):
                if store.free_bytes() < _FREE_BYTES:
                    raise SystemExit(f"{out}: less than {_FREE_BYTES:,} bytes are free; ended")
                if time.monotonic() > said + _LINE_EVERY_S:
                    said = time.monotonic()
                    lists = len(store.names(f"{ours.index.folder}/members"))
                    files = len(store.names(ours.plan.folder))
                    done = f"{lists:,} of {len(wnids):,} classes listed, {files:,} plan files"
                    free = f"{store.free_bytes() / 1e9:,.1f} GB free, load {os.getloadavg()[0]:.1f}"
                    measure.say(f"{said - start:,.0f} s: {done}; {usage}; {free}")
        seconds = time.monotonic() - start
    found = ours.plan.found()
    assert found is not None
    number = found.plans[0].examples
    each = f"{1e6 * seconds / number:,.1f}"
    return f"{number:,} descriptors: {seconds:,.0f} s, {each} µs each; {usage}"


@dataclass
class Usage:
    """What processes have used.

    Attributes:
      peaks: of resident memory in bytes, by what the processes are.
      seconds: of CPU, by pid.
    """

    peaks: dict[str, int] = field(default_factory=dict)
    seconds: dict[int, float] = field(default_factory=dict)

    def __str__(self) -> str:
        peaks = " ".join(f"{name} {size / 1e6:,.0f} MB" for name, size in self.peaks.items())
        return f"{sum(self.seconds.values()):,.0f} s of CPU, at most {peaks}"

    def look(self, pids: dict[str, list[int]]) -> None:
        """Adds what processes have used until now."""
        for name, each in pids.items():
            used = [used_by(pid) for pid in each]
            self.peaks[name] = max(sum(size for size, _ in used), self.peaks.get(name, 0))
            for pid, (_, seconds) in zip(each, used, strict=True):
                self.seconds[pid] = max(seconds, self.seconds.get(pid, 0.0))


@contextmanager
def watched(made: Flink) -> Iterator[Usage]:
    """Yields what launcher, job server, TaskManagers and Python workers use, as it grows."""
    usage = Usage()
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(0.5):
            beside = set(runners.children_of(os.getpid())).difference(made.pids())
            managers = {f"TaskManager {i}": [p.pid] for i, p in enumerate(made.members)}
            others = set(made.pids()).difference(p.pid for p in made.members)
            ours = {"launcher": [os.getpid()], "job server": [*beside]}
            theirs = {**managers, "JobManager and pool": [*others], "workers": made.workers()}
            usage.look(ours | theirs)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield usage
    finally:
        ended.set()
        thread.join()


def used_by(pid: int) -> tuple[int, float]:
    """Returns resident bytes of a process, and its seconds of CPU; 0 where it has ended."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return 0, 0.0
    # Numbers 14, 15 and 24 of proc(5), whose third word is the first after the name.
    seconds = (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
    return int(words[21]) * os.sysconf("SC_PAGE_SIZE"), seconds


def slow(made: Flink, out: Path, tasks: int, *, claims: bool) -> tuple[float, list[int]]:
    """Does so many tasks while one worker gets a quarter of its time.

    Returns:
      The seconds, and how many tasks each worker has done, most first.
    """
    import apache_beam as beam

    from imagenet_prep.engine.transform import Receipts

    store = LocalStore(out)
    stage: Stage[Sleep, Slept] = Stage("sleep", os.urandom(8).hex(), store, sleep, Slept)
    todo = [Sleep(str(number)) for number in range(tasks)]
    lease = Lease.acquire(store)

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
    start = min(receipt.start_s for receipt in receipts)
    seconds = max(receipt.start_s + receipt.seconds for receipt in receipts) - start
    of_workers = Counter(receipt.content.pid for receipt in receipts)
    return seconds, [count for _, count in of_workers.most_common()]


def hold(made: Flink, ended: threading.Event) -> None:
    """Stops one of two workers for three quarters of the time, once both are there.

    It stays slow when the other one has ended.
    """
    pids: list[int] = []
    while len(pids) < runners.NUM_MEMBERS and not ended.wait(0.05):
        pids = made.workers()
    while not ended.is_set():
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
    parser.add_argument(
        "--images",
        type=int,
        default=1_000_000,
        help=f"how many descriptors: {_CLASS_IMAGES} a class, and where that would be more classes "
        f"than ImageNet-21K's {_CLASSES:,}, more a class; 10^8 need 30 GB of TMPDIR (default: "
        "%(default)s)",
    )
    parser.add_argument("--tasks", type=int, default=100, help="of slow (default: %(default)s)")
    args = parser.parse_args(argv)
    # So that nothing of the cluster stays.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    if lack := Flink.lacking():
        parser.error(lack)
    with tempfile.TemporaryDirectory() as place, Flink.running(Path(place) / "flink") as made:
        out = Path(place) / "out"
        if args.what == "deal":
            measure.say(deal(made, out, args.images))
            return
        for number in range(2):
            for claims in (True, False):
                place_of_one = out / f"{number}-{claims}"
                seconds, counts = slow(made, place_of_one, args.tasks, claims=claims)
                name = "claims" if claims else "Reshuffle | Map"
                did = f"{counts} tasks of {_TASK_S} s of CPU each"
                measure.say(f"{name}: {seconds:,.1f} s; the workers did {did}")


if __name__ == "__main__":
    # Workers find the classes of tasks in this module, and not in their own `__main__`.
    from benchmarks import graph  # noqa: PLW0406

    graph.main()
