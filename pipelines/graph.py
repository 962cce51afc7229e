"""Prepares a dataset as one job of Apache Beam: `Archives | Index | Deal | Shard | Commit`.

Steps exchange only descriptors and receipts, never image bytes. Workers share files next to the
dataset, in its folder or bucket. Each finished task has a receipt there, so the same graph can be
submitted again at any time: it only does the remaining work.

This module imports Beam, so import it only to build or run a job. In the clone,
examples/beam_pipeline.py is a custom pipeline with these steps.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import apache_beam as beam
from apache_beam.coders import BytesCoder
from apache_beam.pvalue import AsIter, AsSingleton
from apache_beam.transforms.userstate import BagStateSpec

from imagenet_prep.core import errors
from imagenet_prep.core.flags import parse
from imagenet_prep.engine import Lease, Stage
from imagenet_prep.engine.transform import Receipts, reported
from imagenet_prep.engine.workers import Done
from imagenet_prep.preparation import box_lists
from imagenet_prep.preparation.config import Config
from imagenet_prep.preparation.dealing import Facts, ShardKey
from imagenet_prep.preparation.job import Job
from imagenet_prep.preparation.output import Output
from imagenet_prep.preparation.planning import Census, ClassKey, Inventory, lines_by_class
from imagenet_prep.preparation.provenance import demand_same_source
from imagenet_prep.preparation.selection import index_stage
from imagenet_prep.preparation.shared_plan import GroupKey, SharedPlan, share_of
from imagenet_prep.preparation.tasks import Listed, member_list
from imagenet_prep.preparation.writing import begin, commit, write_stage, write_tasks
from imagenet_prep.sources.boxes import BoxTask
from imagenet_prep.sources.source import IndexTask
from imagenet_prep.storage.store import Store, open_store

__all__ = ["Archives", "Commit", "Deal", "Index", "Preparation", "Shard"]

_FACTS = "facts"
# Keys are plain tuples: for a NamedTuple, Beam's generic coder would pickle the type with each key.
_Key = tuple[str, int]


@dataclass(frozen=True)
class Preparation:
    """The job, and the store and lease of its dataset. All steps share this picklable object."""

    job: Job
    store: Store
    lease: Lease

    @classmethod
    def of(cls, flags: Sequence[str]) -> Preparation:
        """Checks the flags, and takes over the lease from an earlier run on this dataset.

        `flags` are those of `imagenet-prep prepare` as a list, with Beam's options after "--".
        Invalid flags end the process with exit code 2 and a message. Raises ImagenetPrepError if an
        input is missing, unreadable or damaged, or if the output is a different dataset.
        """
        config = parse(Config, flags, verb="prepare")
        job = Job.of(config)
        store = open_store(config.out)
        output = Output(store, job.wanted)
        output.left()
        demand_same_source(job, output)
        return cls(job, store, Lease.acquire(store))

    @property
    def beam_args(self) -> Sequence[str]:
        """The arguments for Apache Beam's `PipelineOptions`, one list item each."""
        return self.job.workers.beam_args

    @cached_property
    def index(self) -> Stage[IndexTask, Listed]:
        """The stage that lists images."""
        return index_stage(self.job.selection, self.store)

    @cached_property
    def boxes(self) -> tuple[Stage[BoxTask, box_lists.ReadBoxes], box_lists.BoxLookup] | None:
        """The stage that reads annotations, and a function that looks up boxes; or None."""
        annotations = self.job.selection.annotations
        return box_lists.box_stage(annotations, self.store) if annotations else None

    @cached_property
    def plan(self) -> SharedPlan:
        """The functions that build the plan in parallel."""
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


class OneKeyAtATime(beam.DoFn):
    """Calls a function with an element, `Preparation` and a side input; yields its results.

    Beam's Flink runner gives one key at a time to a step that declares state, even unused state.
    Without state, all results of a slot would be in the TaskManager's memory at the same time.
    """

    _STATE = beam.DoFn.StateParam(BagStateSpec("unused", BytesCoder()))

    def __init__(self, step: Callable[..., Iterable[Any]], preparation: Preparation) -> None:
        self._call = step
        self._ours = preparation

    def process(self, element: Any, side: Any = None, _state: Any = _STATE) -> Iterable[Any]:
        return self._call(element, self._ours, side)


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

    PCollection of tasks -> {"images": `Done` of the lists, "boxes": `Done` of the annotations,
    "lists": pairs of (split, class index) and the name of a file that lists images of the class}.
    Lists that exist are not made again.

    For a list with a single class, the file name is passed on. The lines of a list with several
    classes are collected into one list per class by GroupByKey.
    """

    def expand(self, tasks: Any) -> Any:
        """Returns the collections "images", "boxes" and "lists"."""
        ours = self._ours
        images, boxes = tasks | "Kinds" >> beam.Partition(_kind, 2)
        listed = images | "Images" >> Receipts(ours.index, ours.lease)
        of_one, mixed = listed | "Listed" >> beam.Partition(_is_mixed, 2)
        gathered = (
            mixed
            | "Pieces" >> beam.Map(_keyed).with_output_types(tuple[str, Any])
            | "Lines"
            >> beam.ParDo(OneKeyAtATime(_lines, ours)).with_output_types(tuple[_Key, bytes])
            | "ByClass" >> beam.GroupByKey()
            | "Gather" >> beam.Map(_gather, ours).with_output_types(tuple[_Key, str])
        )
        names = of_one | "Names" >> beam.Map(_list, ours.index).with_output_types(tuple[_Key, str])
        # Without annotations there are no tasks, but Beam still needs a stage here.
        stage = ours.boxes[0] if ours.boxes else ours.index
        return {
            "images": listed,
            "boxes": boxes | "Boxes" >> Receipts(stage, ours.lease),
            "lists": (names, gathered) | "Lists" >> beam.Flatten(),
        }


def _kind(task: IndexTask | BoxTask, _: int) -> int:
    return int(isinstance(task, BoxTask))


def _is_mixed(listed: Done, _: int) -> int:
    return int(listed.task.class_index is None)


def _list(listed: Done, stage: Stage[IndexTask, Listed]) -> tuple[ClassKey, str]:
    task = listed.task
    return ClassKey(task.split, task.class_index), member_list(stage.folder, task)


def _keyed(listed: Done) -> tuple[str, IndexTask]:
    return listed.task.name, listed.task


def _lines(
    keyed: tuple[str, IndexTask], ours: Preparation, _: None
) -> Iterator[tuple[ClassKey, bytes]]:
    task = keyed[1]
    with ours.store.open_file(member_list(ours.index.folder, task)) as lines:
        yield from lines_by_class(task.split, lines)


def _gather(of_class: tuple[_Key, Iterable[bytes]], ours: Preparation) -> tuple[ClassKey, str]:
    key = ClassKey(*of_class[0])
    with reported(ours.lease):
        return key, ours.plan.gather(key, of_class[1])


class Deal(_Step):
    """Assigns the images of each class to shards, and writes a plan file for each shard.

    Output of `Index` -> PCollection of one `Inventory`. A worker assigns the images of a few
    adjacent classes, or writes the plan of a few adjacent shards, so it never needs all images.
    """

    def expand(self, index: Any) -> Any:
        """Returns the `Inventory`."""
        ours = self._ours
        # Steps that run once start from one element; their data are side inputs.
        once = index["images"].pipeline | "Once" >> beam.Create([None])
        census = AsSingleton(
            once
            | "Census"
            >> beam.Map(
                take_census, ours, AsIter(index["images"]), AsIter(index["boxes"])
            ).with_output_types(Any)
        )
        deal = beam.ParDo(OneKeyAtATime(deal_share, ours), census).with_output_types(
            tuple[_Key, bytes]
        )
        dealt = (
            index["lists"]
            | "Shares" >> beam.Map(_share, census).with_output_types(tuple[_Key, tuple[_Key, str]])
            | "ByShare" >> beam.GroupByKey()
            | "Deal" >> deal.with_outputs(_FACTS, main="entries")
        )
        filled = (
            dealt.entries
            | "ByShards" >> beam.GroupByKey()
            | "Write" >> beam.ParDo(OneKeyAtATime(_write, ours), census).with_output_types(_Key)
        )
        return once | "Complete" >> beam.Map(
            _complete, ours, census, AsIter(dealt[_FACTS]), AsIter(filled)
        ).with_output_types(Any)


def take_census(_: None, ours: Preparation, listed: Iterable[Done], read: Iterable[Done]) -> Census:
    """Counts the images for `deal_share`, after all images are listed and all boxes are read."""
    selection = ours.job.selection
    with reported(ours.lease):
        tasks = selection.index_tasks()
        receipts = {done.task.name: done.receipt for done in listed}
        _demand(tasks, receipts)
        if selection.annotations:
            _demand(selection.annotations.tasks, {done.task.name for done in read})
        return ours.plan.count(tasks, [receipts[task.name].content for task in tasks])


def _demand(tasks: Sequence[Any], finished: Collection[str]) -> None:
    """Raises JobLostError if a lost worker has left tasks undone, so that a new job does them."""
    if missing := sum(task.name not in finished for task in tasks):
        raise errors.JobLostError(f"{missing} of {len(tasks)} tasks are not finished")


def _share(listed: tuple[_Key, str], census: Census) -> tuple[GroupKey, tuple[_Key, str]]:
    return share_of(ClassKey(*listed[0]), census), listed


def deal_share(
    share: tuple[_Key, Iterable[tuple[_Key, str]]], ours: Preparation, census: Census
) -> Iterator[Any]:
    """Yields `Facts` of a few classes as a tagged output, and (block of shards, plan lines)."""
    lists = ((ClassKey(*key), name) for key, name in share[1])
    with reported(ours.lease):
        dealt, blocks = ours.plan.deal_share(lists, census)
    for facts in dealt:
        yield beam.pvalue.TaggedOutput(_FACTS, facts)
    yield from blocks.items()


def _write(
    block: tuple[_Key, Iterable[bytes]], ours: Preparation, census: Census
) -> list[ShardKey]:
    with reported(ours.lease):
        return ours.plan.write(GroupKey(*block[0]), block[1], census)


def _complete(
    _: None, ours: Preparation, census: Census, facts: Iterable[Facts], filled: Iterable[_Key]
) -> Inventory:
    with reported(ours.lease):
        ours.lease.check()
        return ours.plan.complete(census, [*facts], {ShardKey(*shard) for shard in filled})


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
        names = shards | "Names" >> beam.Map(_name)
        return self._plan | "Publish" >> beam.Map(_commit, self._ours, AsIter(names))


def _name(shard: Done) -> str:
    return str(shard.task.name)


def _commit(inventory: Inventory, ours: Preparation, names: Iterable[str]) -> str:
    with reported(ours.lease):
        ours.lease.check()
        tasks = write_tasks(ours.job, inventory)
        receipts = ours.write(inventory).receipts(names)
        _demand(tasks, receipts)
        output = ours.output
        for receipt in receipts.values():
            output.watch(receipt)
        commit(ours.job, inventory, output, [receipts[task.name].content for task in tasks])
        return ours.store.where()


def build(pipeline: Any, preparation: Preparation) -> Any:
    """Adds the complete graph to a pipeline; returns the address of the dataset.

    If an earlier job has completed the plan, that plan is used.
    """
    ours = preparation
    if inventory := ours.plan.found():
        plan = pipeline | "Plan" >> beam.Create([inventory]).with_output_types(Any)
    else:
        plan = (
            pipeline | "Archives" >> Archives(ours) | "Index" >> Index(ours) | "Deal" >> Deal(ours)
        )
    return plan | "Shard" >> Shard(ours) | "Commit" >> Commit(ours, plan)
