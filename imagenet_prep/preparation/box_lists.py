"""Bounding boxes of a class: annotations are read once, into lists below the output."""

from __future__ import annotations

import sys

from imagenet_prep import engine
from imagenet_prep.core import canonical
from imagenet_prep.dataset import naming, schema
from imagenet_prep.dataset.member import Boxes
from imagenet_prep.preparation.tasks import BoxWork
from imagenet_prep.sources import boxes, source
from imagenet_prep.storage.folder import LocalStore


class BoxLookup:
    """Finds the boxes of a class in the lists that were read.

    Attributes:
      parts: that they come from, by split.
      num_bytes: of all lists.
    """

    def __init__(
        self, store: LocalStore, work: BoxWork, parts: dict[str, source.Part], num_bytes: int
    ) -> None:
        self.parts = parts
        self.num_bytes = num_bytes
        self._store = store
        self._work = work
        # Every class of validation asks for the same list.
        self._last: tuple[str, dict[str, Boxes]] = ("", {})

    def of(self, split: str, wnid: str) -> dict[str, Boxes]:
        """Returns the boxes by stem: of a class of train, or of all of validation."""
        name = self._work.box_list(split, wnid if split == schema.TRAIN else split)
        if self._last[0] != name:
            path = self._store.path(name)
            found = boxes.parse(path.read_bytes(), str(path)) if path.is_file() else {}
            self._last = (name, found)
        return self._last[1]


def read_boxes(
    annotations: boxes.Annotations | None,
    store: LocalStore,
    workers: engine.Workers,
    *,
    quiet: bool,
) -> BoxLookup | None:
    """Reads annotations into lists, and returns what finds boxes in them; None without any.

    Args:
      annotations: of the source.
      store: the data set, below which the lists lie.
      workers, quiet: as for `engine.run`.

    Raises:
      SourceError: they are damaged.
    """
    if annotations is None:
        return None
    digest = canonical.digest(annotations.identity)
    work = BoxWork(store, f"{naming.WORK}/boxes-{digest[:16]}/lists")
    shape = dict.fromkeys(("images", "boxes", "dropped"), int)
    stage = engine.Stage("boxes", digest, store, work, shape)
    receipts = engine.run(stage, annotations.tasks(), workers, title="boxes", quiet=quiet)
    total = {name: sum(r[name] for r in receipts) for name in ("images", "boxes", "dropped")}
    if not quiet:
        print(
            f"boxes: {total['boxes']:,} in {total['images']:,} annotations; {total['dropped']:,} "
            "more without an area were dropped",
            file=sys.stderr,
        )
    num_bytes = sum(output["num_bytes"] for r in receipts for output in r["outputs"])
    return BoxLookup(store, work, annotations.parts, num_bytes)
