"""Prepares a dataset as one job of Apache Beam: `Archives | Index | Deal | Shard | Commit`.

Steps exchange only descriptors and receipts, never image bytes. Workers share files next to the
dataset, in its folder or bucket. Each finished task has a receipt there, so the same graph can be
submitted again at any time: it only does the remaining work.

This module imports Beam, so import it only to build or run a job. In the clone,
examples/beam_pipeline.py is a custom pipeline with these steps.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import AsIter, AsSingleton

from imagenet_prep.core import errors
from imagenet_prep.core.flags import parse
from imagenet_prep.engine import Lease, Stage
from imagenet_prep.engine.transform import Receipts, reported
from imagenet_prep.engine.workers import Done
from imagenet_prep.preparation import joined_lists
from imagenet_prep.preparation.config import PrepareConfig
from imagenet_prep.preparation.job import PrepareJob
from imagenet_prep.preparation.output import Output
from imagenet_prep.preparation.planning import Inventory, SharedPlan
from imagenet_prep.preparation.same_source import require_same_source
from imagenet_prep.preparation.selection import index_stage
from imagenet_prep.preparation.tasks import ListedCounts
from imagenet_prep.preparation.writing import begin, commit, write_stage, write_tasks
from imagenet_prep.sources.boxes import BoxTask
from imagenet_prep.sources.source import IndexTask
from imagenet_prep.storage.store import Store, open_store

__all__ = ["Archives", "Commit", "Deal", "Index", "Preparation", "Shard"]


@dataclass(frozen=True)
class Preparation:
    """The job, and the store and lease of its dataset. All steps share this picklable object."""

    job: PrepareJob
    store: Store
    lease: Lease

    @classmethod
    def of(cls, flags: Sequence[str]) -> Preparation:
        """Checks the flags, and takes over the lease from an earlier run on this dataset.

        `flags` are those of `imagenet-prep prepare` as a list, with Beam's options after "--".
        Invalid flags end the process with exit code 2 and a message. Raises ImagenetPrepError if an
        input is missing, unreadable or damaged, or if the output is a different dataset.
        """
        config = parse(PrepareConfig, flags, verb="prepare")
        job = PrepareJob.of(config)
        store = open_store(config.out)
        output = Output(store, job.wanted)
        output.left()
        require_same_source(job, output)
        return cls(job, store, Lease.acquire(store))

    @property
    def beam_args(self) -> Sequence[str]:
        """The arguments for Apache Beam's `PipelineOptions`, one list item each."""
        return self.job.workers.beam_args

    @cached_property
    def index(self) -> Stage[IndexTask, ListedCounts]:
        """The stage that lists images."""
        return index_stage(self.job.selection, self.store)

    @cached_property
    def boxes(self) -> tuple[Stage[BoxTask, joined_lists.ReadBoxes], joined_lists.BoxLookup] | None:
        """The stage that reads annotations, and a function that looks up boxes; or None."""
        annotations = self.job.selection.annotations
        return joined_lists.box_stage(annotations, self.store) if annotations else None

    @cached_property
    def plan(self) -> SharedPlan:
        """The plan that one worker makes."""
        boxes = self.boxes
        return SharedPlan.of(self.job.selection, self.store, boxes[1] if boxes else None)

    @property
    def output(self) -> Output:
        """The dataset to write."""
        return Output(self.store, self.job.wanted)

    def write(self, inventory: Inventory) -> Stage[Any, Any]:
        """Returns the stage that writes the shards of a plan."""
        return write_stage(self.job, inventory, self.store, self.store)


class _Step(beam.PTransform):
    def __init__(self, preparation: Preparation) -> None:
        super().__init__()
        self._ours = preparation


class Archives(_Step):
    """Creates one task for each part of the source and its annotations.

    PBegin -> PCollection of IndexTask and BoxTask.
    """

    def expand(self, begin: Any) -> Any:
        """Returns the tasks."""
        selection = self._ours.job.selection
        boxes = selection.annotations.tasks if selection.annotations else []
        return begin | beam.Create([*selection.index_tasks(), *boxes]).with_output_types(Any)


class Index(_Step):
    """Writes lists of images and bounding boxes to files next to the dataset.

    PCollection of tasks -> {"images": `Done` of the lists, "boxes": `Done` of the annotations}.
    Lists that exist are not made again.
    """

    def expand(self, tasks: Any) -> Any:
        """Returns the collections "images" and "boxes"."""
        ours = self._ours
        images, boxes = tasks | "Kinds" >> beam.Partition(_kind, 2)
        # Without annotations there are no tasks, but Beam still needs a stage here.
        stage = ours.boxes[0] if ours.boxes else ours.index
        return {
            "images": images | "Images" >> Receipts(ours.index, ours.lease),
            "boxes": boxes | "Boxes" >> Receipts(stage, ours.lease),
        }


def _kind(task: IndexTask | BoxTask, _: int) -> int:
    return int(isinstance(task, BoxTask))


class Deal(_Step):
    """Assigns each image to a shard, and writes a plan file for each shard.

    Output of `Index` -> PCollection of one `Inventory`. One worker makes the plan in memory; it
    needs 28 bytes per image.
    """

    def expand(self, index: Any) -> Any:
        """Returns the `Inventory`."""
        # A step that runs once starts from one element; its data are side inputs.
        once = index["images"].pipeline | "Once" >> beam.Create([None])
        listed = AsIter(index["images"])
        read = AsIter(index["boxes"])
        return once | "Plan" >> beam.Map(deal, self._ours, listed, read).with_output_types(Any)


def deal(_: None, ours: Preparation, listed: Iterable[Done], read: Iterable[Done]) -> Inventory:
    """Makes the plan after all images are listed and all boxes are read."""
    selection = ours.job.selection
    with reported(ours.lease):
        tasks = selection.index_tasks()
        receipts = {done.task.name: done.receipt for done in listed}
        _require_all(tasks, receipts)
        if selection.annotations:
            _require_all(selection.annotations.tasks, {done.task.name for done in read})
        contents = [receipts[task.name].content for task in tasks]
        return ours.plan.make(tasks, contents, ours.index.folder, ours.lease.check)


def _require_all(tasks: Sequence[Any], finished: Collection[str]) -> None:
    """Raises JobLostError if a lost worker has left tasks undone, so that a new job does them."""
    missing = sum(task.name not in finished for task in tasks)
    if missing:
        raise errors.JobLostError(f"{missing} of {len(tasks)} tasks are not finished")


class Shard(_Step):
    """Reads, decodes, resizes and writes the images of each shard; hashes archives with md5.

    PCollection of one `Inventory` -> PCollection of `Done`, one per shard or archive.
    """

    def expand(self, plan: Any) -> Any:
        """Returns the finished tasks."""
        ours = self._ours
        stage = AsSingleton(plan | "Stage" >> beam.Map(ours.write).with_output_types(Any))
        tasks = plan | "Shards" >> beam.FlatMap(_begin, ours).with_output_types(Any)
        return tasks | "Images" >> Receipts(stage, ours.lease)


def _begin(inventory: Inventory, ours: Preparation) -> list[Any]:
    with reported(ours.lease):
        forecast = ours.job.forecast(ours.store, ours.store, inventory.folder)
        begin(ours.write(inventory), inventory, forecast, ours.output)
        return [*write_tasks(ours.job, inventory)]


class Commit(_Step):
    """Checks that every shard exists, and publishes the manifest.

    PCollection of `Done`, and `plan` with one `Inventory` -> PCollection of the dataset's address.
    """

    def __init__(self, preparation: Preparation, plan: Any) -> None:
        super().__init__(preparation)
        self._plan = plan

    def expand(self, shards: Any) -> Any:
        """Returns the dataset's address."""
        # Not the receipts: those of shards may be large.
        names = shards | "Names" >> beam.Map(lambda done: done.task.name)
        return self._plan | "Publish" >> beam.Map(_commit, self._ours, AsIter(names))


def _commit(inventory: Inventory, ours: Preparation, names: Iterable[str]) -> str:
    with reported(ours.lease):
        ours.lease.check()
        tasks = write_tasks(ours.job, inventory)
        receipts = ours.write(inventory).receipts(names)
        _require_all(tasks, receipts)
        output = ours.output
        for receipt in receipts.values():
            output.watch(receipt)
        contents = [receipts[task.name].content for task in tasks]
        commit(ours.job, inventory, output, contents, ours.store)
        return ours.store.where()


def build(pipeline: Any, preparation: Preparation) -> Any:
    """Adds the complete graph to a pipeline; returns the address of the dataset.

    If an earlier job has completed the plan, that plan is used.
    """
    ours = preparation
    inventory = ours.plan.stored()
    if inventory is not None:
        plan = pipeline | "Plan" >> beam.Create([inventory]).with_output_types(Any)
    else:
        plan = (
            pipeline | "Archives" >> Archives(ours) | "Index" >> Index(ours) | "Deal" >> Deal(ours)
        )
    return plan | "Shard" >> Shard(ours) | "Commit" >> Commit(ours, plan)
