"""Plans a dataset: lists the images, checks the counts and assigns each image to a shard.

Workers list the images. Then one process makes the plan in memory, on this machine or on a worker
of a cluster: it selects images, divides and sorts them as rows of arrays, and copies the lines of
the lists into one plan file per shard.
"""

from __future__ import annotations

import contextlib
import hashlib
import heapq
import itertools
import math
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from imagenet_prep import engine
from imagenet_prep.core import strict_json
from imagenet_prep.core.errors import SourceError, UsageError, some
from imagenet_prep.core.terminal import counted
from imagenet_prep.dataset import class_list, schema
from imagenet_prep.dataset.keys import KeyList, ListedFile, Lookup
from imagenet_prep.dataset.member import (
    NO_BOXES,
    Boxes,
    Member,
    damaged_list,
    dump_member,
    parse_members,
)
from imagenet_prep.dataset.settings import Recipe
from imagenet_prep.preparation.joined_lists import BoxLookup, JoinedLists, joined_lists, read_boxes
from imagenet_prep.preparation.selection import Selection, index_stage
from imagenet_prep.preparation.space import require_space_for_plan
from imagenet_prep.preparation.tasks import (
    PLAN_FOLDER,
    SHARED_PLANS,
    UNPACKED,
    ListedCounts,
    hash_of,
    plan_name,
)
from imagenet_prep.shards import plan
from imagenet_prep.shards.commit import num_per_class
from imagenet_prep.shards.plan import Array, SplitPlan
from imagenet_prep.sources.labels import check_validation
from imagenet_prep.sources.source import IndexTask, sorted_by_key
from imagenet_prep.storage.local_file import storage_errors
from imagenet_prep.storage.remote import Check, unchecked
from imagenet_prep.storage.store import Store, read_note


class Share(NamedTuple):
    """The part of a source split that becomes an output split, before images are excluded."""

    split: str
    num_per_class: Sequence[int]
    num_shards: int


class Division(NamedTuple):
    """The output splits that are made from a source split."""

    kept: Share
    held_out: Share | None

    @property
    def shares(self) -> list[Share]:
        """All output splits."""
        return [self.kept] if self.held_out is None else [self.kept, self.held_out]


def divide(selection: Selection, split: str, used: Sequence[int]) -> Division:
    """Returns the division of a source split; `used` is the number of images by class index."""

    def share(name: str, counts: Sequence[int]) -> Share:
        return Share(name, counts, selection.shards_of(name, sum(counts)))

    new = selection.recipe.held_out_split
    if split != schema.TRAIN or new is None:
        return Division(share(split, used), None)
    held_out = _held_out(selection.recipe, used)
    kept = list(map(operator.sub, used, held_out))
    return Division(share(split, kept), share(new, held_out))


def _held_out(recipe: Recipe, used: Sequence[int]) -> list[int]:
    amount = recipe.holdout.partition(" ")[0]
    flag = f"--holdout {amount}"
    most = recipe.holdout_per_class
    if most:
        flag = f"--holdout-per-class {most}"
        out = [min(most, count // 2) for count in used]
    elif amount.endswith("%"):
        percent = float(amount[:-1])
        out = [min(max(1, round(count * percent / 100)), max(0, count - 1)) for count in used]
    else:
        flag = f"--holdout {int(amount):,}"
        out = _apportioned(int(amount), used)
    if not any(out):
        raise UsageError(f"{flag}: no class has more than one image, so no image can be taken out")
    return out


def _apportioned(number: int, used: Sequence[int]) -> list[int]:
    """Returns how many of `number` images to take from each class, in proportion to its size.

    The Huntington-Hill method adds one image at a time, so a larger `number` includes all images of
    a smaller one. A class with two images gives one before any class gives two, and keeps one.
    """
    most = sum(max(0, count - 1) for count in used)
    if number > most:
        raise UsageError(
            f"--holdout {number:,}: expected at most {most:,}, since train has "
            f"{counted(sum(used), 'image')} and must keep one image of each class"
        )
    out = [0] * len(used)
    # The first heap entry is the class with the largest ratio of its size to its held-out images.
    waiting = [(-math.inf, -count, index) for index, count in enumerate(used) if count > 1]
    heapq.heapify(waiting)
    for _ in range(number):
        _, _, index = heapq.heappop(waiting)
        out[index] += 1
        count = used[index]
        given = out[index]
        if given < count - 1:
            heapq.heappush(waiting, (-count * count / (given * (given + 1)), -count, index))
    return out


# From this number of tars or folders, processes list them: threads would share one core.
_WORTH_PROCESSES_PIECES = 4000
# Rows whose members are in memory.
_ROWS_AT_ONCE = 1 << 16
# Plan files in memory; a shared store writes them at the same time.
_FILES_AT_ONCE = 32
_NOTE = "plan.json"

# Writes some files, given as pairs of name and content.
WriteFiles = Callable[[Sequence[tuple[str, bytes]]], None]


@dataclass(frozen=True)
class Inventory:
    """The plan of the shards to be written; its files are in `folder` of the dataset."""

    plans: list[SplitPlan]
    taken: dict[str, int]  # number of images by source part; for annotations, of images with boxes
    edition: str
    folder: str
    md5: dict[str, str]  # of parts that were read completely to list them, by name
    excluded: dict[str, int]  # number of images that --exclude lists, by split

    @property
    def shard_names(self) -> list[str]:
        """The names of the shards of all splits."""
        return [*itertools.chain.from_iterable(split.shard_names for split in self.plans)]

    @property
    def examples(self) -> int:
        """The number of images in all shards."""
        return sum(split.examples for split in self.plans)

    def excluded_members(self, store: Store) -> Iterator[tuple[str, list[Member]]]:
        """Yields the excluded images of each split; `store` has the files of the plan."""
        for split in self.excluded:
            lines = store.read(_excluded_name(self.folder, split), most=plan.MOST_BYTES)
            yield split, parse_members(lines)


def _excluded_name(folder: str, split: str) -> str:
    return f"{folder}/excluded-{split}.jsonl"


class ChosenRows(NamedTuple):
    """The chosen images of a source split, as rows of its lists."""

    lists: JoinedLists
    is_stored: Array  # whether an image is chosen and not excluded, by row
    shares: list[tuple[Share, Array]]  # rows by output split, sorted by class and hash


def take_inventory(
    selection: Selection, out: Store, workers: engine.Workers, *, quiet: bool, unpack: bool = True
) -> Inventory:
    """Writes the plan files of dataset `out`; if `unpack`, also unpacks packed images to disk."""
    store = out.local
    # Remove files of an earlier run, which may have filled the disk, and untrusted links.
    store.remove_tree(PLAN_FOLDER)
    # Excluded images are also recognised by their bytes.
    unpack = unpack or bool(selection.exclusions and selection.exclusions.listed.files)
    stage = index_stage(selection, store, unpack=unpack)
    tasks = selection.index_tasks()
    listing = listing_workers(workers, tasks)
    receipts = engine.run(stage, tasks, listing, quiet=quiet)
    lookup = read_boxes(selection.annotations, store, listing, quiet=quiet)
    store.make_folder(PLAN_FOLDER)
    # The lists and their entries are the last outputs of each task.
    files = itertools.chain.from_iterable(receipt.outputs[-2:] for receipt in receipts)
    num_bytes = sum(file.num_bytes for file in files) + (lookup.num_bytes if lookup else 0)
    listed = [receipt.content for receipt in receipts]
    del receipts  # they need 40 MB for ImageNet-21K
    # The lists are copied into one file, and then into plan files.
    require_space_for_plan(
        out, sum(sum(piece.num_per_class.values()) for piece in listed), 2 * num_bytes
    )

    def write(files: Sequence[tuple[str, bytes]]) -> None:
        for name, data in files:
            # The file is not synced to disk, since it can be made again at any time.
            path = store.path(name)
            with storage_errors("write", path):
                path.write_bytes(data)

    planner = Planner(selection, lookup, store, PLAN_FOLDER)
    return planner.make(tasks, listed, stage.folder, write)


def listing_workers(workers: engine.Workers, tasks: Sequence[IndexTask]) -> engine.Workers:
    """Returns threads for few classes, since listing is I/O-bound, or processes for many."""
    num_pieces = sum(len(task.simple_tasks) for task in tasks)
    many = num_pieces >= _WORTH_PROCESSES_PIECES and workers.kind != engine.THREADS
    return engine.Workers(workers.num, engine.PROCESSES if many else engine.THREADS)


def remove_unpacked(store: Store, keep: Selection | None = None) -> None:
    """Removes unpacked images except `keep`'s. If `keep` is None, also removes shared plans."""
    if keep is not None:
        for name in {*store.local.list_folder(UNPACKED)} - {keep.index_digest[:16]}:
            store.local.remove_tree(f"{UNPACKED}/{name}")
        return
    store.local.remove_tree(UNPACKED)
    for name in () if store.as_folder else store.list_folder(schema.WORK):
        if name.startswith(SHARED_PLANS):
            store.remove_tree(f"{schema.WORK}/{name}")


@dataclass(frozen=True)
class Planner:
    """Makes a plan in `folder` of the dataset `store`, once all images are listed."""

    selection: Selection
    lookup: BoxLookup | None
    store: Store
    folder: str

    def make(
        self,
        tasks: Sequence[IndexTask],
        listed: Sequence[ListedCounts],
        lists: str,
        write: WriteFiles,
    ) -> Inventory:
        """Makes the plan from what the tasks have `listed`; `write` gets the plan files.

        The lists are in the folder `lists`. Raises SourceError if images are missing.
        """
        selection = self.selection
        source = selection.source
        num_classes = len(source.classes.wnids)
        pieces = [*zip(tasks, listed, strict=True)]
        counts = {split: self._count(split, pieces) for split in selection.splits}
        totals = {split: sum(numbers) for split, numbers in counts.items()}
        edition = class_list.recognised(
            source.classes, totals, [part.name for part in source.parts]
        )
        if not edition:
            self._require_all(counts, pieces)
        used = {split: self._used(split, numbers) for split, numbers in counts.items()}
        divisions = {split: divide(selection, split, numbers) for split, numbers in used.items()}
        if source.evaluation is not None:
            edition = source.evaluation.edition.name
        # A part that is not a file has no md5.
        files = {part.name for part in source.parts if part.path is not None}
        md5 = {task.part: piece.md5 for task, piece in pieces if piece.md5 and task.part in files}
        taken = Counter[str]()
        excluded: dict[str, int] = {}
        plans: list[SplitPlan] = []
        with contextlib.ExitStack() as stack:
            choices = []
            for split, division in divisions.items():
                of_split = [task for task in tasks if task.split == split]
                joined = stack.enter_context(
                    joined_lists(
                        self.store, lists, of_split, num_classes, ranked=selection.divides_train
                    )
                )
                if joined.num_per_class != counts[split]:
                    raise damaged_list("its numbers of images by class differ from its receipt")
                choice = self._choose(split, joined, used[split], division)
                taken.update(self._taken(split, choice))
                self._check_labels(joined.labelled)
                choices.append(choice)
            if selection.exclusions:
                images = _images(zip(divisions, choices, strict=True))
                selection.exclusions.check(f"the images selected from {selection.where}", images)
            for choice in choices:
                excluded |= self._write_excluded(choice, write)
                plans += self._written(choice, write)
        return Inventory(plans, dict(taken), edition, self.folder, md5, excluded)

    def _count(self, split: str, pieces: Sequence[tuple[IndexTask, ListedCounts]]) -> list[int]:
        listed = [piece.num_per_class for task, piece in pieces if task.split == split]
        return num_per_class(listed, len(self.selection.source.classes.wnids))

    def _require_all(
        self,
        counts: Mapping[str, Sequence[int]],
        pieces: Sequence[tuple[IndexTask, ListedCounts]],
    ) -> None:
        source = self.selection.source
        for split, numbers in counts.items():
            num_images = Counter[str]()
            for task, piece in pieces:
                if task.split == split:
                    num_images[task.part] += sum(piece.num_per_class.values())
            problems = [
                *source.count_problems(split, numbers),
                *source.file_problems(num_images),
            ]
            if problems and not self.selection.any_counts:
                remedy = (
                    "Get the missing part, or pass --allow-subset to prepare an incomplete dataset."
                )
                if source.if_own:
                    remedy += f" {source.if_own}"
                raise SourceError(
                    f"{self.selection.where}: incomplete: {'; '.join(problems)}. {remedy}"
                )

    def _used(self, split: str, numbers: Sequence[int]) -> list[int]:
        """Returns the number of selected images by class index."""
        selection = self.selection
        most = selection.recipe.subset_per_class
        used = [
            min(count, most or count) if index in selection.classes else 0
            for index, count in enumerate(numbers)
        ]
        if not any(used):
            raise UsageError(f"{split}: has no images of the selected classes")
        return used

    def _choose(
        self, split: str, lists: JoinedLists, used: Sequence[int], division: Division
    ) -> ChosenRows:
        def keys_of(rows: Array) -> list[str]:
            members = lists.members(rows)
            # Refuses equal keys; sorted, so that the message does not depend on the lists' order.
            sorted_by_key(sorted(members), self.selection.where)
            return [member.key for member in members]

        class_index = lists.column("class_index")
        rows = plan.first_of_each_class(class_index, lists.column("hash"), used, keys_of)
        is_stored = np.zeros(len(class_index), dtype=bool)
        is_stored[rows] = True
        self._exclude(split, lists, is_stored)
        kept, held_out = division
        if held_out is None:
            return ChosenRows(lists, is_stored, [(kept, rows)])
        places = plan.first_of_each_class(
            class_index[rows],
            lists.column("rank")[rows],
            held_out.num_per_class,
            lambda places: keys_of(rows[places]),
        )
        is_held_out = np.zeros(len(rows), dtype=bool)
        is_held_out[places] = True
        shares = [(kept, rows[~is_held_out]), (held_out, rows[is_held_out])]
        return ChosenRows(lists, is_stored, shares)

    def _exclude(self, split: str, lists: JoinedLists, is_stored: Array) -> None:
        """Clears `is_stored` for the images that --exclude lists; others keep their positions.

        Only files of a listed size are read.
        """
        exclusions = self.selection.exclusions
        if exclusions is None:
            return
        named = exclusions.named[split]
        excluded = [*self._exclude_forgotten(exclusions, split, lists, is_stored)]
        hashes = plan.hashes(self.selection.recipe.seed, [*named]).tolist()
        for row, member in _stored(lists, "hash", hashes, is_stored):
            if member.key in named:
                is_stored[row] = False
                excluded.append(member.key)
        for row, member, file in self._recognised(exclusions.listed, split, lists, is_stored):
            is_stored[row] = False
            excluded.append(member.key)
            exclusions.recognise(split, member.key, file)
        exclusions.lines(split, excluded)

    def _exclude_forgotten(
        self, exclusions: Lookup, split: str, lists: JoinedLists, is_stored: Array
    ) -> Iterator[str]:
        """Clears `is_stored` for the keys of forgotten images, and yields them."""
        if exclusions.listed.salts:
            rows = np.flatnonzero(is_stored)
            for row, member in zip(rows.tolist(), lists.members(rows), strict=True):
                if exclusions.salt_of(split, member.key):
                    is_stored[row] = False
                    yield member.key

    def _recognised(
        self, listed: KeyList, split: str, lists: JoinedLists, is_stored: Array
    ) -> Iterator[tuple[int, Member, ListedFile]]:
        """Yields stored rows that a list names by their bytes."""
        sizes = {file.num_bytes for file in listed.files.values()}
        images = self.selection.images(self.store.local) if sizes else None
        if images is not None:
            for row, member in _stored(lists, "size", sizes, is_stored):
                file = listed.find(split, hash_of(member, images))
                if file is not None:
                    yield row, member, file

    def _taken(self, split: str, choice: ChosenRows) -> Counter[str]:
        """Counts stored images per source part, and those with boxes, which it adds to lines."""
        taken = Counter[str]()
        lists = choice.lists
        by_task = plan.split_rows(choice.is_stored, lists.num_rows)
        for task, is_stored in zip(lists.tasks, by_task, strict=True):
            taken[task.part] += int(is_stored.sum())
        if self.lookup is not None and split in self.lookup.parts:
            wnids = self.selection.source.classes.wnids
            by_class = [plan.split_rows(rows, share.num_per_class) for share, rows in choice.shares]
            for wnid, *rows_of_class in zip(wnids, *by_class, strict=True):
                rows = np.concatenate(rows_of_class)
                rows = rows[choice.is_stored[rows]]
                boxes = self.lookup.of(split, wnid) if len(rows) else {}
                taken[self.lookup.parts[split].name] += _add_boxes(lists, rows, boxes)
        return taken

    def _check_labels(self, labelled: Mapping[tuple[int, int], str]) -> None:
        selection = self.selection
        class_of: dict[str, int] = {}
        for (class_index, _), key in labelled.items():
            if class_of.setdefault(key, class_index) != class_index:
                raise SourceError(f"{selection.where}: the image {key!r} is in two classes")
        if not selection.source.is_export:
            check_validation(selection.source.classes, class_of, selection.where)

    def _write_excluded(self, choice: ChosenRows, write: WriteFiles) -> dict[str, int]:
        """Writes the excluded images of the output splits; returns their numbers."""
        excluded = {}
        for share, rows in choice.shares:
            excluded_rows = rows[~choice.is_stored[rows]]
            if len(excluded_rows):
                lines = choice.lists.read(excluded_rows)
                write([(_excluded_name(self.folder, share.split), b"".join(lines))])
                excluded[share.split] = len(lines)
        return excluded

    def _written(self, choice: ChosenRows, write: WriteFiles) -> Iterator[SplitPlan]:
        """Writes the plan files of the output splits of one source split."""
        lists = choice.lists
        order = lists.column("order")
        for share, rows in choice.shares:
            is_stored = choice.is_stored[rows]
            _refuse_empty(share, is_stored)
            is_in_share = np.zeros_like(choice.is_stored)
            is_in_share[rows] = is_stored
            source_bytes = lists.num_bytes(is_in_share)
            by_class = plan.split_rows(is_stored, share.num_per_class)
            counts = tuple(int(numbers.sum()) for numbers in by_class)
            digest = hashlib.sha256()
            for first in range(0, share.num_shards, _FILES_AT_ONCE):
                files = []
                for shard in range(first, min(first + _FILES_AT_ONCE, share.num_shards)):
                    dealt = rows[shard :: share.num_shards]
                    data = _lines(dealt[choice.is_stored[dealt]], order, lists)
                    name = schema.shard_name(share.split, shard, share.num_shards)
                    files.append((plan_name(name, self.folder), data))
                    digest.update(data)
                write(files)
            yield SplitPlan(share.split, share.num_shards, counts, source_bytes, digest.hexdigest())


def _images(chosen: Iterable[tuple[str, ChosenRows]]) -> Iterator[tuple[str, str]]:
    """Yields the split and key of each stored image."""
    for split, choice in chosen:
        rows = np.flatnonzero(choice.is_stored)
        for first in range(0, len(rows), _ROWS_AT_ONCE):
            for member in choice.lists.members(rows[first : first + _ROWS_AT_ONCE]):
                yield split, member.key


def _stored(
    lists: JoinedLists, field: str, values: Sequence[int] | set[int], is_stored: Array
) -> Iterator[tuple[int, Member]]:
    """Yields the rows that have one of these values, if they are stored, and their members."""
    rows = lists.rows_with(field, values)
    rows = rows[is_stored[rows]]
    yield from zip(rows.tolist(), lists.members(rows), strict=True)


def _add_boxes(lists: JoinedLists, rows: Array, boxes: Mapping[str, Boxes]) -> int:
    """Adds the boxes, by image name, to the lines of their images; returns the number of images."""
    boxed = 0
    for row, member in zip(rows, lists.members(rows) if boxes else (), strict=False):
        found = boxes.get(member.filename.rpartition(".")[0], NO_BOXES)
        if found.xmin:
            lists.replace(int(row), dump_member(member._replace(boxes=found)))
            boxed += 1
    return boxed


def _lines(rows: Array, order: Array, lists: JoinedLists) -> bytes:
    """Returns the lines of the images of a shard in the order of their records."""
    rows = rows[np.argsort(order[rows])]
    lines = lists.read(rows)
    places = order[rows]
    if (places[1:] == places[:-1]).any():
        # Of equal hashes, the lower key comes first.
        lines = [line for _, line in sorted(zip(places.tolist(), lines, strict=True))]
    return b"".join(lines)


def _refuse_empty(share: Share, is_stored: Array) -> None:
    """Raises UsageError if a shard of a split has no images; `is_stored` is in dealing order."""
    excluded = np.flatnonzero(~is_stored) % share.num_shards
    # Only shards with an excluded image can be empty.
    empty = [
        schema.shard_name(share.split, shard, share.num_shards)
        for shard in np.unique(excluded).tolist()
        if not is_stored[shard :: share.num_shards].any()
    ]
    if empty:
        raise UsageError(f"--exclude leaves no image in {some(empty)}. Request fewer shards.")


@dataclass(frozen=True)
class SharedPlan:
    """The plan that one worker of a cluster makes for all; picklable.

    Its files are in the `.work` folder of the dataset. The note `plan.json` is written last and
    marks the plan as complete.
    """

    planner: Planner

    @classmethod
    def of(cls, selection: Selection, store: Store, lookup: BoxLookup | None) -> SharedPlan:
        """Returns the plan for a selection; different plans have different folders."""
        digest = strict_json.digest(
            [
                selection.index_digest,
                selection.identity,
                selection.recipe,
                selection.any_counts,
            ]
        )
        folder = f"{schema.WORK}/{SHARED_PLANS}{digest[:16]}"
        return cls(Planner(selection, lookup, store, folder))

    def make(
        self,
        tasks: Sequence[IndexTask],
        listed: Sequence[ListedCounts],
        lists: str,
        check: Check = unchecked,
    ) -> Inventory:
        """Makes the plan, see `Planner`, and writes its note; calls `check` before it writes."""
        store = self.planner.store
        with ThreadPoolExecutor(_FILES_AT_ONCE) as pool:

            def write(files: Sequence[tuple[str, bytes]]) -> None:
                check()
                for _ in pool.map(lambda file: store.write(*file), files):
                    pass

            inventory = self.planner.make(tasks, listed, lists, write)
        check()
        store.write(f"{inventory.folder}/{_NOTE}", strict_json.dumps(inventory))
        return inventory

    def stored(self) -> Inventory | None:
        """Returns the plan if it is complete."""
        store = self.planner.store
        folder = self.planner.folder
        files = set(store.names(folder))
        if _NOTE not in files:
            return None
        # The note may be from elsewhere: it must not lead to a different folder.
        inventory = replace(read_note(store, f"{folder}/{_NOTE}", Inventory), folder=folder)
        is_complete = files.issuperset(map(plan.file_name, inventory.shard_names))
        return inventory if is_complete else None
