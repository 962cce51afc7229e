"""The images of a source that a command selects, and the number of shards for them."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from imagenet_prep import engine
from imagenet_prep.core import address, strict_json
from imagenet_prep.core.errors import UsageError
from imagenet_prep.core.terminal import counted
from imagenet_prep.dataset import schema
from imagenet_prep.dataset.keys import KeyList, Lookup
from imagenet_prep.dataset.settings import Recipe
from imagenet_prep.preparation.tasks import UNPACKED, IndexWork, ListedCounts
from imagenet_prep.sources import boxes
from imagenet_prep.sources.folder import FolderSource
from imagenet_prep.sources.source import (
    IndexTask,
    MemberReader,
    Packed,
    Source,
    SourcePart,
    StoredSource,
)
from imagenet_prep.storage.archive import ArchiveReader
from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.storage.store import Store, is_inside, same_place

# Enough for all workers, and a killed run loses little. ILSVRC2012 has 1,001: one per class, and
# one for validation.
_MOST_TASKS = 1024


@dataclass(frozen=True)
class Selection:
    """The images of a source that a recipe selects, and the number of shards for them."""

    source: Source
    where: str
    recipe: Recipe
    annotations: boxes.Annotations | None
    classes: frozenset[int]  # indices of the selected classes
    any_counts: bool  # accept counts other than the published ones
    exclusions: Lookup | None = None  # applied last, so that all other images stay in their shards
    listed_anew: bool = False  # list images again, even if an earlier run has stored a list

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits of the source, in order."""
        return self.recipe.source_splits

    @property
    def is_subset(self) -> bool:
        """Whether the numbers of images may differ from the published ones."""
        return self.any_counts or self.divides_train or self.recipe.excluded is not None

    @property
    def divides_train(self) -> bool:
        """Whether images are moved from train to a different split."""
        return self.recipe.held_out_split is not None

    @property
    def is_part(self) -> bool:
        """Whether only some classes, or some images per class, are selected."""
        all_classes = len(self.source.classes.wnids)
        return bool(self.recipe.subset_per_class) or len(self.classes) < all_classes

    @cached_property
    def parts(self) -> tuple[SourcePart, ...]:
        """The source parts that contain the images and the boxes."""
        parts_of_boxes = self.annotations.parts.values() if self.annotations else ()
        return (*self.source.parts, *parts_of_boxes)

    @cached_property
    def identity(self) -> str:
        """A digest that changes if a file of the source changes."""
        boxes_of = self.annotations.digest if self.annotations else None
        return strict_json.digest([self.source.identity, boxes_of])

    @cached_property
    def index_digest(self) -> str:
        """A digest of everything that determines the lists of members and their entries."""
        # Only the selected classes are unpacked, so the unpacked files depend on them.
        chosen = sorted(self.classes) if isinstance(self.source, Packed) else None
        hashed = [self.recipe.seed, self.divides_train]
        return strict_json.digest([*self.source.identity, chosen, hashed, self.listed_anew])

    def index_tasks(self) -> list[IndexTask]:
        """Returns the tasks that list the images of the selected classes.

        If there are more than `_MOST_TASKS`, such as one per class, they are combined: each costs
        four files. Tasks of packed sources are not, since one may need gigabytes of memory.
        """
        tasks = [
            task
            for task in itertools.chain.from_iterable(map(self.source.index_tasks, self.splits))
            if task.class_index is None or task.class_index in self.classes
        ]
        most = -(-len(tasks) // _MOST_TASKS)
        return tasks if most <= 1 or isinstance(self.source, Packed) else _combined(tasks, most)

    def images(self, store: LocalStore) -> MemberReader:
        """Returns a reader for members, either in the source or unpacked in `store`."""
        if isinstance(self.source, StoredSource):
            return self.source.images
        folder = store.path(f"{UNPACKED}/{self.index_digest[:16]}")
        files = {task.name: folder / task.name for task in self.source.tasks}
        return MemberReader(ArchiveReader(files))

    def shards_of(self, split: str, examples: int) -> int:
        """Returns the number of shards of an output split."""
        like = {schema.HOLDOUT: schema.TRAIN, schema.TEST: schema.VALIDATION}.get(split, split)
        recipe = self.recipe
        requested = {
            schema.TRAIN: recipe.train_shards,
            schema.VALIDATION: recipe.validation_shards,
        }.get(split)
        official = schema.DEFAULT_NUM_SHARDS[like]
        if requested is None:
            per_shard = -(-schema.OFFICIAL_NUM_EXAMPLES[like] // official)
            return min(official, -(-examples // per_shard))
        if requested > examples:
            raise UsageError(
                f"--{split}-shards {requested}: expected at most {counted(examples, 'shard')}, one "
                f"for each image of {split}, since no shard may be empty"
            )
        return requested


def _combined(tasks: Sequence[IndexTask], most: int) -> list[IndexTask]:
    """Combines up to `most` successive tasks of the same split and part."""
    combined = []
    for (split, part), group in itertools.groupby(tasks, operator.attrgetter("split", "part")):
        of_part = tuple(group)
        for start in range(0, len(of_part), most):
            pieces = of_part[start : start + most]
            # A run that selects other classes combines others, so it must not take this list.
            digest = strict_json.digest(pieces)
            name = f"{pieces[0].name}-{digest[:16]}"
            combined.append(IndexTask(name, split, part, pieces=pieces))
    return combined


def exclusions_of(listed: KeyList, recipe: Recipe) -> Lookup:
    """Returns the lookup of excluded images by source split."""
    source_splits = recipe.source_splits
    # The list may also name images of splits that this run does not read.
    names = source_splits if schema.TEST in source_splits else schema.SOURCE_SPLITS
    new = recipe.held_out_split
    # The output splits of train share one set of keys, so each of them names an image of train.
    split_of = {} if new is None else {new: schema.TRAIN}
    known = [name for name in names if name not in split_of]
    return Lookup(listed, known, source_splits, split_of)


def index_stage(
    selection: Selection, store: Store, *, unpack: bool = True
) -> engine.Stage[IndexTask, ListedCounts]:
    """Returns the stage that lists the images and, if `unpack`, unpacks packed images to disk."""
    digest = selection.index_digest
    folder = f"{schema.WORK}/index-{digest[:16]}"
    unpacked = f"{UNPACKED}/{digest[:16]}" if unpack else None
    work = IndexWork(
        selection.source,
        store,
        folder,
        unpacked,
        selection.classes,
        selection.recipe.seed,
        ranked=selection.divides_train,
    )
    return engine.Stage("index", digest, store, work, ListedCounts)


def refuse_source_as_output(out: str, where: str, source: Source) -> None:
    """Raises UsageError if the output is the source or one of its image folders."""
    places = []
    for text in (out, where):
        is_remote = address.is_remote(text)
        places.append(text.rstrip("/") if is_remote else str(Path(text).expanduser()))
    advice = "The source is never changed. Choose a different folder for the dataset."
    if same_place(*places):
        raise UsageError(f"--out {out} is the source itself. {advice}")
    if isinstance(source, FolderSource) and not address.is_remote(out):
        for folder in source.split_folders:
            if is_inside(places[0], str(folder)):
                raise UsageError(
                    f"--out {out} is inside {folder}, among the images of the source, and the next "
                    f"run would treat it as a class. {advice}"
                )
