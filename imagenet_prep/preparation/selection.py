"""The images of a source that a command selects, and the number of shards for them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from imagenet_prep import engine
from imagenet_prep.core import address, canonical
from imagenet_prep.core.canonical import Json
from imagenet_prep.core.errors import UsageError
from imagenet_prep.core.terminal import counted
from imagenet_prep.dataset import naming, schema
from imagenet_prep.dataset.keys import KeyList, Lookup
from imagenet_prep.preparation.tasks import UNPACKED, IndexWork, Listed
from imagenet_prep.sources import boxes
from imagenet_prep.sources.folder import Folder
from imagenet_prep.sources.member_reader import MemberReader
from imagenet_prep.sources.source import IndexTask, Packed, Part, Source, Stored
from imagenet_prep.storage.archive import ArchiveReader
from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.storage.store import Store, is_inside, same_place


@dataclass(frozen=True)
class Selection:
    """The selected images, and the number of shards for them."""

    source: Source
    where: str
    annotations: boxes.Annotations | None
    splits: tuple[str, ...]  # of the source, in order
    classes: frozenset[int]  # indices of the selected classes
    per_class: int | None  # maximum number of images per class, chosen by the seed; None for all
    any_counts: bool  # accept counts other than the published ones
    num_shards: dict[str, int | None]  # by split; None for the official number of images per shard
    seed: int
    holdout: int = 0  # number of images to move from train to the split holdout
    holdout_percent: float = 0.0  # or percentage of each class to move there
    holdout_per_class: int = 0  # images of each class to move from train to validation
    excluded: KeyList | None = None  # excluded last, so that all other images stay in their shards
    listed_anew: bool = False  # list images again, even if an earlier run has stored a list

    @property
    def is_subset(self) -> bool:
        """Whether the numbers of images may differ from the published ones."""
        moved = self.holds_out or self.holdout_per_class
        return bool(self.any_counts or moved or self.excluded)

    @property
    def is_part(self) -> bool:
        """Whether only some classes, or some images per class, are selected."""
        return bool(self.per_class or len(self.classes) < len(self.source.classes.wnids))

    @property
    def holds_out(self) -> bool:
        """Whether images are moved from train to the split holdout."""
        return bool(self.holdout or self.holdout_percent)

    @cached_property
    def exclusions(self) -> Lookup | None:
        """The lookup of excluded images by source split; None without a list."""
        if self.excluded is None:
            return None
        sources = self.splits if schema.TEST in self.splits else schema.SOURCE_SPLITS
        # The output splits of train share one set of keys, so each of them names an image of train.
        split_of: dict[str, str] = {}
        if self.holds_out:
            split_of = {schema.HOLDOUT: schema.TRAIN}
        if self.holdout_per_class:
            sources = (schema.TRAIN,)
            split_of = {schema.VALIDATION: schema.TRAIN}
        return Lookup(self.excluded, sources, self.splits, split_of)

    @property
    def excluded_summary(self) -> Json | None:
        """The number of excluded images, and the sha256 of their list, as the manifest has them."""
        if self.excluded is None or self.exclusions is None:
            return None
        return {"images": self.exclusions.num_images, "sha256": self.excluded.sha256}

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """The source parts that contain the images and the boxes."""
        return (*self.source.parts, *(self.annotations.parts.values() if self.annotations else ()))

    @cached_property
    def identity(self) -> str:
        """A digest that changes if a file of the source changes."""
        boxes_of = self.annotations.digest if self.annotations else None
        return canonical.digest([self.source.identity, boxes_of])

    @cached_property
    def index_digest(self) -> str:
        """A digest of everything that determines the lists of members."""
        # Only the selected classes are unpacked, so the unpacked files depend on them.
        chosen = sorted(self.classes) if isinstance(self.source, Packed) else None
        return canonical.digest([*self.source.identity, chosen, *["anew"] * self.listed_anew])

    def index_tasks(self) -> list[IndexTask]:
        """Returns the tasks that list the images of the selected classes."""
        return [
            task
            for split in self.splits
            for task in self.source.index_tasks(split)
            if task.class_index is None or task.class_index in self.classes
        ]

    def images(self, store: LocalStore) -> MemberReader:
        """Returns a reader for members, either in the source or unpacked in `store`."""
        if isinstance(self.source, Stored):
            return self.source.images
        folder = store.path(f"{UNPACKED}/{self.index_digest[:16]}")
        files = {task.name: folder / task.name for task in self.source.tasks}
        return MemberReader(ArchiveReader(files))

    def shards_of(self, split: str, examples: int) -> int:
        """Returns the number of shards of an output split."""
        like = {schema.HOLDOUT: schema.TRAIN, schema.TEST: schema.VALIDATION}.get(split, split)
        requested = self.num_shards.get(split)
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


def index_stage(
    selection: Selection, store: Store, *, unpack: bool = True
) -> engine.Stage[IndexTask, Listed]:
    """Returns the stage that lists the images and, if `unpack`, unpacks packed images to disk."""
    digest = selection.index_digest
    folder = f"{naming.WORK}/index-{digest[:16]}"
    unpacked = f"{UNPACKED}/{digest[:16]}" if unpack else None
    work = IndexWork(selection.source, store, folder, unpacked, selection.classes)
    return engine.Stage("index", digest, store, work, Listed)


def refuse_source_as_output(out: str, where: str, source: Source) -> None:
    """Raises UsageError if the output is the source or one of its image folders."""
    places = [
        text.rstrip("/") if address.is_remote(text) else str(Path(text).expanduser())
        for text in (out, where)
    ]
    advice = "The source is never changed. Choose a different folder for the dataset."
    if same_place(*places):
        raise UsageError(f"--out {out} is the source itself. {advice}")
    if isinstance(source, Folder) and not address.is_remote(out):
        for folder in source.split_folders:
            if is_inside(places[0], str(folder)):
                raise UsageError(
                    f"--out {out} is inside {folder}, among the images of the source, and the next "
                    f"run would treat it as a class. {advice}"
                )
