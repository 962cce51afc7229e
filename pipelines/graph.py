"""Preparing a data set as one job of Apache Beam: `Archives | Index | Deal | Shard | Commit`.

    archives  PCollection of the pieces of the source that are listed at once
    index     the same, listed; and the lists, class by class
    plan      one `Inventory`, when a plan file for each shard lies beside the data set
    shards    PCollection of receipts
    commit    the address of the data set, when its manifest is there

Only descriptors and receipts go from step to step, never bytes of images. Everything that workers
share lies beside the data set, in its folder or bucket. There each finished step has left its
receipts, so the same graph may be submitted again at any time: it does what is left.

Beam is imported here, so this module is imported only where a job is built or runs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import apache_beam as beam
from apache_beam.pvalue import AsIter, AsSingleton

from imagenet_prep import engine
from imagenet_prep.core import errors
from imagenet_prep.engine import Lease, Stage
from imagenet_prep.engine.transform import Receipts, reported
from imagenet_prep.engine.workers import Done
from imagenet_prep.preparation import box_lists
from imagenet_prep.preparation.config import Config
from imagenet_prep.preparation.inventory import Inventory
from imagenet_prep.preparation.job import (
    Job,
    announce_proven,
    begin,
    commit,
    write_stage,
    write_tasks,
)
from imagenet_prep.preparation.output import Output
from imagenet_prep.preparation.selection import index_stage
from imagenet_prep.preparation.shared_plan import (
    Block,
    Census,
    Facts,
    OfBlock,
    OfClass,
    Rank,
    SharedPlan,
    lines_by_class,
)
from imagenet_prep.preparation.space import Forecast
from imagenet_prep.preparation.tasks import IndexWork
from imagenet_prep.sources.boxes import BoxTask
from imagenet_prep.sources.source import IndexTask, Packed
from imagenet_prep.storage.store import Store, open_store

Task = IndexTask | BoxTask
Lines = tuple[OfClass, bytes]
Entries = tuple[OfBlock, bytes]


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
    def of(cls, config: Config) -> Preparation:
        """Returns what a pipeline of one's own needs; another run at that place loses its lease.

        Raises:
          ImagenetPrepError: what is needed is missing, unreadable or damaged, or the place holds
            another data set.
        """
        job, store = Job.of(config), open_store(config.out)
        Output(store, job.wanted).left()
        return cls(job, store, Lease.take_over(store))

    @cached_property
    def index(self) -> Stage[IndexTask]:
        """The stage that lists images."""
        return index_stage(self.job.selection, self.store)

    @cached_property
    def boxes(self) -> tuple[Stage[BoxTask], box_lists.BoxLookup] | None:
        """The stage that reads annotations, and what finds boxes in them; None without any."""
        annotations = self.job.selection.annotations
        return box_lists.box_stage(annotations, self.store) if annotations else None

    @cached_property
    def plan(self) -> SharedPlan:
        """The steps of making the plan."""
        return SharedPlan(self.job.selection, self.store, self.boxes[1] if self.boxes else None)

    @property
    def output(self) -> Output:
        """The place that is filled."""
        return Output(self.store, self.job.wanted)

    def write(self, inventory: Inventory) -> Stage[Any]:
        """Returns the stage that writes the shards of a plan."""
        return write_stage(self.job, inventory, self.store, self.store)

    def forecast(self, inventory: Inventory) -> Forecast:
        """Returns whether the disk is large enough."""
        job = self.job
        return Forecast(
            job.selection, job.policy, job.workers, self.store, self.store, inventory.folder
        )


class Archives(beam.PTransform):
    """The pieces of the source, and of its annotations, that are read at once.

    PBegin -> PCollection of IndexTask and BoxTask.
    """

    def __init__(self, preparation: Preparation) -> None:
        super().__init__()
        selection = preparation.job.selection
        boxes = selection.annotations.tasks() if selection.annotations else []
        self._tasks: list[Task] = [*selection.index_tasks(), *boxes]

    def expand(self, begin: Any) -> Any:
        """Returns the tasks."""
        return begin | beam.Create(self._tasks).with_output_types(Any)


class Index(beam.PTransform):
    """Lists images and reads bounding boxes, into files beside the data set.

    PCollection of tasks -> {"images": `Done` of the lists, "boxes": `Done` of the annotations,
    "lines": ((split, class index), lines of members)}. A file that is there is not listed again.
    """

    def __init__(self, preparation: Preparation) -> None:
        super().__init__()
        self._preparation = preparation

    def expand(self, tasks: Any) -> Any:
        """Returns the three collections."""
        ours = self._preparation
        images, boxes = tasks | "Kinds" >> beam.Partition(_kind, 2)
        listed = images | "Images" >> Receipts(ours.index, ours.lease)
        # Without annotations there are no tasks, and any stage will do.
        stage = ours.boxes[0] if ours.boxes else ours.index
        return {
            "images": listed,
            "boxes": boxes | "Boxes" >> Receipts(stage, ours.lease),
            "lines": listed | "Lists" >> beam.FlatMap(_lines, ours.index).with_output_types(Lines),
        }


def _kind(task: Task, _: int) -> int:
    return int(isinstance(task, BoxTask))


def _lines(listed: Done, stage: Stage[IndexTask]) -> Iterator[Lines]:
    work = stage.function
    assert isinstance(work, IndexWork)
    yield from lines_by_class(listed.task, stage.store.read(work.member_list(listed.task)))


class Deal(beam.PTransform):
    """Deals the images of each class to shards, and writes a plan file for each shard.

    What `Index` returns -> PCollection of one `Inventory`. Members of a class come together, and
    then those of some neighbouring shards, by GroupByKey; so no worker holds all.
    """

    def __init__(self, preparation: Preparation) -> None:
        super().__init__()
        self._preparation = preparation

    def expand(self, index: Any) -> Any:
        """Returns the plan."""
        ours = self._preparation
        classes = index["lines"] | "ByClass" >> beam.GroupByKey()
        ranks = []
        if ours.job.selection.holdout:
            # A rank has 64 bits without a sign, which Beam's coder of integers refuses.
            ranked = classes | "Ranks" >> beam.FlatMap(_ranks, ours).with_output_types(Any)
            ranks = AsIter(ranked)
        # One element begins what is done once; what it needs comes beside it.
        once = index["images"].pipeline | "Once" >> beam.Create([None])
        census = AsSingleton(
            once
            | "Census"
            >> beam.Map(
                _census, ours, AsIter(index["images"]), AsIter(index["boxes"]), ranks
            ).with_output_types(Any)
        )
        deal = beam.ParDo(_Deal(ours), census)
        dealt = classes | "Deal" >> deal.with_output_types(Entries).with_outputs(
            _Deal.FACTS, main="entries"
        )
        blocks = (
            dealt.entries
            | "ByShards" >> beam.GroupByKey()
            | "Write" >> beam.Map(_write, ours, census).with_output_types(Any)
        )
        return once | "Complete" >> beam.Map(
            _complete, ours, census, AsIter(dealt[_Deal.FACTS]), AsIter(blocks)
        ).with_output_types(Any)


def _ranks(of_class: tuple[OfClass, Iterable[bytes]], ours: Preparation) -> list[Rank]:
    with reported(ours.lease):
        return ours.plan.ranks(*of_class)


def _census(
    _: None, ours: Preparation, listed: Iterable[Done], read: Iterable[Done], ranks: Iterable[Rank]
) -> Census:
    """Returns the counts, when all images are listed and all boxes read, which `deal` looks up."""
    selection = ours.job.selection
    with reported(ours.lease):
        receipts = {each.task.name: each.receipt for each in listed}
        _demand(selection.index_tasks(), receipts)
        if selection.annotations:
            _demand(selection.annotations.tasks(), {each.task.name for each in read})
        return ours.plan.census(receipts, ranks)


def _demand(tasks: Sequence[Any], finished: Collection[str]) -> None:
    """Makes sure that no task was left undone.

    A runner that tries a lost worker's turn again does not do what that worker has claimed.

    Raises:
      JobLostError: another job does the rest.
    """
    if left := sum(task.name not in finished for task in tasks):
        raise errors.JobLostError(f"{left} of {len(tasks)} tasks were left undone")


class _Deal(beam.DoFn):
    FACTS = "facts"

    def __init__(self, preparation: Preparation) -> None:
        self._preparation = preparation

    def process(self, of_class: tuple[OfClass, Iterable[bytes]], census: Census) -> Iterator[Any]:
        with reported(self._preparation.lease):
            facts, blocks = self._preparation.plan.deal(*of_class, census)
        yield beam.pvalue.TaggedOutput(self.FACTS, facts)
        yield from blocks.items()


def _write(block: tuple[OfBlock, Iterable[bytes]], ours: Preparation, census: Census) -> Block:
    with reported(ours.lease):
        return ours.plan.write(*block, census)


def _complete(
    _: None, ours: Preparation, census: Census, facts: Iterable[Facts], blocks: Iterable[Block]
) -> Inventory:
    with reported(ours.lease):
        ours.lease.check()
        return ours.plan.complete(census, [*facts], [*blocks])


class Shard(beam.PTransform):
    """Reads, decodes, resizes and writes the images of each shard; reads archives for their md5.

    PCollection of one `Inventory` -> PCollection of `Done`, one a shard or archive.
    """

    def __init__(self, preparation: Preparation) -> None:
        super().__init__()
        self._preparation = preparation

    def expand(self, plan: Any) -> Any:
        """Returns what is done."""
        ours = self._preparation
        stage = AsSingleton(plan | "Stage" >> beam.Map(ours.write).with_output_types(Any))
        tasks = plan | "Shards" >> beam.FlatMap(_begin, ours).with_output_types(Any)
        return tasks | "Images" >> Receipts(stage, ours.lease)


def _begin(inventory: Inventory, ours: Preparation) -> list[Any]:
    with reported(ours.lease):
        begin(ours.job, inventory, ours.forecast(inventory), ours.output)
        return [*write_tasks(ours.job, inventory)]


class Commit(beam.PTransform):
    """Proves that every shard is there, and publishes the manifest.

    PCollection of `Done` -> PCollection of one address, that of the data set.

    Args:
      plan: PCollection of the one `Inventory` that the shards are of.
    """

    def __init__(self, preparation: Preparation, plan: Any) -> None:
        super().__init__()
        self._preparation = preparation
        self._plan = plan

    def expand(self, shards: Any) -> Any:
        """Returns the address."""
        names = shards | "Names" >> beam.Map(_name)
        return self._plan | "Publish" >> beam.Map(_commit, self._preparation, AsIter(names))


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
        commit(ours.job, inventory, output, [receipts[task.name] for task in tasks])
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


def run(job: Job, output: Output) -> None:
    """Runs the graph until the data set is committed; a lost job is followed by another.

    Raises:
      UsageError: the images would be unpacked where not all workers can read them.
      ImagenetPrepError: of the class and with the message of the first task that failed.
      IncompleteError: jobs were lost on end without finishing a task.
    """
    store, selection = output.store, job.selection
    if store.as_folder is None and isinstance(selection.source, Packed):
        raise errors.UsageError(
            f"{selection.where} must be unpacked where all workers can read it: give --out "
            "a folder that they share, then put it into the bucket by imagenet-prep replicate"
        )
    announce_proven(job)
    ours = Preparation(job, store, Lease(store, ""))
    log = ours.index.log("runner")
    jobs = engine.Jobs(store, job.workers.beam_args, "prepare", log, quiet=job.quiet)
    with contextlib.closing(_Progress(ours, output)) as progress:
        jobs.run(lambda p, lease: build(p, replace(ours, lease=lease)), progress.collect)


class _Progress:
    """Follows the receipts of one stage after the other, wherever they are made."""

    def __init__(self, preparation: Preparation, output: Output) -> None:
        self._ours = preparation
        self._output = output
        self._stage: engine.Followed | None = None
        self._next = [self._index, *([self._boxes] if preparation.boxes else []), self._shards]
        self._finished = 0

    def collect(self) -> tuple[int, bool]:
        """Returns how many tasks are finished, and whether these are all."""
        while self._next:
            # The shards are known when there is a plan.
            self._stage = self._stage or self._next[0]()
            if self._stage is None:
                break
            self._stage.collect()
            if self._stage.left:
                return self._finished + len(self._stage.receipts), False
            self._finished += len(self._stage.receipts)
            self.close()
            del self._next[0]
        return self._finished, not self._next

    def close(self) -> None:
        """Removes the progress bar."""
        if self._stage is not None:
            self._stage.close()
            self._stage = None

    def _index(self) -> engine.Followed:
        job = self._ours.job
        tasks = job.selection.index_tasks()
        return engine.Followed(self._ours.index, tasks, title="index", quiet=job.quiet)

    def _boxes(self) -> engine.Followed | None:
        job, boxes = self._ours.job, self._ours.boxes
        annotations = job.selection.annotations
        if boxes is None or annotations is None:
            return None
        return engine.Followed(boxes[0], annotations.tasks(), title="boxes", quiet=job.quiet)

    def _shards(self) -> engine.Followed | None:
        ours = self._ours
        if (inventory := ours.plan.found()) is None:
            return None
        return engine.Followed(
            ours.write(inventory),
            write_tasks(ours.job, inventory),
            title="write",
            watch=self._output.watch,
            quiet=ours.job.quiet,
        )
