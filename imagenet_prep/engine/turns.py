"""A run: turns of lanes, until every task has its receipt."""

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
from imagenet_prep.engine.lanes import Lanes, Pipeline, run_lane
from imagenet_prep.engine.progress import Progress
from imagenet_prep.engine.stage import AnyTask, Stage
from imagenet_prep.storage.folder import LocalStore

# Looking costs nothing here, and a request elsewhere.
_POLL_S = 0.2
_POLL_ELSEWHERE_S = 2.0
# A worker may be lost again and again, but each turn gets on. Flink counts a dead TaskManager's
# slots for a while, so that a turn may come to nothing.
_FUTILE_TURNS = 3
_PAUSE_S = 5.0


def run(
    stage: Stage[AnyTask],
    tasks: Sequence[AnyTask],
    lanes: Lanes,
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
      lanes: how much at once, and on what.
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
            if futile == (_FUTILE_TURNS if lanes.remote else 1):
                raise _incomplete(stage, len(pending), len(tasks), lost)
            if futile:
                time.sleep(_PAUSE_S)
            stage = replace(stage, turn=uuid.uuid4().hex[:16] if lanes.remote else "")
            stage.clear()
            now_lost = None
            try:
                with _start(stage, pending, lanes) as workers:
                    _follow(stage, workers, receipts, watch, progress)
            except cluster.JobLostError as error:
                lost = now_lost = error
            # First: a job that one task's failure ended may look like a lost one.
            stage.raise_failure()
            if now_lost is not None and not quiet:
                print(f"{title}: workers were lost. {now_lost}", file=sys.stderr, flush=True)
            left = sum(receipts[task.name] is None for task in pending)
            futile = 0 if lanes.remote and left < len(pending) else futile + 1
    finally:
        progress.close()
        if lanes.remote:
            stage.store.remove_tree(f"{stage.folder}/turns")
    return [receipt for receipt in receipts.values() if receipt is not None]


def _incomplete(
    stage: Stage[Any], left: int, total: int, lost: Exception | None
) -> errors.IncompleteError:
    if lost is not None:
        return errors.IncompleteError(
            f"{stage.name}: {left} of {total} tasks are left, and the workers were lost "
            f"{_FUTILE_TURNS} times on end. {lost}. Finished work is kept: mend that, then run the "
            "same command again to resume."
        )
    return errors.IncompleteError(
        f"{stage.name}: a worker process died (killed for memory?); {left} of {total} tasks are "
        "left. Finished work is kept: run the same command again to resume, with fewer --workers "
        "if it repeats."
    )


class _Workers(Protocol):
    """What was started, to be waited for; leaving it ends it."""

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: object, *_: object) -> None: ...

    def wait(self, seconds: float) -> bool:
        """Returns whether it is still at work after at most `seconds`; raises what it raised."""


def _start(stage: Stage[AnyTask], tasks: list[AnyTask], lanes: Lanes) -> _Workers:
    if not lanes.remote:
        return Pipeline(stage, tasks, lanes)
    return cluster.submit(
        lanes.beam_args,
        partial(run_lane, stage=stage, tasks=tasks),
        len(tasks),
        name=f"imagenet-prep-{stage.name}-{stage.turn}",
        log=stage.log("runner"),
    )


def _follow(
    stage: Stage[AnyTask],
    workers: _Workers,
    receipts: dict[str, dict[str, Any] | None],
    watch: Callable[[dict[str, Any]], None],
    progress: Progress,
) -> None:
    """Picks up receipts until the pipeline has ended, and stops it where `watch` says so."""
    poll_s = _POLL_S if isinstance(stage.store, LocalStore) else _POLL_ELSEWHERE_S
    try:
        running = True
        while running:
            running = workers.wait(poll_s)
            left = [name for name, receipt in receipts.items() if receipt is None]
            for name, found in stage.receipts(left).items():
                receipts[name] = found
                progress.add(found)
                watch(found)
            progress.tick()
    except cluster.JobLostError:
        raise
    except BaseException:
        # Ctrl-C, a limit, a failed runner: lanes finish the task they hold and stop. A store
        # that cannot be told is likely what has failed.
        with contextlib.suppress(errors.ImagenetPrepError):
            stage.fail("run", "", "the run was ended")
        raise
