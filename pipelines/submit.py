"""Submits the graph of `prepare` to a cluster until the dataset is committed."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from imagenet_prep import engine
from imagenet_prep.engine import Lease
from imagenet_prep.pipelines.graph import Preparation, build
from imagenet_prep.preparation.job import PrepareJob
from imagenet_prep.preparation.output import Output
from imagenet_prep.preparation.sharing import refuse_unpacking
from imagenet_prep.preparation.writing import announce_proven, write_tasks


def until_committed(job: PrepareJob, output: Output) -> None:
    """Runs the graph until the dataset is committed; submits a new job if a job is lost."""
    store = output.store
    refuse_unpacking(job, store)
    announce_proven(job)
    ours = Preparation(job, store, Lease(store, ""))
    log = ours.index.log("runner")
    jobs = engine.Jobs(store, job.workers.beam_args, "prepare", log, quiet=job.quiet)
    with contextlib.closing(finished_tasks(ours, output)) as progress:
        jobs.run(lambda p, lease: build(p, replace(ours, lease=lease)), progress.__next__)


def finished_tasks(ours: Preparation, output: Output) -> Generator[tuple[int, bool], None, None]:
    """Yields the number of tasks with receipts, and whether all tasks are finished."""
    finished = 0
    for stage in _stages(ours, output):
        if stage is None:
            yield finished, False
            continue
        with contextlib.closing(stage):
            stage.collect()
            while stage.left:
                yield finished + len(stage.receipts), False
                stage.collect()
        finished += len(stage.receipts)
    while True:
        yield finished, True


def _stages(ours: Preparation, output: Output) -> Iterator[engine.Followed[Any] | None]:
    """Yields the stages to follow, in order, or None while the plan is not complete."""
    selection = ours.job.selection
    follow = partial(engine.Followed, quiet=ours.job.quiet)
    yield follow(ours.index, selection.index_tasks(), title="index")
    if ours.boxes and selection.annotations:
        yield follow(ours.boxes[0], selection.annotations.tasks, title="boxes")
    inventory = ours.plan.stored()
    while inventory is None:
        yield None
        inventory = ours.plan.stored()
    yield follow(
        ours.write(inventory),
        write_tasks(ours.job, inventory),
        title="write",
        images=inventory.examples,
        watch=output.watch,
    )
