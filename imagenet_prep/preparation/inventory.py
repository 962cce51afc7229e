"""From a source to plans: lists the images, checks the counts, assigns images to shards."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from imagenet_prep import engine
from imagenet_prep.core import canonical
from imagenet_prep.core.errors import SourceError, UsageError
from imagenet_prep.dataset import naming, schema
from imagenet_prep.dataset.keys import VALIDATION_NAME, KeyList
from imagenet_prep.dataset.member import NO_BOXES, Member, dump_member, parse_members
from imagenet_prep.preparation.box_lists import BoxLookup, read_boxes
from imagenet_prep.preparation.tasks import PLAN_FOLDER, UNPACKED, IndexWork
from imagenet_prep.shards import plan, runs
from imagenet_prep.shards.commit import num_per_class
from imagenet_prep.sources import boxes, editions, labels, source
from imagenet_prep.sources.source import IndexTask, Packed, Part, Reader, Source, Stored
from imagenet_prep.storage.archive import ArchiveReader
from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.storage.store import Store


@dataclass(frozen=True)
class Selection:
    """The images that are wanted, and into how many shards they go.

    Attributes:
      source: where images come from.
      where: the source, for messages.
      annotations: bounding boxes beside it; None if there are none or they are not wanted.
      splits: of the source, in order.
      classes: indices of the classes.
      per_class: at most this many images of each, chosen by the seed; None for all.
      any_counts: accept other counts than the published ones.
      num_shards: by split; None for the official number of examples in each shard.
      seed: decides which image lies in which shard.
      holdout: how many images are taken out of train, as a split of their own.
      holdout_per_class: how many of each class are taken out of train, as validation.
      excluded: the keys whose images are left out at last: all others stay where they were.
    """

    source: Source
    where: str
    annotations: boxes.Annotations | None
    splits: tuple[str, ...]
    classes: frozenset[int]
    per_class: int | None
    any_counts: bool
    num_shards: dict[str, int | None]
    seed: int
    holdout: int = 0
    holdout_per_class: int = 0
    excluded: KeyList | None = None

    @property
    def excluded_keys(self) -> frozenset[str]:
        """The keys whose images are left out."""
        return self.excluded.keys if self.excluded else frozenset()

    @property
    def is_subset(self) -> bool:
        """Whether the splits have other counts than the published ones, or may have."""
        return (
            self.any_counts
            or bool(self.holdout or self.holdout_per_class)
            or self.excluded is not None
        )

    def source_split(self, split: str) -> str:
        """Returns the split of the source that the images of a split come from."""
        return split if split in self.splits else schema.TRAIN

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """The parts that the images and boxes come from."""
        return (*self.source.parts, *(self.annotations.parts.values() if self.annotations else ()))

    @cached_property
    def index_digest(self) -> str:
        """Digest of all that decides the members."""
        # Only the chosen classes are unpacked, so they decide what lies there.
        chosen = sorted(self.classes) if isinstance(self.source, Packed) else None
        return canonical.digest([*self.source.identity, chosen])

    def index_tasks(self) -> list[IndexTask]:
        """Returns the pieces of the source that hold chosen classes."""
        return [
            task
            for split in self.splits
            for task in self.source.index_tasks(split)
            if task.class_index is None or task.class_index in self.classes
        ]

    def reader(self, store: LocalStore) -> Reader:
        """Returns what reads the members, from the source or from what was unpacked in `store`."""
        if isinstance(self.source, Stored):
            return self.source.reader
        tasks = [task for split in self.splits for task in self.source.index_tasks(split)]
        folder = store.path(f"{UNPACKED}/{self.index_digest[:16]}")
        return ArchiveReader({task.name: folder / task.name for task in tasks})

    def shards_of(self, split: str, examples: int) -> int:
        """Returns the number of shards of a split.

        Raises:
          UsageError: more were asked for than there are examples.
        """
        like = schema.source_split(split)
        asked, official = self.num_shards.get(split), schema.DEFAULT_NUM_SHARDS[like]
        if asked is None:
            per_shard = -(-schema.OFFICIAL_NUM_EXAMPLES[like] // official)
            return min(official, -(-examples // per_shard))
        if asked > examples:
            raise UsageError(
                f"--{split}-shards {asked}: there are {examples:,} images, and no shard may be "
                "empty"
            )
        return asked


# From so many tars or folders on, processes list them: threads would share one core.
_WORTH_PROCESSES_TASKS = 4000

# A split to make: its name, its members class by class, and how many they are.
Made = tuple[str, Iterable[list[Member]], int]


class Inventory(NamedTuple):
    """What is to be written.

    Attributes:
      plans: of the splits; their files lie in the plan folder.
      taken: images by name of the part they come from; of annotations, images with boxes.
      edition: of ImageNet, which the source is; see `editions.recognised`.
    """

    plans: list[plan.SplitPlan]
    taken: Counter[str]
    edition: str


def take_inventory(
    selection: Selection, out: Store, workers: engine.Workers, *, quiet: bool, unpack: bool = True
) -> Inventory:
    """Writes the plan files of all splits below `out`, and unpacks images if necessary.

    For a bucket they are written on this machine, also if workers elsewhere use them: lists of
    images are small, and a request for a list takes as long as making it.

    Args:
      selection: which images are wanted.
      out: the data set.
      workers, quiet: as for `engine.run`.
      unpack: False to look only, so that nothing large is written.

    Raises:
      SourceError: the source is damaged, or incomplete although no subset was asked for.
      UsageError: more shards than images, no image of the chosen classes, none left in train or
        in a shard, or keys to exclude that no image has, or two.
    """
    store = out.local
    # It may hold files of an earlier run, which may have filled the disk, or links of a stranger.
    store.remove_tree(PLAN_FOLDER)
    stage = index_stage(selection, store, unpack=unpack)
    tasks = selection.index_tasks()
    workers = _index_workers(selection, out, workers, len(tasks))
    receipts = engine.run(stage, tasks, workers, title="index", quiet=quiet)
    lookup = read_boxes(selection.annotations, store, workers, quiet=quiet)
    store.make_folder(PLAN_FOLDER)
    plans = []
    taken: Counter[str] = Counter()
    unknown = set(selection.excluded_keys)
    edition, used = _count(selection, tasks, receipts)
    for split in selection.splits:
        work = stage.function
        assert isinstance(work, IndexWork)
        lists = [
            (task, store.path(work.member_list(task))) for task in tasks if task.split == split
        ]
        members = _Members(selection, lists, lookup, store.path(PLAN_FOLDER))
        plans += _deal(selection, split, members, used[split], store.path(PLAN_FOLDER))
        members.close()
        taken += members.taken
        if selection.excluded:
            selection.excluded.refuse_ambiguous(members.excluded - unknown)
        unknown -= members.excluded
    if selection.excluded:
        selection.excluded.refuse_unknown(unknown, f"what is taken from {selection.where}")
    return Inventory(plans, taken, edition)


def _deal(
    selection: Selection, split: str, members: _Members, used: Sequence[int], folder: Path
) -> list[plan.SplitPlan]:
    """Writes the plans of a split of the source, and of what is taken out of it."""
    made: list[Made] = [(split, members, sum(used))]
    if split == schema.TRAIN and (selection.holdout or selection.holdout_per_class):
        made = _with_holdout(selection, members, used)
    return [
        plan.write(
            folder,
            name,
            classes,
            num_classes=len(selection.source.classes.wnids),
            num_shards=selection.shards_of(name, number),
            seed=selection.seed,
            excluded=selection.excluded_keys,
        )
        for name, classes, number in made
    ]


def _index_workers(
    selection: Selection, out: Store, workers: engine.Workers, num_tasks: int
) -> engine.Workers:
    """Returns who lists the images; raises UsageError where they could not be unpacked for all."""
    packed = isinstance(selection.source, Packed)
    if out.as_folder is None and workers.remote and packed:
        raise UsageError(
            f"{selection.where} must be unpacked where all workers can read it: give --out "
            "a folder that they share, then put it into the bucket by imagenet-prep replicate"
        )
    # Reading headers waits for the disk, so threads are enough for ILSVRC2012, and they start at
    # once. This machine reads all headers faster than a cluster starts.
    kind = engine.THREADS if num_tasks < _WORTH_PROCESSES_TASKS else engine.PROCESSES
    beam_args = workers.beam_args if packed else ()
    return dataclasses.replace(workers, kind=kind, beam_args=beam_args)


def _with_holdout(selection: Selection, members: _Members, used: Sequence[int]) -> list[Made]:
    """Returns train, and the split that is taken out of it."""
    examples, seed = sum(used), selection.seed
    name, number, most = schema.HOLDOUT, selection.holdout, selection.holdout_per_class
    if most:
        name, number = schema.VALIDATION, sum(min(most, count // 2) for count in used)
        if not number:
            raise UsageError(
                f"--holdout-per-class {most}: no class has two images, so that one could be taken"
            )
    elif number >= examples:
        raise UsageError(
            f"--holdout {number}: train has {examples:,} images, and one must be left in it"
        )
    whole = None if most else plan.hold_out(members, number, seed)

    def halves(part: int) -> Iterator[list[Member]]:
        for of_class in members:
            held = whole or plan.hold_out([of_class], min(most, len(of_class) // 2), seed)
            yield [member for member in of_class if held(member) == part]

    return [(schema.TRAIN, halves(0), examples - number), (name, halves(1), number)]


def index_stage(
    selection: Selection, store: LocalStore, *, unpack: bool = True
) -> engine.Stage[IndexTask]:
    """Returns the stage that lists the images."""
    digest = selection.index_digest
    work = IndexWork(
        selection.source,
        store,
        f"{naming.WORK}/index-{digest[:16]}/members",
        f"{UNPACKED}/{digest[:16]}" if unpack else None,
        selection.classes,
    )
    return engine.Stage("index", digest, store, work, {"num_per_class": {int: int}})


def remove_unpacked(store: LocalStore, keep: Selection | None = None) -> None:
    """Removes unpacked images, except those that the selection `keep` reads."""
    kept = keep.index_digest[:16] if keep else ""
    for folder in store.path(UNPACKED).glob("*"):
        if folder.name != kept:
            store.remove_tree(f"{UNPACKED}/{folder.name}")
    if keep is None:
        store.remove_tree(UNPACKED)


def _count(
    selection: Selection, tasks: Sequence[IndexTask], receipts: Sequence[dict[str, Any]]
) -> tuple[str, dict[str, list[int]]]:
    """Checks how many members there are; returns the edition, and by split how many are used.

    These are by class index, for all classes.
    """
    classes = selection.source.classes
    counts = {
        split: num_per_class(
            [r for t, r in zip(tasks, receipts, strict=True) if t.split == split],
            len(classes.wnids),
        )
        for split in selection.splits
    }
    edition = editions.recognised(
        classes,
        {split: sum(numbers) for split, numbers in counts.items()},
        [part.name for part in selection.source.parts],
    )
    limit = selection.per_class
    used = {}
    for split, numbers in counts.items():
        problems = [] if edition else selection.source.count_problems(split, numbers)
        if problems and not selection.any_counts:
            raise SourceError(
                f"{selection.where}: not whole: {'; '.join(problems)}. "
                "Get the missing part, or pass --allow-subset if this is what you want."
            )
        used[split] = [
            min(count, limit or count) if index in selection.classes else 0
            for index, count in enumerate(numbers)
        ]
        if not any(used[split]):
            raise UsageError(f"{split}: no image of the chosen classes")
    return edition, used


class _Members:
    """The chosen members of one split, class by class in class-index order, with their boxes.

    Attributes:
      taken: images by name of the part that they come from; of annotations, images with boxes.
        Complete after the last class, however often they are read.
      excluded: the keys among them whose images are left out, complete as late.
    """

    def __init__(
        self,
        selection: Selection,
        lists: Sequence[tuple[IndexTask, Path]],
        lookup: BoxLookup | None,
        scratch: Path,
    ) -> None:
        self.taken: Counter[str] = Counter()
        self.excluded: set[str] = set()
        self._selection = selection
        self._lists = lists
        self._split = lists[0][0].split
        self._lookup = lookup if lookup is not None and self._split in lookup.parts else None
        # A file of unpacked images has the name of its task.
        self._part_of = {task.name: task.part for task, _ in lists}
        # Class index by number, for images with names of ILSVRC2012's validation split.
        self._numbers: dict[int, int] = {}
        mixed = (path for task, path in lists if task.class_index is None)
        entries = (
            b"%08d%b" % (member.class_index, dump_member(member))
            for path in mixed
            for member in parse_members(path.read_bytes())
        )
        self._mixed = runs.write(scratch, f"{self._split}.lists", entries)

    def close(self) -> None:
        """Removes the files that lists of several classes were sorted into."""
        for path in self._mixed:
            path.unlink()

    def __iter__(self) -> Iterator[list[Member]]:
        """Yields the members of each chosen class that has some.

        Raises:
          SourceError: an image comes twice, or the validation labels are not ILSVRC2012's.
        """
        where = self._selection.where
        self.taken.clear()
        for index, lines in enumerate(self._lines()):
            members = source.sorted_by_key(parse_members(lines), where)
            self._note_numbers(members)
            if index not in self._selection.classes or not members:
                continue
            if limit := self._selection.per_class:
                members = plan.permute(members, self._selection.seed)[:limit]
            boxed = self._with_boxes(members)
            self._count(boxed)
            yield boxed
        labels.check_validation(self._selection.source.classes, self._numbers, where)

    def _lines(self) -> Iterator[bytes]:
        """Yields the members of each class as lines; only one class is held at a time."""
        one_class = {task.class_index: path for task, path in self._lists}
        mixed = runs.merged(self._mixed)
        waiting = next(mixed, None)
        for index in range(len(self._selection.source.classes.wnids)):
            lines = one_class[index].read_bytes() if index in one_class else b""
            if waiting is not None and waiting[0] == index:
                lines += b"".join(waiting[1])
                waiting = next(mixed, None)
            yield lines

    def _note_numbers(self, members: Sequence[Member]) -> None:
        for member in members:
            match = VALIDATION_NAME.match(member.key)
            if match is None:
                continue
            noted = self._numbers.setdefault(int(match[1]), member.class_index)
            if noted != member.class_index:
                raise SourceError(
                    f"{self._selection.where}: {member.key!r} comes twice, in two classes"
                )

    def _count(self, members: Sequence[Member]) -> None:
        default, excluded = self._lists[0][0].part, self._selection.excluded_keys
        kept = [member for member in members if member.key not in excluded]
        self.excluded.update(member.key for member in members if member.key in excluded)
        self.taken.update(self._part_of.get(member.archive, default) for member in kept)
        if self._lookup is not None:
            part = self._lookup.parts[self._split].name
            self.taken[part] += sum(bool(member.boxes.xmin) for member in kept)

    def _with_boxes(self, members: list[Member]) -> list[Member]:
        if self._lookup is None:
            return members
        wnid = self._selection.source.classes.wnids[members[0].class_index]
        found = self._lookup.of(self._split, wnid)
        return [
            member._replace(boxes=found.get(member.filename.rpartition(".")[0], NO_BOXES))
            for member in members
        ]
