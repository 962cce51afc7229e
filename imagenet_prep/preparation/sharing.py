"""Prepares a dataset together with other processes that run the same command."""

from __future__ import annotations

import time
from typing import Any

from imagenet_prep import engine
from imagenet_prep.core.errors import ImagenetPrepError, UsageError
from imagenet_prep.core.version import version
from imagenet_prep.engine import SharedRun, shared_run
from imagenet_prep.engine.stage import end_jobs
from imagenet_prep.preparation.job import PrepareJob
from imagenet_prep.preparation.joined_lists import read_boxes
from imagenet_prep.preparation.output import Output
from imagenet_prep.preparation.planning import Inventory, SharedPlan, listing_workers
from imagenet_prep.preparation.selection import index_stage
from imagenet_prep.preparation.writing import write
from imagenet_prep.sources.source import Packed
from imagenet_prep.storage.store import Store


def until_committed(job: PrepareJob, output: Output) -> None:
    """Does this process's share of the work; returns when a process has committed the dataset."""
    store = output.store
    refuse_unpacking(job, store)
    with shared_run.joined(store, shared_settings(job)) as run:
        try:
            if output.left():
                inventory = _inventory(job, store, run)
                forecast = job.forecast(store, store, inventory.folder)
                write(job, inventory, forecast, output, run)
        except ImagenetPrepError as error:
            # After the commit, other processes remove work files that this one may still read.
            has_ended = not run.lease.held
            if not _is_committed(output, waits=has_ended):
                if not has_ended:
                    raise
                raise shared_run.overtaken(store) from error
    # Only now, because a heartbeat of this process would create the folder of the job again.
    end_jobs(store)


def shared_settings(job: PrepareJob) -> dict[str, Any]:
    """Returns the settings that are the same in all processes of a run, by their name."""
    return {
        **job.wanted.settings.config,
        "codec": job.wanted.libraries.get("codec"),
        "accepts a subset": job.selection.any_counts,
        "the digest of the source": job.selection.identity,
        "the version of imagenet-prep": version(),
    }


def refuse_unpacking(job: PrepareJob, store: Store) -> None:
    """Raises UsageError if workers on several hosts cannot share the unpacked images."""
    if store.as_folder is None and isinstance(job.selection.source, Packed):
        raise UsageError(
            f"{job.selection.where} must be unpacked into a folder that all workers share. Set "
            "--out to a shared folder, then copy the dataset to the bucket with imagenet-prep "
            "replicate."
        )


def _inventory(job: PrepareJob, store: Store, run: SharedRun) -> Inventory:
    """Returns the plan, which one process of the run makes after all have listed the images."""
    selection = job.selection
    tasks = selection.index_tasks()
    workers = listing_workers(job.workers, tasks)
    index = index_stage(selection, store)
    receipts = engine.run(index, tasks, workers, quiet=job.quiet, shared=run)
    lookup = read_boxes(selection.annotations, store, workers, quiet=job.quiet, shared=run)
    plan = SharedPlan.of(selection, store, lookup)
    listed = [receipt.content for receipt in receipts]
    return run.once(
        "plan",
        plan.stored,
        lambda: plan.make(tasks, listed, index.folder, run.lease.check),
    )


def _is_committed(output: Output, *, waits: bool) -> bool:
    """Returns whether the dataset is finished; `waits` because NFS clients cache names of files."""
    end = time.monotonic() + shared_run.LOST_AFTER_S
    while output.left():
        if not waits or time.monotonic() > end:
            return False
        time.sleep(shared_run.poll_s(output.store))
    return True
