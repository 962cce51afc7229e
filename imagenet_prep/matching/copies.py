"""Finds the copies of single images in a dataset: re-encoded, resized, cropped or mirrored."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from typing import NamedTuple

from imagenet_prep import engine
from imagenet_prep.dataset.samples import Sample
from imagenet_prep.matching import pictures
from imagenet_prep.matching.find import KINDS, DuplicateSearch
from imagenet_prep.matching.pictures import GivenImage, GivenPiece, Pictures
from imagenet_prep.storage import scratch
from imagenet_prep.storage.dataset_store import Dataset
from imagenet_prep.storage.folder import LocalStore


class Copy(NamedTuple):
    """An image of a dataset that is proven to be a copy; `kind` is one of `find.KINDS`."""

    split: str
    sample: Sample
    kind: str


class FoundCopies(NamedTuple):
    """The copies of the given images.

    Attributes:
      problems: one sentence for each image of the dataset that could not be compared.
      num_vague: number of given images with too little detail, of which only copies with equal
        pixels are found.
    """

    copies: list[Copy]
    problems: list[str]
    num_vague: int


def find_copies(
    dataset: Dataset,
    images: Sequence[GivenImage],
    workers: engine.Workers,
    *,
    quiet: bool,
    skipped: Collection[str] = (),
) -> FoundCopies:
    """Compares each image with all images of a dataset, as `duplicates` does.

    The hashes of the dataset stay in its `.work`, if the user may write there. Shards with these
    sha256, which were compared in a different dataset, are skipped.
    """
    with scratch.temporary_folder() as place:
        local = LocalStore(place / "rows")
        given = GivenPiece(tuple(images))
        of_set = pictures.of_set(dataset, [*dataset.manifest.splits], other=True)
        pieces = [piece for piece in of_set if piece.name not in skipped]
        kept = pictures.store_of_rows(dataset.where, local)
        rows = []
        problems = []
        for store, of_store in ((local, [given]), (kept, pieces)):
            with store.lock():
                problems += pictures.hash_all(store, of_store, workers, quiet=quiet)
            rows += pictures.rows_of(store, of_store, place)
        pieces = [given, *pieces]
        tables = (pictures.columns(piece.samples()) for piece in pieces)
        compared = Pictures(pieces, tables, rows, place)
        found = DuplicateSearch(compared, across=True, workers=workers.count)
        found.find(lambda _: None)
        problems += sorted(found.problems - {*problems})
        judged = compared.judged[: len(images)]
        return FoundCopies(_copies(compared, found), problems, int((~judged).sum()))


def _copies(compared: Pictures, found: DuplicateSearch) -> list[Copy]:
    """Returns the images of the dataset that were proven to be copies of a given image."""
    num_given = int(compared.starts[1])
    kinds: dict[int, str] = {}
    for group in found.by_sight.groups():
        given = [number for number in group.tolist() if number < num_given]
        for number in group.tolist():
            if number >= num_given:
                kinds[number] = min((found.kind(one, number) for one in given), key=KINDS.index)
    copies = []
    bounds = itertools.pairwise(compared.starts.tolist())
    for piece, (start, end) in zip(compared.pieces, bounds, strict=True):
        numbers = kinds.keys() & range(start, end)
        for number, sample in enumerate(piece.samples() if numbers else (), start=start):
            if number in numbers:
                copies.append(Copy(piece.split, sample, kinds[number]))
    return copies
