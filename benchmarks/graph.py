"""Tasks on two TaskManagers of Flink, one of which is slow.

python -m benchmarks.graph
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import measure
from imagenet_prep import engine
from imagenet_prep.engine import Lease, Stage, cluster
from imagenet_prep.storage.folder import LocalStore
from tests.kit import runners
from tests.kit.flink import Flink

_TASK_S = 0.2


class Sleep(NamedTuple):
    """A task that takes its time."""

    name: str


@dataclass(frozen=True)
class Slept:
    """The worker of a task."""

    pid: int


def sleep(_: Sleep) -> engine.Result[Slept]:
    """Works for a while, measured in CPU time, so a stopped worker takes longer."""
    end = time.thread_time() + _TASK_S
    while time.thread_time() < end:
        pass
    return engine.Result(Slept(os.getpid()))


def execute(task: Sleep, stage: Stage[Sleep, Slept]) -> None:
    """The work of a plain Map on a task."""
    stage.publish(task, stage.make(task))


def slow(made: Flink, out: Path, tasks: int, *, claims: bool) -> tuple[float, list[int]]:
    """Runs this number of tasks while one worker gets a quarter of its time.

    Returns:
      The seconds, and the number of tasks of each worker, largest first.
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
    """Stops one of two workers for three quarters of the time, once both have started.

    It stays slow after the other one has ended.
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
    parser.add_argument("--tasks", type=int, default=100, help="(default: %(default)s)")
    args = parser.parse_args(argv)
    # So that nothing of the cluster is left.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    lack = Flink.lacking()
    if lack:
        parser.error(lack)
    with tempfile.TemporaryDirectory() as place, Flink.running(Path(place) / "flink") as made:
        out = Path(place) / "out"
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
