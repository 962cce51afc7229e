"""From a source to plans: list the images, check the counts, deal them out to shards."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from imagenet_prep import engine
from imagenet_prep.core import canonical
from imagenet_prep.core.errors import SourceError, UsageError
from imagenet_prep.dataset import naming, schema
from imagenet_prep.dataset.member import NO_BOXES, Boxes, Member, parse_member
from imagenet_prep.preparation.job import Job
from imagenet_prep.preparation.tasks import PLAN_FOLDER, UNPACKED, BoxWork, IndexWork
from imagenet_prep.shards import plan
from imagenet_prep.sources import boxes, labels, source
from imagenet_prep.sources.source import IndexTask
from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.storage.store import Store


class Inventory(NamedTuple):
    """What is to be written.

    Attributes:
      plans: of the splits; their files lie in the plan folder.
      taken: images by name of the part they come from; of annotations, images with boxes.
    """

    plans: list[plan.SplitPlan]
    taken: Counter[str]


def take_inventory(job: Job, out: Store, *, quiet: bool, unpack: bool = True) -> Inventory:
    """Writes the plan files of all splits below `out`, and unpacks what must be unpacked.

    A bucket's are made on this machine, whatever runs elsewhere afterwards: lists of images are
    small, and each request for one takes as long as reading it.

    Args:
      job: the request.
      out: the data set.
      quiet: show no progress.
      unpack: False to look only, so that nothing large is written.

    Raises:
      SourceError: the source is damaged, or is not whole and no subset was asked for.
      UsageError: more shards than images, or no image of the chosen classes.
    """
    store = out.local
    stage, tasks = index_stage(job, store, unpack=unpack)
    # Reading headers waits for the disk, so threads do; processes would only start twice.
    workers = dataclasses.replace(job.workers, kind=engine.THREADS)
    packed = isinstance(job.source, source.Packed)
    if store is not out and job.workers.remote and packed:
        raise UsageError(
            f"{job.config.source} must be unpacked where all workers can read it: give --out "
            "a folder that they share, then put it into the bucket by imagenet-prep replicate"
        )
    if not packed:
        # A cluster takes longer to begin than this machine to read the headers.
        workers = dataclasses.replace(workers, beam_args=())
    receipts = engine.run(stage, tasks, workers, title="index", quiet=quiet)
    lookup = _read_boxes(job, store, workers, quiet=quiet)
    # Of an earlier run, or planted: nothing in it is written through.
    store.remove_tree(PLAN_FOLDER)
    store.make_folder(PLAN_FOLDER)
    plans = []
    taken: Counter[str] = Counter()
    for split in _splits(job):
        mine = [(t, r) for t, r in zip(tasks, receipts, strict=True) if t.split == split]
        examples = _count(job, split, [receipt for _, receipt in mine])
        work = stage.function
        assert isinstance(work, IndexWork)
        lists = [(task, store.path(work.member_list(task))) for task, _ in mine]
        members = _Members(job, lists, lookup)
        plans.append(
            plan.write(
                store.path(PLAN_FOLDER),
                split,
                members,
                num_classes=len(job.source.classes.wnids),
                num_shards=_num_shards(job, split, examples),
                seed=job.config.seed,
            )
        )
        taken += members.taken
    return Inventory(plans, taken)


def index_stage(
    job: Job, store: LocalStore, *, unpack: bool = True
) -> tuple[engine.Stage[IndexTask], list[IndexTask]]:
    """Returns what lists the images, and its tasks."""
    digest = job.index_digest
    tasks = [
        task
        for split in _splits(job)
        for task in job.source.index_tasks(split)
        if task.class_index is None or task.class_index in job.chosen
    ]
    work = IndexWork(
        job.source,
        store,
        f"{naming.WORK}/index-{digest[:16]}/members",
        f"{UNPACKED}/{digest[:16]}" if unpack else None,
        job.chosen,
    )
    return engine.Stage("index", digest, store, work), tasks


def _splits(job: Job) -> list[str]:
    return [split for split in schema.SPLITS if split in job.config.splits]


def _count(job: Job, split: str, receipts: Sequence[dict[str, Any]]) -> int:
    """Returns how many members are used, after checking how many there are."""
    counts = [0] * len(job.source.classes.wnids)
    for receipt in receipts:
        for index, count in receipt["num_per_class"].items():
            counts[int(index)] += count
    problems = job.source.count_problems(split, counts)
    if problems and not job.config.asks_for_subset:
        raise SourceError(
            f"{job.config.source}: not whole: {'; '.join(problems)}. "
            "Get the missing part, or pass --allow-subset if this is what you want."
        )
    limit = job.config.subset_per_class
    used = sum(
        min(count, limit or count) for index, count in enumerate(counts) if index in job.chosen
    )
    if not used:
        raise UsageError(f"{split}: no image of the chosen classes")
    return used


class _BoxLookup:
    """The boxes that were read, found class by class.

    Attributes:
      parts: what they come from, by split.
    """

    def __init__(self, store: LocalStore, work: BoxWork, parts: dict[str, source.Part]) -> None:
        self.parts = parts
        self._store = store
        self._work = work
        # All of validation is one list, which every class asks for.
        self._last_list = functools.lru_cache(maxsize=1)(self._list)

    def of(self, split: str, wnid: str) -> dict[str, Boxes]:
        """Returns the boxes by stem: of a class of train, or of all of validation."""
        return self._last_list(split, wnid if split == schema.TRAIN else split)

    def _list(self, split: str, group: str) -> dict[str, Boxes]:
        path = self._store.path(self._work.box_list(split, group))
        return boxes.parse(path.read_bytes(), str(path)) if path.is_file() else {}


def _read_boxes(
    job: Job, store: LocalStore, workers: engine.Workers, *, quiet: bool
) -> _BoxLookup | None:
    if job.annotations is None:
        return None
    digest = canonical.digest(job.annotations.identity)
    work = BoxWork(store, f"{naming.WORK}/boxes-{digest[:16]}/lists")
    stage = engine.Stage("boxes", digest, store, work)
    receipts = engine.run(stage, job.annotations.tasks(), workers, title="boxes", quiet=quiet)
    total = {name: sum(r[name] for r in receipts) for name in ("images", "boxes", "dropped")}
    if not quiet:
        print(
            f"boxes: {total['boxes']:,} in {total['images']:,} annotations; {total['dropped']:,} "
            "more without an area were dropped",
            file=sys.stderr,
        )
    return _BoxLookup(store, work, job.annotations.parts)


class _Members:
    """The chosen members of one split, class by class in class-index order, with their boxes.

    Attributes:
      taken: images by name of the part that they come from; of annotations, images with boxes.
        Complete when iteration has ended.
    """

    def __init__(
        self, job: Job, lists: Sequence[tuple[IndexTask, Path]], lookup: _BoxLookup | None
    ) -> None:
        self.taken: Counter[str] = Counter()
        self._job = job
        self._lists = lists
        self._split = lists[0][0].split
        self._lookup = lookup if lookup is not None and self._split in lookup.parts else None
        # What was unpacked lies in a file named after its task.
        self._part_of = {task.name: task.part for task, _ in lists}
        # Class index by number, of images named as ILSVRC2012's validation is.
        self._numbers: dict[int, int] = {}

    def __iter__(self) -> Iterator[list[Member]]:
        """Yields the members of each chosen class that has some.

        Raises:
          SourceError: an image comes twice, or the validation labels are not ILSVRC2012's.
        """
        where = self._job.config.source
        for index, lines in enumerate(self._lines()):
            members = source.sorted_by_key(map(parse_member, lines.splitlines()), where)
            self._note_numbers(members)
            if index not in self._job.chosen or not members:
                continue
            if limit := self._job.config.subset_per_class:
                members = plan.permute(members, self._job.config.seed)[:limit]
            self._count(members)
            yield self._with_boxes(members)
        labels.check_validation(self._job.source.classes, self._numbers, where)

    def _lines(self) -> Iterator[bytes | bytearray]:
        """Yields the members of each class as lines, since 1.28 million objects take a gigabyte."""
        one_class: dict[int, Path] = {}
        mixed: dict[int, bytearray] = {}
        for task, path in self._lists:
            if task.class_index is not None:
                one_class[task.class_index] = path
                continue
            for line in path.read_bytes().splitlines(keepends=True):
                mixed.setdefault(parse_member(line).class_index, bytearray()).extend(line)
        for index in range(len(self._job.source.classes.wnids)):
            yield one_class[index].read_bytes() if index in one_class else mixed.pop(index, b"")

    def _note_numbers(self, members: Sequence[Member]) -> None:
        for member in members:
            match = source.VALIDATION_NAME.match(member.key)
            if match is None:
                continue
            noted = self._numbers.setdefault(int(match[1]), member.class_index)
            if noted != member.class_index:
                raise SourceError(
                    f"{self._job.config.source}: {member.key!r} comes twice, in two classes"
                )

    def _count(self, members: Sequence[Member]) -> None:
        default = self._lists[0][0].part
        self.taken.update(self._part_of.get(member.archive, default) for member in members)

    def _with_boxes(self, members: list[Member]) -> list[Member]:
        if self._lookup is None:
            return members
        wnid = self._job.source.classes.wnids[members[0].class_index]
        found = self._lookup.of(self._split, wnid)
        boxed = [
            member._replace(boxes=found.get(member.filename.rpartition(".")[0], NO_BOXES))
            for member in members
        ]
        part = self._lookup.parts[self._split].name
        self.taken[part] += sum(bool(member.boxes.xmin) for member in boxed)
        return boxed


def _num_shards(job: Job, split: str, examples: int) -> int:
    """Returns the shards asked for, or as many as keep the official examples a shard."""
    asked: int | None = getattr(job.config, f"{split}_shards")
    official = schema.DEFAULT_NUM_SHARDS[split]
    if asked is None:
        per_shard = -(-schema.OFFICIAL_NUM_EXAMPLES[split] // official)
        return min(official, -(-examples // per_shard))
    if asked > examples:
        raise UsageError(
            f"--{split}-shards {asked}: there are {examples:,} images, and no shard may be empty"
        )
    return asked
