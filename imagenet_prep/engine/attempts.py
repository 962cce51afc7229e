"""Runs the tasks of a stage until every task has a receipt, and displays the progress.

`run` runs the tasks on this machine or a cluster. `Jobs` repeats a cluster job.

`Progress` is the progress display of a run.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic

from imagenet_prep.core import errors, limits, monitoring
from imagenet_prep.core.terminal import counted, is_live, say
from imagenet_prep.engine import cluster
from imagenet_prep.engine.shared_run import SharedRun, overtaken, poll_s
from imagenet_prep.engine.stage import (
    AnyContent,
    AnyTask,
    Lease,
    Stage,
    TaskReceipt,
    end_jobs,
    killed_worker,
)
from imagenet_prep.engine.workers import PROCESSES, Processes, Started, Threads, Workers
from imagenet_prep.storage.store import Store

_LINE_EVERY_S = 30.0
_FIRST_LINE_S = 2.0


class Progress:
    """Shows progress: a bar on a terminal, otherwise lines after 2, 6 and 18 s, then every 30 s.

    The display counts images if their number, `images`, is given, otherwise tasks.
    """

    def __init__(
        self,
        title: str,
        total: int,
        done: int,
        *,
        images: int = 0,
        images_done: int = 0,
        quiet: bool = False,
    ) -> None:
        self._title = title
        self._unit = "image" if images else "task"
        self._total, self._first = (images, images_done) if images else (total, done)
        self._done = self._shown = self._first
        self._bytes = 0
        monitoring.count(title)
        self._start = time.monotonic()
        self._next_line = self._start + min(_FIRST_LINE_S, _LINE_EVERY_S)
        self._late_line = self._start + _LINE_EVERY_S
        self._bar: Any = None
        self._quiet = quiet
        if done and not quiet:
            tasks = counted(total, "shard" if images else "task")
            self._say(f"resuming: {done:,} of {tasks} already finished")
        # If a terminal reports no width, as with docker run -t, print lines instead of a bar.
        if not quiet and is_live() and os.get_terminal_size(2).columns:
            from tqdm import tqdm

            self._bar = tqdm(
                desc=title,
                total=self._total,
                initial=self._first,
                bar_format="{desc}: {percentage:3.0f}%|{bar}| {n:,} of {total:,} "
                f"{self._unit}s{{postfix}}",
                miniters=1,
                dynamic_ncols=True,
                leave=False,
            )

    def add(self, num_bytes: int = 0, examples: int = 0) -> None:
        """Counts one finished task, with its bytes and images."""
        self._done += examples if self._unit == "image" else 1
        self._bytes += num_bytes
        monitoring.count(self._title, images=examples, num_bytes=num_bytes)
        self.tick()

    def tick(self, images: int = 0) -> None:
        """Updates the display; `images` is the number that this run has written so far."""
        within = self._first + images if self._unit == "image" else 0
        self._shown = min(self._total, max(self._shown, self._done, within))
        now = time.monotonic()
        if self._bar is not None:
            self._bar.set_postfix_str(self._rate(now) + self._time_left(now), refresh=False)
            self._bar.update(self._shown - self._bar.n)
        # Before any progress, a line would contain no information.
        elif not self._quiet and now >= (
            self._next_line if self._shown > self._first else self._late_line
        ):
            self._say(self._line(now))
            self._late_line = now + _LINE_EVERY_S
            self._next_line = now + min(_LINE_EVERY_S, max(4.0, 2 * (now - self._start)))

    def _say(self, text: str) -> None:
        fields: dict[str, Any] = {"stage": self._title, "unit": self._unit, "done": self._shown}
        seconds = round(time.monotonic() - self._start, 3)
        fields |= {"total": self._total, "bytes": self._bytes, "seconds": seconds}
        say(f"{self._title}: {text}", prefix="", **fields)

    def _line(self, now: float) -> str:
        done = f"{self._shown:,} of {counted(self._total, self._unit)}, {self._rate(now)}"
        remaining = counted(self._total - self._shown, self._unit)
        return f"{done}, {remaining} left{self._time_left(now)}"

    def _time_left(self, now: float) -> str:
        new = self._shown - self._first
        if not new:
            return ""
        seconds = (now - self._start) / new * (self._total - self._shown)
        return f", {_duration(seconds)}"

    def close(self) -> None:
        """Removes the progress bar."""
        if self._bar is not None:
            self._bar.close()

    def _rate(self, now: float) -> str:
        seconds = max(now - self._start, 1e-9)
        if self._unit == "image" and self._shown > self._first:
            return f"{(self._shown - self._first) / seconds:,.0f} images/s"
        return f"{self._bytes / seconds / 1e6:,.1f} MB/s" if self._bytes else "starting"


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"about {seconds:.0f} s"
    return f"about {seconds / 60:.0f} min" if seconds < 7200 else f"about {seconds / 3600:.1f} h"


# Share of a CPU core that checks for receipts may use; checking 21,841 tasks takes 30 ms.
_LOOKING_SHARE = 0.02
_PAUSE_S = 5.0
# Number of jobs in a row without a finished task before the run fails. One such job is normal:
# for a while, Flink still assigns work to a TaskManager that has died.
_FUTILE_JOBS = 3

Collect = Callable[[], tuple[int, bool]]


class Followed(Generic[AnyContent]):
    """Collects the receipts of a stage's tasks, by task name, and shows the progress."""

    def __init__(
        self,
        stage: Stage[Any, AnyContent],
        tasks: Sequence[Any],
        *,
        title: str = "",
        images: int = 0,
        watch: Callable[[TaskReceipt[AnyContent]], None] = lambda _: None,
        quiet: bool = False,
    ) -> None:
        limits.begin()
        names = [task.name for task in tasks]
        if len({*names}) < len(names):
            raise RuntimeError(f"two tasks of the stage {stage.name} have the same name")
        self.receipts = stage.receipts(names)
        self._stage, self._tasks, self._watch = stage, tasks, watch
        self._files: set[str] = set()  # the outputs of the finished tasks
        self._note(self.receipts)
        # If images are written, only shards are counted. They come last, after archives to hash.
        counted = [task for task in tasks if not images or isinstance(task, type(tasks[-1]))]
        self._progress = Progress(
            title or stage.name,
            len(counted),
            sum(task.name in self.receipts for task in counted),
            images=images,
            images_done=sum(map(_examples, self.receipts.values())),
            quiet=quiet or not self.left,
        )

    @property
    def left(self) -> list[Any]:
        """The tasks without a receipt."""
        return [task for task in self._tasks if task.name not in self.receipts]

    def collect(self) -> tuple[int, bool]:
        """Updates receipts and progress; returns the number of receipts and whether all exist."""
        new = self._stage.receipts(task.name for task in self.left)
        for receipt in new.values():
            self._progress.add(getattr(receipt.content, "num_bytes", 0), _examples(receipt))
        self.receipts |= new
        self._note(new)
        self._progress.tick(limits.add(0))
        return len(self.receipts), not self.left

    def _note(self, receipts: Mapping[str, TaskReceipt[AnyContent]]) -> None:
        for task, receipt in receipts.items():
            files = {output.name for output in receipt.outputs}
            if not self._files.isdisjoint(files):
                raise RuntimeError(f"{task} has written a file of another task: {sorted(files)}")
            self._files |= files
            self._watch(receipt)

    def close(self) -> None:
        """Removes the progress bar."""
        self._progress.close()


def _examples(receipt: TaskReceipt[Any]) -> int:
    return int(getattr(receipt.content, "examples", 0))


def run(
    stage: Stage[AnyTask, AnyContent],
    tasks: Sequence[AnyTask],
    workers: Workers,
    *,
    title: str = "",
    images: int = 0,
    watch: Callable[[TaskReceipt[AnyContent]], None] = lambda _: None,
    quiet: bool = False,
    shared: SharedRun | None = None,
) -> list[TaskReceipt[AnyContent]]:
    """Runs the unfinished tasks and returns the receipts of all tasks, in the order of `tasks`.

    After the first failure, workers finish their current task and stop. Finished tasks are kept.
    This process calls `watch` with each receipt, including those of earlier runs; if `watch` raises
    an error, the run stops. The progress display shows `title`, by default the name of the stage,
    and counts tasks if `images` is 0. In a `shared` run, this process does its share of the tasks,
    and waits for the others.
    """
    followed = Followed(stage, tasks, title=title, images=images, watch=watch, quiet=quiet)
    with contextlib.closing(followed):
        if followed.left and workers.remote:
            _run_elsewhere(stage, followed, workers, quiet=quiet)
        elif shared:
            _run_shared(replace(stage, own=shared.own), followed, workers, shared)
        elif followed.left:
            _run_here(stage, followed, workers)
    return [followed.receipts[task.name] for task in tasks]


def _run_here(stage: Stage[Any, Any], followed: Followed[Any], workers: Workers) -> None:
    # A killed run may have left a cluster job running.
    end_jobs(stage.store)
    total = len(followed.left)
    _work(stage, followed.left, followed, workers)
    pending = len(followed.left)
    if pending:
        raise killed_worker(stage.name, pending, total)


def _run_shared(
    stage: Stage[Any, Any], followed: Followed[Any], workers: Workers, shared: SharedRun
) -> None:
    while followed.left:
        names = shared.unclaimed(stage.name, [task.name for task in followed.left])
        tasks = [task for task in followed.left if task.name in names]
        if tasks:
            _work(stage, tasks, followed, workers, shared.lease)
        else:
            time.sleep(poll_s(stage.store))
        followed.collect()


def _work(
    stage: Stage[Any, Any],
    tasks: list[Any],
    followed: Followed[Any],
    workers: Workers,
    lease: Lease | None = None,
) -> None:
    """Runs workers of this machine until they can claim no more of the tasks."""
    stage.clear()
    processes = workers.resolved_kind == PROCESSES and workers.count > 1
    start = Processes if processes else Threads
    with start(stage, tasks, min(workers.count, len(tasks)), lease) as started:
        try:
            follow(started, followed.collect, poll_s(stage.store))
        except BaseException:
            # Ctrl-C or an error in `watch`. Workers that see this failure stop after their task.
            with contextlib.suppress(errors.ImagenetPrepError, OSError):
                stage.fail("", "the run was stopped")
            raise
    stage.raise_failure()


def _run_elsewhere(
    stage: Stage[Any, Any], followed: Followed[Any], workers: Workers, *, quiet: bool
) -> None:
    def build(pipeline: Any, lease: Lease) -> None:
        import apache_beam as beam

        from imagenet_prep.engine.transform import Receipts

        tasks = pipeline | "Tasks" >> beam.Create(followed.left)
        _ = tasks | stage.name.capitalize() >> Receipts(stage, lease)

    jobs = Jobs(stage.store, workers.beam_args, stage.name, stage.log("runner"), quiet=quiet)
    jobs.run(build, followed.collect)


@dataclass
class Jobs:
    """Repeats a cluster job if workers are lost; fails after several jobs without progress."""

    store: Store
    beam_args: tuple[str, ...]
    name: str
    log: Path
    quiet: bool = False

    def run(self, build: Callable[[Any, Lease], object], collect: Collect) -> None:
        """Submits jobs with the pipeline from `build`, each with a new lease, until one succeeds.

        `collect` is called regularly; it returns how many tasks are finished, and whether all are.
        """
        before, _ = collect()
        futile = 0
        while True:
            lost = self._lost(build, collect)
            finished, is_complete = collect()
            if not lost and is_complete:
                return
            lost = lost or errors.JobLostError("the job ended before its tasks were finished")
            futile = 0 if finished > before else futile + 1
            before = finished
            if futile == _FUTILE_JOBS:
                raise errors.IncompleteError(
                    f"{self.name}: the workers were lost {_FUTILE_JOBS} times in a row: {lost}. "
                    f"{errors.kept_work()}Fix the cause, then run the same command again."
                ) from lost
            if not self.quiet:
                print(f"{self.name}: workers were lost: {lost}", file=sys.stderr, flush=True)
            time.sleep(_PAUSE_S if futile else 0)

    def _lost(
        self, build: Callable[[Any, Lease], object], collect: Collect
    ) -> errors.JobLostError | None:
        """Runs a job. If it is lost, returns the error; if a newer run exists, raises BusyError."""
        lease = Lease.acquire(self.store)
        name = f"imagenet-prep-{self.name}-{lease.job}"
        try:
            with cluster.submit(
                self.beam_args, lambda pipeline: build(pipeline, lease), name=name, log=self.log
            ) as job:
                follow(job, collect, poll_s(self.store))
        except (errors.JobLostError, errors.StoreError) as lost:
            # The newer run may have removed files that this run was about to read.
            if not lease.held:
                raise overtaken(self.store) from lost
            if isinstance(lost, errors.StoreError):
                raise
            return lost
        finally:
            if lease.held:
                end_jobs(self.store)
        return None


def follow(started: Started, collect: Callable[[], object], poll_s: float) -> None:
    """Calls `collect` regularly until all workers have ended."""
    look_s = 0.0
    while started.wait(max(poll_s, look_s / _LOOKING_SHARE)):
        start = time.thread_time()
        collect()
        look_s = time.thread_time() - start
    collect()
