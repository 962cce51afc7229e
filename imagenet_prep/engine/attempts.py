"""A run: attempts at the tasks that have no receipt yet, until every task has one."""

from __future__ import annotations

import contextlib
import enum
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from imagenet_prep.core import errors
from imagenet_prep.engine import cluster
from imagenet_prep.engine.progress import Progress
from imagenet_prep.engine.stage import AnyTask, Stage
from imagenet_prep.engine.workers import PROCESSES, Processes, Started, Threads, Workers, run_worker

# Seconds between two looks at the receipts: free on this machine, a request elsewhere.
_POLL_S = 0.2
_POLL_ELSEWHERE_S = 2.0
# Looking for receipts may take this share of a core: with 21,841 tasks, one look takes 30 ms.
_LOOKING_SHARE = 0.02
_PAUSE_S = 5.0
# Flink counts the slots of a dead TaskManager for a while, so an attempt may finish no task.
_FUTILE_ATTEMPTS = 3


class Decision(enum.Enum):
    """What comes after an attempt."""

    DONE = enum.auto()
    ANOTHER = enum.auto()
    GIVE_UP = enum.auto()


@dataclass
class Attempts:
    """Decides what comes after an attempt. It depends only on how many tasks were finished.

    On this machine there is one attempt: a process that died was probably killed for its memory,
    and would be killed again. A cluster may lose workers repeatedly, as long as each attempt
    finishes tasks.

    Attributes:
      remote: whether the workers are a cluster's.
      futile: consecutive attempts that have finished no task.
      lost: the last error with which the runner gave up.
    """

    remote: bool
    futile: int = 0
    lost: Exception | None = None

    def decide(self, *, finished: int, left: int, lost: Exception | None = None) -> Decision:
        """Returns what comes after an attempt.

        Args:
          finished, left: how many tasks it has finished and left.
          lost: the error with which the runner gave up, if it did.
        """
        self.futile = 0 if finished else self.futile + 1
        self.lost = lost or self.lost
        if not left:
            return Decision.DONE
        if not self.remote or self.futile == _FUTILE_ATTEMPTS:
            return Decision.GIVE_UP
        return Decision.ANOTHER

    def incomplete(self, name: str, left: int, total: int) -> errors.IncompleteError:
        """Returns the error for a stage that is given up."""
        if self.lost is None:
            return errors.IncompleteError(
                f"{name}: a worker process died (killed for memory?); {left} of {total} tasks are "
                "left. Finished work is kept: run the same command again to resume, with fewer "
                "--workers if it repeats."
            )
        return errors.IncompleteError(
            f"{name}: {left} of {total} tasks are left, and the workers were lost "
            f"{_FUTILE_ATTEMPTS} times on end. {self.lost}. Finished work is kept: mend that, "
            "then run the same command again to resume."
        )


def run(
    stage: Stage[AnyTask],
    tasks: Sequence[AnyTask],
    workers: Workers,
    *,
    title: str,
    watch: Callable[[dict[str, Any]], None] = lambda _: None,
    quiet: bool = False,
) -> list[dict[str, Any]]:
    """Does the unfinished tasks and returns the receipts of all tasks, in order.

    After the first failure, workers finish the task that they are at and stop. Finished tasks
    are kept.

    Args:
      stage: what to do, and where.
      tasks: names differ.
      workers: how much at once, and on what.
      title: for the progress.
      watch: called in this process with each receipt, also with those of earlier runs;
        an ImagenetPrepError from it stops the run.
      quiet: show no progress.

    Raises:
      ImagenetPrepError: of the class and with the message of the first task that failed.
      IncompleteError: a worker was lost with its tasks.
    """
    receipts = stage.receipts(task.name for task in tasks)
    for receipt in receipts.values():
        watch(receipt)
    total, left = len(tasks), len(tasks) - len(receipts)
    progress = Progress(title, total, total - left, quiet=quiet or not left)

    def collect() -> None:
        missing = [task.name for task in tasks if task.name not in receipts]
        for name, receipt in stage.receipts(missing).items():
            receipts[name] = receipt
            progress.add(receipt)
            watch(receipt)
        progress.tick()

    attempts = Attempts(workers.remote)
    decision = Decision.ANOTHER if left else Decision.DONE
    try:
        while decision is Decision.ANOTHER:
            time.sleep(_PAUSE_S if attempts.futile else 0)
            pending = [task for task in tasks if task.name not in receipts]
            lost = _attempt(stage, pending, workers, collect)
            if lost is not None and not quiet:
                print(f"{title}: workers were lost. {lost}", file=sys.stderr, flush=True)
            left = total - len(receipts)
            decision = attempts.decide(finished=len(pending) - left, left=left, lost=lost)
        if decision is Decision.GIVE_UP:
            raise attempts.incomplete(stage.name, left, total)
    finally:
        progress.close()
        if workers.remote:
            stage.store.remove_tree(f"{stage.folder}/attempts")
    return [receipts[task.name] for task in tasks]


def _attempt(
    stage: Stage[AnyTask], tasks: list[AnyTask], workers: Workers, collect: Callable[[], None]
) -> cluster.JobLostError | None:
    """Starts workers and follows them to their end; returns the error if the runner gave up."""
    stage = replace(stage, attempt=uuid.uuid4().hex[:16] if workers.remote else "")
    stage.clear()
    lost = None
    try:
        with _start(stage, tasks, workers) as started:
            follow(stage, started, collect)
    except cluster.JobLostError as error:
        lost = error
    # A job that ended because a task failed may look like a lost one.
    stage.raise_failure()
    return lost


def _start(stage: Stage[AnyTask], tasks: list[AnyTask], workers: Workers) -> Started:
    if not workers.remote:
        count = min(workers.count, len(tasks))
        processes = workers.resolved_kind == PROCESSES and workers.count > 1
        return (Processes if processes else Threads)(stage, tasks, count)
    return cluster.submit(
        workers.beam_args,
        partial(run_worker, stage=stage, tasks=tasks),
        len(tasks),
        name=f"imagenet-prep-{stage.name}-{stage.attempt}",
        log=stage.log("runner"),
    )


def follow(stage: Stage[Any], started: Started, collect: Callable[[], None]) -> None:
    """Collects receipts until the workers have ended; an error here stops them."""
    poll_s = _POLL_S if stage.store.as_folder else _POLL_ELSEWHERE_S
    look_s = 0.0
    try:
        while started.wait(max(poll_s, look_s / _LOOKING_SHARE)):
            start = time.thread_time()
            collect()
            look_s = time.thread_time() - start
        collect()
    except cluster.JobLostError:
        collect()
        raise
    except BaseException:
        # Ctrl-C, a limit or a failed runner. The note makes workers stop after their task. If it
        # cannot be written, the store has probably caused the first error, which is raised below.
        with contextlib.suppress(errors.ImagenetPrepError):
            stage.fail("run", "", "the run was ended")
        raise
