"""Finds the images of a dataset to forget, and makes the amend job that forgets them."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from imagenet_prep import engine
from imagenet_prep.core.errors import BadImageError, UsageError
from imagenet_prep.dataset import keys
from imagenet_prep.dataset.keys import KeyList, Lookup
from imagenet_prep.dataset.member import Incident
from imagenet_prep.matching import copies, pictures, search
from imagenet_prep.matching.find import SAME_BYTES
from imagenet_prep.matching.pictures import GivenImage
from imagenet_prep.preparation import amendment
from imagenet_prep.preparation.changes import ChangeRequest
from imagenet_prep.removal.traced_images import TracedImage, images_with, stored_images
from imagenet_prep.storage import dataset_store
from imagenet_prep.storage.dataset_store import Dataset
from imagenet_prep.storage.store import Store

LISTED = "listed"
_NOT_STORED = "not stored, only in quarantine.jsonl"


class Picture(NamedTuple):
    """A file of --image."""

    path: str
    data: bytes


@dataclass
class FoundImages:
    """The images to forget.

    Attributes:
      images: the stored images, by their lines in a list of keys.
      how: how each image was found: LISTED, or a kind of duplicate.
      lines: images, as (split, key), that only quarantine.jsonl names.
      sizes: the sizes of all known files of the images, by sha256.
      pictures: the files and the images, decoded for the comparison with other datasets; none if
        only equal bytes are copies.
      kinds: how copies in other datasets were found, by the sha256 of their files.
      problems: sentences about images that could not be compared.
      num_forgotten: number of listed lines for images that were forgotten before.
      forgotten: these images, as (split, key).
    """

    images: dict[str, TracedImage] = field(default_factory=dict)
    how: dict[str, str] = field(default_factory=dict)
    lines: set[tuple[str, str]] = field(default_factory=set)
    sizes: dict[str, int] = field(default_factory=dict)
    pictures: list[GivenImage] = field(default_factory=list)
    kinds: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    num_forgotten: int = 0
    forgotten: set[tuple[str, str]] = field(default_factory=set)

    def add(self, image: TracedImage, how: str) -> None:
        """Adds an image, unless it is known."""
        if image.line not in self.images:
            self.images[image.line] = image
            self.how[image.line] = how
            self.sizes.update(image.sizes)

    def add_line(self, line: Incident) -> None:
        """Adds an image that a line of quarantine.jsonl names."""
        self.lines.add((line.split, line.key))
        self.sizes.update(line.sizes)


def find_images(
    dataset: Dataset,
    listed: KeyList | None,
    files: Sequence[Picture],
    workers: engine.Workers | None,
    *,
    quiet: bool,
) -> FoundImages:
    """Finds listed images, images with the bytes of the files, and the copies of both.

    Only images with equal bytes are copies if `workers` is None. Raises UsageError for an unknown
    key, and for a file that is not an image.
    """
    found = FoundImages()
    for file in files:
        found.sizes[hashlib.sha256(file.data).hexdigest()] = len(file.data)
    if listed is not None:
        _add_listed(found, dataset, listed)
    _add_equal_images(found, dataset)
    if workers is not None:
        _add_copies(found, dataset, files, workers, quiet=quiet)
    add_equal(found, dataset)
    return found


def add_equal(found: FoundImages, dataset: Dataset) -> None:
    """Adds the images and the lines of quarantine.jsonl with the bytes of a known file."""
    _add_equal_images(found, dataset)
    incidents = [*dataset_store.incidents(dataset.store, dataset.manifest)]
    for line in incidents:
        if not line.salt and found.sizes.keys() & line.sizes.keys():
            found.add_line(line)
    stored = {(image.split, image.sample.key) for image in found.images.values()}
    found.lines -= stored
    for line in incidents:
        if (line.split, line.key) in found.lines:
            kinds = [found.kinds[sha256] for sha256 in line.sizes if sha256 in found.kinds]
            how = ", ".join([*kinds[:1], _NOT_STORED])
            found.how[keys.with_split(line.split, line.key)] = how


def _add_listed(found: FoundImages, dataset: Dataset, listed: KeyList) -> None:
    splits = dataset.manifest.splits
    lookup = Lookup(listed, splits, [*splits])
    for image in stored_images(dataset):
        if lookup.lines(image.split, [image.sample.key])[0]:
            found.add(image, LISTED)
    for line in dataset_store.incidents(dataset.store, dataset.manifest):
        if not line.salt and line.split in splits and lookup.lines(line.split, [line.key])[0]:
            found.add_line(line)
    _recognise_forgotten(found, dataset, lookup)
    stored = ((image.split, image.sample.key) for image in stored_images(dataset))
    lookup.check(f"{' and '.join(splits)} of {dataset.where}", stored)


def _recognise_forgotten(found: FoundImages, dataset: Dataset, lookup: Lookup) -> None:
    """Counts the listed images that were forgotten before, so that a list can be used again."""
    listed = [(line, *keys.split_and_key(line)) for line in lookup.listed.keys]
    by_salt: dict[str, dict[str, list[tuple[str, str | None, str]]]] = {}
    for incident in dataset_store.incidents(dataset.store, dataset.manifest):
        if not incident.salt:
            continue
        if incident.salt not in by_salt:
            names = by_salt.setdefault(incident.salt, defaultdict(list))
            for line, split, key in listed:
                names[keys.salted(incident.salt, key)].append((line, split, key))
        for line, split, key in by_salt[incident.salt].get(incident.key, ()):
            if split in (None, incident.split):
                lookup.recognised.add(line)
                found.forgotten.add((incident.split, key))
    found.num_forgotten = len(lookup.recognised)


def _add_equal_images(found: FoundImages, dataset: Dataset) -> None:
    """Adds images with the bytes of a known file; each may tell the hash of a further file."""
    num_known = 0
    while len(found.sizes) > num_known:
        num_known = len(found.sizes)
        for image in images_with(dataset, found.sizes):
            found.add(image, SAME_BYTES)


def _add_copies(
    found: FoundImages,
    dataset: Dataset,
    files: Sequence[Picture],
    workers: engine.Workers,
    *,
    quiet: bool,
) -> None:
    """Adds the images that are proven to show a file or an image that was found before."""
    given = found.pictures
    for file in files:
        try:
            given += pictures.looks_of(file.data)
        except BadImageError as error:
            raise UsageError(
                f"--image {file.path}: cannot be decoded: {error}. To compare only its bytes, add "
                "--exact."
            ) from None
    pieces = {piece.where: piece for piece in pictures.of_set(dataset, [*dataset.manifest.splits])}
    for image in found.images.values():
        data = pieces[dataset.store.where(image.shard)].read(image.record)
        try:
            given.append(GivenImage(data, search.of(data)))
        except BadImageError as error:
            found.problems.append(f"{image.line}: its copies cannot be found: {error}")
    if not given:
        return
    result = copies.find_copies(dataset, given, workers, quiet=quiet)
    found.problems += result.problems
    if result.num_vague:
        found.problems.append(
            f"{result.num_vague:,} of the pictures have too little detail: only copies with equal "
            "pixels were found. Look for changed copies by eye; then --exact, which compares only "
            "bytes, ends without this problem."
        )
    kinds = {(copy.split, copy.sample.key): copy.kind for copy in result.copies}
    for image in stored_images(dataset) if kinds else ():
        kind = kinds.get((image.split, image.sample.key))
        if kind is not None:
            found.add(image, kind)


def add_copies_in(
    other: Dataset, found: FoundImages, dataset: Dataset, workers: engine.Workers, *, quiet: bool
) -> None:
    """Adds the files of all images of a different dataset that are proven to be copies.

    The shards that it shares with `dataset`, as most versions do, have no image that is unknown.
    """
    shared = {shard.sha256 for shard in dataset.manifest.shards}
    if not found.pictures or all(shard.sha256 in shared for shard in other.manifest.shards):
        return
    result = copies.find_copies(other, found.pictures, workers, quiet=quiet, skipped=shared)
    found.problems += result.problems
    for copy in result.copies:
        found.sizes.update(copy.sample.sizes)
        found.kinds.update(dict.fromkeys(copy.sample.sizes, copy.kind))


def job(
    dataset: Dataset, out: Store, found: FoundImages, workers: engine.Workers, *, quiet: bool
) -> amendment.AmendJob | None:
    """Returns the job that makes the dataset without the images; None if there is no image."""
    if not found.how:
        return None
    listed = None
    if found.images:
        lines = "\n".join(found.images)
        listed = keys.parse_list("the images to forget", lines.encode())
    request = ChangeRequest(
        exclude=listed,
        salt=amendment.salt_for(dataset, out),
        forgotten=frozenset(found.lines),
    )
    return amendment.AmendJob(dataset, request, workers, quiet=quiet)
