"""Preparing a data set as one job of Apache Beam: `Archives | Index | Deal | Shard | Commit`.

Only descriptors and receipts go from step to step, never bytes of images. Everything that workers
share lies beside the data set, in its folder or bucket. There each finished step has left its
receipts, so the same graph may be submitted again at any time: it does what is left.

Beam is imported here, so this module is imported only where a job is built or runs. In the clone,
examples/beam_pipeline.py is a pipeline of one's own with these steps.
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
from imagenet_prep.preparation.shared_plan import BlockKey, SharedPlan, ShareKey, share_of
from imagenet_prep.preparation.tasks import Listed, member_list
from imagenet_prep.preparation.writing import begin, commit, write_stage, write_tasks
from imagenet_prep.sources.boxes import BoxTask
from imagenet_prep.sources.source import IndexTask
from imagenet_prep.storage.store import Store, open_store

__all__ = ["Archives", "Commit", "Deal", "Index", "Preparation", "Shard"]

# The second output of dealing.
_FACTS = "facts"
# Beam sends keys on as such tuples. Its coder of any type would pickle the type with each key.
_Key = tuple[str, int]


@dataclass(frozen=True)
class Preparation:
    """What all steps of one job share; picklable.

    Attributes:
      job: what is to be prepared.
      store: the folder or bucket of the data set.
      lease: of this job.
    """

    job: Job
    store: Store
    lease: Lease

    @classmethod
    def of(cls, flags: Sequence[str]) -> Preparation:
        """Returns what a pipeline of one's own needs; another run at that place loses its lease.

        Args:
          flags: of `imagenet-prep prepare`, word by word; Beam's options come behind "--". Wrong
            ones end the process with exit code 2 and a message, as on a command line.

        Raises:
          ImagenetPrepError: what is needed is missing, unreadable or damaged, or the place holds
            another data set.
        """
        config = parse(Config, flags, verb="prepare")
        job, store = Job.of(config), open_store(config.out)
        output = Output(store, job.wanted)
        output.left()
        demand_same_source(job, output)
        return cls(job, store, Lease.take_over(store))

    @property
    def beam_args(self) -> Sequence[str]:
        """The options for Apache Beam, word by word, for its `PipelineOptions`."""
        return self.job.workers.beam_args

    @cached_property
    def index(self) -> Stage[IndexTask, Listed]:
        """The stage that lists images."""
        return index_stage(self.job.selection, self.store)

    @cached_property
    def boxes(self) -> tuple[Stage[BoxTask, box_lists.ReadBoxes], box_lists.BoxLookup] | None:
        """The stage that reads annotations, and the lookup of boxes in them; None without any."""
        annotations = self.job.selection.annotations
        return box_lists.box_stage(annotations, self.store) if annotations else None

    @cached_property
    def plan(self) -> SharedPlan:
        """The steps of making the plan."""
        boxes = self.boxes
        return SharedPlan.of(self.job.selection, self.store, boxes[1] if boxes else None)

    @property
    def output(self) -> Output:
        """The place that is filled."""
        return Output(self.store, self.job.wanted)

    def write(self, inventory: Inventory) -> Stage[Any, Any]:
        """Returns the stage that writes the shards of a plan."""
        return write_stage(self.job, inventory, self.store, self.store)


class _Step(beam.PTransform):
    def __init__(self, preparation: Preparation) -> None:
        super().__init__()
        self._ours = preparation


class OneKeyAtATime(beam.DoFn):
    """Calls a function of an element, `Preparation` and a side input; yields its results.

    A step that declares state, even without using it, gets one key at a time from Beam's runner for
    Flink. Other steps of a batch job get all elements of a slot, a hundred messages ahead, and
    their results are taken at the end; until then they fill the memory of the TaskManager.
    """

    _STATE = beam.DoFn.StateParam(BagStateSpec("unused", BytesCoder()))

    def __init__(self, step: Callable[..., Iterable[Any]], preparation: Preparation) -> None:
        self._call = step
        self._ours = preparation

    def process(self, element: Any, beside: Any = None, _state: Any = _STATE) -> Iterable[Any]:
        return self._call(element, self._ours, beside)


class Archives(_Step):
    """The pieces of the source, and of its annotations, that are read at once.

    PBegin -> PCollection of IndexTask and BoxTask.
    """

    def expand(self, begin: Any) -> Any:
        """Returns the tasks."""
        selection = self._ours.job.selection
        boxes = selection.annotations.tasks if selection.annotations else []
        return begin | beam.Create([*selection.index_tasks(), *boxes]).with_output_types(Any)


class Index(_Step):
    """Lists images and reads bounding boxes, into files beside the data set.

    PCollection of tasks -> {"images": `Done` of the lists, "boxes": `Done` of the annotations,
    "lists": ((split, class index), name of a list of members of that class, in the store)}. A file
    that is there is not listed again.

    What is listed class by class goes on by name alone. Lines of lists of several classes come
    together by GroupByKey, and make a list for each class.
    """

    def expand(self, tasks: Any) -> Any:
        """Returns the three collections."""
        ours = self._ours
        images, boxes = tasks | "Kinds" >> beam.Partition(_kind, 2)
        listed = images | "Images" >> Receipts(ours.index, ours.lease)
        of_one, mixed = listed | "Listed" >> beam.Partition(_is_mixed, 2)
        gathered = (
            mixed
            | "Pieces" >> beam.Map(_piece).with_output_types(tuple[str, Any])
            | "Lines"
            >> beam.ParDo(OneKeyAtATime(_lines, ours)).with_output_types(tuple[_Key, bytes])
            | "ByClass" >> beam.GroupByKey()
            | "Gather" >> beam.Map(_gather, ours).with_output_types(tuple[_Key, str])
        )
        names = of_one | "Names" >> beam.Map(_list, ours.index).with_output_types(tuple[_Key, str])
        # Without annotations there are no tasks, and any stage will do.
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


def _piece(listed: Done) -> tuple[str, IndexTask]:
    return listed.task.name, listed.task


def _lines(
    piece: tuple[str, IndexTask], ours: Preparation, _: None
) -> Iterator[tuple[ClassKey, bytes]]:
    _name, task = piece
    with ours.store.opened(member_list(ours.index.folder, task)) as lines:
        yield from lines_by_class(task.split, lines)


def _gather(of_class: tuple[_Key, Iterable[bytes]], ours: Preparation) -> tuple[ClassKey, str]:
    key = ClassKey(*of_class[0])
    with reported(ours.lease):
        return key, ours.plan.gather(key, of_class[1])


class Deal(_Step):
    """Deals the images of each class to shards, and writes a plan file for each shard.

    What `Index` returns -> PCollection of one `Inventory`. The members of some neighbouring classes
    are read from their lists and dealt; those of some neighbouring shards come together by
    GroupByKey. So no worker holds all.
    """

    def expand(self, index: Any) -> Any:
        """Returns the plan."""
        ours = self._ours
        # One element starts steps that run once; their data are side inputs.
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
    """Returns the counts, when all images are listed and all boxes read, which `deal` looks up."""
    selection = ours.job.selection
    with reported(ours.lease):
        tasks = selection.index_tasks()
        receipts = {each.task.name: each.receipt for each in listed}
        _demand(tasks, receipts)
        if selection.annotations:
            _demand(selection.annotations.tasks, {each.task.name for each in read})
        counts = ours.plan.count(tasks, [receipts[task.name].content for task in tasks])
        return ours.plan.census(counts)


def _demand(tasks: Sequence[Any], finished: Collection[str]) -> None:
    """Makes sure that no task was left undone.

    A runner that repeats the turn of a lost worker does not do the tasks that this one had claimed;
    after JobLostError, another job does them.
    """
    if left := sum(task.name not in finished for task in tasks):
        raise errors.JobLostError(f"{left} of {len(tasks)} tasks were left undone")


def _share(listed: tuple[_Key, str], census: Census) -> tuple[ShareKey, tuple[_Key, str]]:
    return share_of(ClassKey(*listed[0]), census), listed


def deal_share(
    share: tuple[_Key, Iterable[tuple[_Key, str]]], ours: Preparation, census: Census
) -> Iterator[Any]:
    """Yields the blocks of a share, and the facts of its classes with a tag."""
    lists = ((ClassKey(*key), name) for key, name in share[1])
    with reported(ours.lease):
        found, blocks = ours.plan.deal_share(lists, census)
    for facts in found:
        yield beam.pvalue.TaggedOutput(_FACTS, facts)
    yield from blocks.items()


def _write(
    block: tuple[_Key, Iterable[bytes]], ours: Preparation, census: Census
) -> list[ShardKey]:
    with reported(ours.lease):
        return ours.plan.write(BlockKey(*block[0]), block[1], census)


def _complete(
    _: None, ours: Preparation, census: Census, facts: Iterable[Facts], filled: Iterable[_Key]
) -> Inventory:
    with reported(ours.lease):
        ours.lease.check()
        return ours.plan.complete(census, [*facts], {ShardKey(*shard) for shard in filled})


class Shard(_Step):
    """Reads, decodes, resizes and writes the images of each shard; reads archives for their md5.

    PCollection of one `Inventory` -> PCollection of `Done`, one a shard or archive.
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
    """Proves that every shard is there, and publishes the manifest.

    PCollection of `Done` -> PCollection of one address, that of the data set.

    Args:
      plan: PCollection of the one `Inventory` that the shards are of.
    """

    def __init__(self, preparation: Preparation, plan: Any) -> None:
        super().__init__(preparation)
        self._plan = plan

    def expand(self, shards: Any) -> Any:
        """Returns the address."""
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
    """Puts the whole graph into a pipeline; returns the address of the data set.

    A plan that an earlier job has completed is not made again.
    """
    ours = preparation
    if found := ours.plan.found():
        plan = pipeline | "Plan" >> beam.Create([found]).with_output_types(Any)
    else:
        plan = (
            pipeline | "Archives" >> Archives(ours) | "Index" >> Index(ours) | "Deal" >> Deal(ours)
        )
    return plan | "Shard" >> Shard(ours) | "Commit" >> Commit(ours, plan)
