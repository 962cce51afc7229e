"""Lists of bounding boxes by class, made once from annotations and stored in `.work`."""

from __future__ import annotations

import itertools
import sys
from dataclasses import dataclass
from functools import partial

from imagenet_prep import engine
from imagenet_prep.core.regular_file import MOST_LIST_BYTES
from imagenet_prep.core.terminal import counted
from imagenet_prep.dataset import naming, schema
from imagenet_prep.dataset.member import Boxes
from imagenet_prep.sources import boxes, source
from imagenet_prep.storage.folder import LocalStore
from imagenet_prep.storage.local_file import storage_errors
from imagenet_prep.storage.new_file import new_file
from imagenet_prep.storage.store import Store


@dataclass(frozen=True)
class ReadBoxes:
    """Counts: annotations read, boxes read, and boxes dropped because their area is zero."""

    images: int
    boxes: int
    dropped: int


@dataclass
class BoxLookup:
    """Finds the boxes of a class in the lists in `folder`."""

    store: Store
    folder: str
    parts: dict[str, source.Part]  # the sources of the boxes, by split
    num_bytes: int = 0  # total size of all lists
    _last: tuple[str, dict[str, Boxes]] = "", {}

    def of(self, split: str, wnid: str) -> dict[str, Boxes]:
        """Returns the boxes of one train class, or of all validation images, by image name."""
        name = _list_name(self.folder, split, wnid if split == schema.TRAIN else split)
        # All classes of validation share one list.
        if self._last[0] != name:
            exists = self.store.size(name) is not None
            lines = self.store.read(name, most=MOST_LIST_BYTES) if exists else b""
            self._last = name, boxes.parse(lines, self.store.where(name))
        return self._last[1]


def box_stage(
    annotations: boxes.Annotations, store: Store
) -> tuple[engine.Stage[boxes.BoxTask, ReadBoxes], BoxLookup]:
    """Returns the stage that reads annotations into lists, and a function that looks up boxes."""
    digest = annotations.digest
    folder = f"{naming.WORK}/boxes-{digest[:16]}/lists"
    work = partial(_read, store=store, folder=folder)
    stage = engine.Stage("boxes", digest, store, work, ReadBoxes)
    return stage, BoxLookup(store, folder, annotations.parts)


def _read(task: boxes.BoxTask, *, store: Store, folder: str) -> engine.Result[ReadBoxes]:
    """Writes annotations as JSON lines: one file per train class, one file for validation."""
    read = boxes.read(task)
    outputs = []
    for group, lines in read.lines.items():
        temporary = store.temporary()
        with storage_errors("write", temporary), new_file(temporary) as file:
            file.write(lines)
        outputs.append(engine.Output(temporary, _list_name(folder, task.split, group)))
    return engine.Result(ReadBoxes(read.images, read.boxes, read.dropped), tuple(outputs))


def _list_name(folder: str, split: str, group: str) -> str:
    return f"{folder}/{split}/{group}.jsonl"


def read_boxes(
    annotations: boxes.Annotations | None,
    store: LocalStore,
    workers: engine.Workers,
    *,
    quiet: bool,
) -> BoxLookup | None:
    """Reads annotations into lists in `.work`; returns a function that looks up their boxes."""
    if annotations is None:
        return None
    stage, lookup = box_stage(annotations, store)
    receipts = engine.run(stage, annotations.tasks, workers, quiet=quiet)
    if not quiet:
        lists = [receipt.content for receipt in receipts]
        annotated = counted(sum(of.images for of in lists), "annotation")
        print(
            f"boxes: {sum(of.boxes for of in lists):,} in {annotated}; dropped because they have "
            f"no area: {sum(of.dropped for of in lists):,}",
            file=sys.stderr,
        )
    files = itertools.chain.from_iterable(receipt.outputs for receipt in receipts)
    lookup.num_bytes = sum(file.num_bytes for file in files)
    return lookup
