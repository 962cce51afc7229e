"""A run: attempts of workers, until every task has its receipt."""

from __future__ import annotations

import contextlib
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, Self

from imagenet_prep.core import errors
from imagenet_prep.engine import cluster
from imagenet_prep.engine.progress import Progress
from imagenet_prep.engine.stage import AnyTask, Stage
from imagenet_prep.engine.workers import PROCESSES, Processes, Threads, Workers, run_worker

# Looking costs nothing here, and a request elsewhere.
_POLL_S = 0.2
_POLL_ELSEWHERE_S = 2.0
# A worker may be lost again and again, but each attempt gets on. Flink counts a dead TaskManager's
# slots for a while, so that an attempt may come to nothing.
_FUTILE_ATTEMPTS = 3
_PAUSE_S = 5.0


def run(
    stage: Stage[AnyTask],
    tasks: Sequence[AnyTask],
    workers: Workers,
    *,
    title: str,
    watch: Callable[[dict[str, Any]], None] | None = None,
    quiet: bool = False,
) -> list[dict[str, Any]]:
    """Does what is not yet done and returns the receipts of all tasks, in order.

    The first failure stops the run once the tasks in work are finished; they are kept.

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
    known = stage.receipts(task.name for task in tasks)
    receipts = {task.name: known.get(task.name) for task in tasks}
    watch = watch or (lambda _: None)
    for receipt in known.values():
        watch(receipt)
    progress = Progress(title, len(tasks), len(known), quiet=quiet or len(known) == len(tasks))
    lost: Exception | None = None
    futile = 0
    try:
        while pending := [task for task in tasks if receipts[task.name] is None]:
            if futile == (_FUTILE_ATTEMPTS if workers.remote else 1):
                raise _incomplete(stage, len(pending), len(tasks), lost)
            if futile:
                time.sleep(_PAUSE_S)
            stage = replace(stage, attempt=uuid.uuid4().hex[:16] if workers.remote else "")
            stage.clear()
            now_lost = None
            try:
                with _start(stage, pending, workers) as started:
                    _follow(stage, started, receipts, watch, progress)
            except cluster.JobLostError as error:
                lost = now_lost = error
            # First: a job that one task's failure ended may look like a lost one.
            stage.raise_failure()
            if now_lost is not None and not quiet:
                print(f"{title}: workers were lost. {now_lost}", file=sys.stderr, flush=True)
            left = sum(receipts[task.name] is None for task in pending)
            futile = 0 if workers.remote and left < len(pending) else futile + 1
    finally:
        progress.close()
        if workers.remote:
            stage.store.remove_tree(f"{stage.folder}/attempts")
    return [receipt for receipt in receipts.values() if receipt is not None]


def _incomplete(
    stage: Stage[Any], left: int, total: int, lost: Exception | None
) -> errors.IncompleteError:
    if lost is not None:
        return errors.IncompleteError(
            f"{stage.name}: {left} of {total} tasks are left, and the workers were lost "
            f"{_FUTILE_ATTEMPTS} times on end. {lost}. Finished work is kept: mend that, then run "
            "the same command again to resume."
        )
    return errors.IncompleteError(
        f"{stage.name}: a worker process died (killed for memory?); {left} of {total} tasks are "
        "left. Finished work is kept: run the same command again to resume, with fewer --workers "
        "if it repeats."
    )


class _Started(Protocol):
    """What was started, to be waited for; leaving it ends it."""

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: object, *_: object) -> None: ...

    def wait(self, seconds: float) -> bool:
        """Returns whether it is still at work after at most `seconds`; raises what it raised."""


def _start(stage: Stage[AnyTask], tasks: list[AnyTask], workers: Workers) -> _Started:
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


def _follow(
    stage: Stage[AnyTask],
    started: _Started,
    receipts: dict[str, dict[str, Any] | None],
    watch: Callable[[dict[str, Any]], None],
    progress: Progress,
) -> None:
    """Picks up receipts until the pipeline has ended, and stops it where `watch` says so."""
    poll_s = _POLL_S if stage.store.as_folder else _POLL_ELSEWHERE_S
    try:
        running = True
        while running:
            running = started.wait(poll_s)
            left = [name for name, receipt in receipts.items() if receipt is None]
            for name, found in stage.receipts(left).items():
                receipts[name] = found
                progress.add(found)
                watch(found)
            progress.tick()
    except cluster.JobLostError:
        raise
    except BaseException:
        # Ctrl-C, a limit, a failed runner: workers finish the task they hold and stop. A store
        # that cannot be told is likely what has failed.
        with contextlib.suppress(errors.ImagenetPrepError):
            stage.fail("run", "", "the run was ended")
        raise
