"""Reads the images of `amend --add`, and compares them with the images of the dataset.

The folder may be the source of the dataset, which has grown: only its new images are added.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

from imagenet_prep.core import strict_json
from imagenet_prep.core.errors import UsageError, some
from imagenet_prep.core.strict_json import Json
from imagenet_prep.core.terminal import counted, printable
from imagenet_prep.dataset import formats, schema
from imagenet_prep.dataset.class_list import ClassList
from imagenet_prep.dataset.keys import KeyList, Lookup, salted
from imagenet_prep.dataset.manifest import ManifestSource
from imagenet_prep.dataset.member import OF_INPUT, QUARANTINED, Incident, Member
from imagenet_prep.dataset.samples import Sample
from imagenet_prep.dataset.settings import ListDigest
from imagenet_prep.preparation.tasks import excluded_incident
from imagenet_prep.sources import folder, image_table, layout
from imagenet_prep.storage import dataset_store
from imagenet_prep.storage.dataset_store import Dataset

_MOST_NAMED = 10
# The manifest lists the images of smaller folders, so that `show --key` tells the folder.
_MOST_LISTED = 1000


class _Kind(IntEnum):
    """What the dataset says about an image of the folder; the first kind that applies counts."""

    KNOWN = 0  # it is stored, or was quarantined and still cannot be decoded
    FORGOTTEN = 1
    EXCLUDED = 2  # by an earlier step
    HELD_OUT = 3  # it is in a different part of the same source split
    DIFFERENT = 4  # its key is stored with different bytes
    NEW = 5


@dataclass(frozen=True)
class Additions:
    """Images to add from a folder; `sha256` maps `Member.archive` to the hash of the image file.

    Attributes:
      name: name of the folder.
      members: the images to add, by split.
      skipped: the keys of the other images, by kind.
      excluded: lines for the images that this run's list excludes.
      replaced: lines of the dataset's quarantine.jsonl about images that are added now.
      copies: keys of images to add, and the key under which the split has the same bytes.
      readmitted: keys of images to add that an earlier step has excluded.
      relabelled: keys of readmitted images that keep a class from an earlier --relabel.
    """

    name: str
    source: folder.FolderSource
    members: Mapping[str, tuple[Member, ...]]
    sha256: Mapping[str, str]
    skipped: Mapping[_Kind, Sequence[str]] = field(default_factory=dict)
    excluded: Sequence[Incident] = ()
    replaced: Collection[Incident] = ()
    copies: Mapping[str, str] = field(default_factory=dict)
    readmitted: Sequence[str] = ()
    relabelled: Sequence[str] = ()

    @property
    def all_members(self) -> list[Member]:
        """The images to add to all splits."""
        return [member for _, member in self._by_split]

    @property
    def _by_split(self) -> Iterator[tuple[str, Member]]:
        """The images, each with its split."""
        for split, members in self.members.items():
            yield from zip(itertools.repeat(split), members)

    @property
    def summary(self) -> ListDigest:
        """The entry for these images in the manifest."""
        rows = sorted(
            [split, member.key, member.class_index, self.sha256[member.archive]]
            for split, member in self._by_split
        )
        return ListDigest(len(rows), strict_json.digest(rows))

    @property
    def counts(self) -> Json:
        """The numbers of images of each kind, for `sentences`, and the ignored files by extension.

        `refused` has the first keys that an earlier step has excluded, `readmitted_keys` the first
        of those that are added nevertheless, `relabelled_keys` the first that keep a changed class,
        and `copies` the first keys of new images that the split has under the given key.
        """
        refused = self.skipped.get(_Kind.EXCLUDED, ())
        forgotten = len(self.skipped.get(_Kind.FORGOTTEN, ()))
        return {
            "new": len(self.all_members),
            "known": len(self.skipped.get(_Kind.KNOWN, ())),
            "held_out": len(self.skipped.get(_Kind.HELD_OUT, ())),
            "excluded": len(refused) + len(self.excluded),
            "forgotten": forgotten,
            "refused": sorted(refused)[:_MOST_NAMED],
            "num_refused": len(refused),
            "readmitted": len(self.readmitted),
            "readmitted_keys": sorted(self.readmitted)[:_MOST_NAMED],
            "relabelled": len(self.relabelled),
            "relabelled_keys": sorted(self.relabelled)[:_MOST_NAMED],
            "copies": dict(sorted(self.copies.items())[:_MOST_NAMED]),
            "num_copies": len(self.copies),
            "ignored": formats.together(dict(part.ignored) for part in self.source.parts),
        }

    def as_source(self, existing: Sequence[ManifestSource]) -> ManifestSource:
        """Returns the manifest entry of the folder, with a name that no existing source has."""
        number = 1 + sum(source.name.startswith(schema.ADDED) for source in existing)
        images = self.all_members
        members = len(images) + len(self.excluded)
        # An image that an existing source includes is not counted twice.
        for line in self.replaced:
            members -= line.action == QUARANTINED or (bool(line.sha256) and not line.is_of_input)
        num_bytes = sum(member.size for member in images)
        name = f"{schema.ADDED}{number}/{self.name}"
        listed: list[str] = []
        if len(images) <= _MOST_LISTED:
            listed = sorted(f"{split}:{member.key}" for split, member in self._by_split)
        return ManifestSource(name, num_bytes, None, members, self.counts["ignored"], listed)


def sentences(counts: Json) -> list[str]:
    """Returns the content of the folder in words; `counts` is from `Additions.counts`."""
    numbers = f"folder: {counted(counts['new'], 'new image')}"
    if "stored" in counts:
        numbers += f" ({counts['stored']:,} stored, {counts['quarantined']:,} quarantined)"
    numbers += f", {counts['known']:,} known, {counts['held_out']:,} held out, "
    lines = [f"{numbers}{counts['excluded']:,} excluded"]
    if counts["forgotten"]:
        lines[0] += f", {counts['forgotten']:,} forgotten, which no flag adds"
    if counts["refused"]:
        lines.append(
            "not added, because an earlier step has excluded them: "
            f"{some(counts['refused'], counts['num_refused'])}. To add these images, use --readmit"
        )
    if counts["readmitted"]:
        num_readmitted = counted(counts["readmitted"], "image")
        lines.append(
            f"{num_readmitted} added again that an earlier step has excluded: "
            f"{some(counts['readmitted_keys'], counts['readmitted'])}. To add only some, give a "
            "folder with only these"
        )
    if counts["relabelled"]:
        lines.append(
            "added with the class that --relabel gave them before they were excluded, not that of "
            f"their folder: {some(counts['relabelled_keys'], counts['relabelled'])}"
        )
    if counts["copies"]:
        copies = [f"{key} (as {stored})" for key, stored in counts["copies"].items()]
        lines.append(
            "added, but already stored under a different key: "
            f"{some(copies, counts['num_copies'])}. To change the class of an image, do not add it "
            "again: use --relabel"
        )
    if counts["ignored"]:
        lines.append(f"ignored in the folder: {formats.ignored_in_words(counts['ignored'])}")
    return [*map(printable, lines)]


def read_additions(where: str, classes: ClassList, splits: Collection[str]) -> Additions:
    """Lists and hashes the images in train/CLASS (or just CLASS) and val/CLASS."""
    try:
        return _read_class_folders(where, classes, splits)
    except UsageError as error:
        tables = image_table.locate(Path(where).expanduser())
        names = [table.path.name for table in tables if image_table.is_readable(table)]
        if names:
            raise UsageError(
                f"{error} The table of labels {some(names)} is not read: copy the new images to "
                "DIR/CLASS/ in a new folder DIR, and add DIR."
            ) from None
        raise


def _read_class_folders(where: str, classes: ClassList, splits: Collection[str]) -> Additions:
    root = Path(where).expanduser()
    if not root.is_dir():
        raise UsageError(f"--add {where}: no such folder. Expected a folder of class folders.")
    split_folders = layout.split_folders(root)
    split_folders.folders.pop(schema.HOLDOUT, None)
    if not split_folders.folders:
        raise UsageError(
            f"--add {where}: no images found. Expected train/CLASS/*, val/CLASS/* or CLASS/*. If "
            "the folder is one class, give the folder above it."
        )
    folders = split_folders.folders
    other_splits = sorted(set(folders) - set(splits))
    if other_splits:
        raise UsageError(
            f"--add {where}: has the split {some(other_splits)}, which the dataset lacks"
        )
    names: set[str] = set()
    for path in split_folders.places:
        names.update(layout.class_folders(path, classes))
    other_classes = sorted(name for name in names if classes.of_folder(name) is None)
    if other_classes:
        raise UsageError(
            f"--add {where}: folders that are not classes of the dataset: {some(other_classes)}. "
            "amend cannot add classes, because labels are positions in the class list. For new "
            "classes, run prepare on all photographs, with the quarantine.jsonl of this dataset as "
            "--exclude, and with --holdout as before, and then amend with your lists of --relabel. "
            "If the folder is one class, give the folder above it."
        )
    source = folder.find(root, [s for s in schema.SOURCE_SPLITS if s in folders], classes=classes)
    reader = source.images
    members: dict[str, tuple[Member, ...]] = {}
    sha256 = {}
    for task in source.tasks:
        images = source.index(task)
        members[task.split] = (*members.get(task.split, ()), *images)
        for member in images:
            sha256[member.archive] = hashlib.sha256(reader.read(member)).hexdigest()
    name = root.resolve().name.encode(errors="backslashreplace").decode()
    return Additions(name, source, members, sha256)


class _Image(NamedTuple):
    """An image of the folder, with the split to which it would be added."""

    split: str
    member: Member
    sha256: str


class AdditionComparison:
    """Compares the images of a folder with those that a dataset has, or has excluded."""

    def __init__(self, add: Additions, dataset: Dataset) -> None:
        self._add = add
        self._dataset = dataset
        self._kinds: dict[_Image, _Kind] = {}
        self._lines: dict[_Image, list[Incident]] = defaultdict(list)
        self._stored_as: dict[_Image, str] = {}
        manifest = dataset.manifest
        self._origins = {split: manifest.settings.origin(split) for split in manifest.splits}
        # The images by source split, and by key and hash: keys have a slash or an extension.
        self._index: dict[tuple[str, str], list[_Image]] = defaultdict(list)
        for split, members in add.members.items():
            for member in members:
                image = _Image(split, member, add.sha256[member.archive])
                self._kinds[image] = _Kind.NEW
                for name in (member.key, image.sha256):
                    self._index[self._origins[split], name].append(image)

    def select(
        self,
        exclude: KeyList | None,
        splits: Collection[str],
        is_usable: Callable[[str, Member], bool],
        *,
        readmit: bool,
    ) -> Additions:
        """Returns the images to add: those that are new, and not excluded by `exclude` or before.

        `exclude` is only for the images of `splits`. `is_usable` tells whether an image can be
        decoded. With `readmit`, images that were excluded before are added, too. Raises UsageError
        if the dataset has a key with different bytes.
        """
        self._compare_with_tables()
        self._compare_with_lines(readmit=readmit)
        members: dict[str, list[Member]] = defaultdict(list)
        copies: dict[str, str] = {}
        readmitted: list[str] = []
        relabelled: list[str] = []
        skipped: dict[_Kind, list[str]] = defaultdict(list)
        excluded: list[Incident] = []
        replaced: set[Incident] = set()
        lookup = Lookup(exclude, self._origins, splits) if exclude else None
        for image, kind in self._kinds.items():
            _, member, sha256 = image
            if kind != _Kind.NEW:
                skipped[kind].append(member.key)
                continue
            split = self._split_of(image)
            file = None
            salt = ""
            if lookup and split in splits:
                file = lookup.listed.find(self._origins[split], sha256)
                salt = file.salt if file else lookup.salt_of(split, member.key)
            if file or salt or (lookup and lookup.lines(split, [member.key])[0]):
                excluded.append(excluded_incident(member, split, sha256, salt=salt))
            elif QUARANTINED in self._actions(image) and not is_usable(split, member):
                skipped[_Kind.KNOWN].append(member.key)
                continue
            else:
                former = self._former_class(image)
                members[split].append(member._replace(class_index=former))
                if former != member.class_index:
                    relabelled.append(member.key)
                if self._exclusions_of(image):
                    readmitted.append(member.key)
                if image in self._stored_as:
                    copies[member.key] = self._stored_as[image]
            replaced.update(self._lines[image])
        _refuse_different(skipped[_Kind.DIFFERENT])
        return replace(
            self._add,
            members={split: tuple(new) for split, new in members.items()},
            skipped=skipped,
            excluded=excluded,
            replaced=replaced,
            copies=copies,
            readmitted=readmitted,
            relabelled=relabelled,
        )

    def _split_of(self, image: _Image) -> str:
        """Returns the split that gets an image; one that was excluded from the holdout returns."""
        origin = self._origins[image.split]
        former = {line.split for line in self._exclusions_of(image)}
        others = {split for split in former if self._origins.get(split) == origin}
        return min(others - {image.split}, default=image.split)

    def _former_class(self, image: _Image) -> int:
        """Returns the class index that an excluded image had under this key, or its own."""
        indices = [
            line.class_index
            for line in self._exclusions_of(image)
            if line.key == image.member.key
            if 0 <= line.class_index < self._dataset.manifest.classes.count
        ]
        return min(indices, default=image.member.class_index)

    def _exclusions_of(self, image: _Image) -> list[Incident]:
        """Returns the lines of earlier steps that have excluded an image."""
        return [line for line in self._lines[image] if line.is_excluded]

    def _actions(self, image: _Image) -> set[str]:
        return {line.action.removeprefix(OF_INPUT) for line in self._lines[image]}

    def _note(self, image: _Image, kind: _Kind) -> None:
        self._kinds[image] = min(self._kinds[image], kind)

    def _compare_with_tables(self) -> None:
        origins = {origin for origin, _ in self._index}
        for name, split in self._dataset.manifest.splits.items():
            if self._origins[name] in origins:
                for sample in itertools.chain.from_iterable(self._dataset.rows(split.shards)):
                    self._compare_with_row(name, sample)

    def _compare_with_row(self, split: str, sample: Sample) -> None:
        hashes = sample.sha256, sample.source_sha256
        for name in (sample.key, *hashes):
            for image in self._index.get((self._origins[split], name), ()):
                if image.member.key == sample.key and image.sha256 not in hashes:
                    self._note(image, _Kind.DIFFERENT)
                elif image.split != split:
                    self._note(image, _Kind.HELD_OUT)
                elif image.member.key == sample.key:
                    self._note(image, _Kind.KNOWN)
                else:
                    self._stored_as[image] = sample.key

    def _compare_with_lines(self, *, readmit: bool) -> None:
        origins = {*self._origins.values()}
        lines = [*dataset_store.incidents(self._dataset.store, self._dataset.manifest)]
        index_of = {"": self._index}
        for salt in {line.salt for line in lines} - {""}:
            index_of[salt] = {
                (origin, salted(salt, name)): images
                for (origin, name), images in self._index.items()
            }
        for line in lines:
            index = index_of[line.salt]
            # A line of version 0.1.0 may not tell its split.
            is_known = line.split in self._origins
            origins_of_line = {self._origins[line.split]} if is_known else origins
            names = [(origin, line.key) for origin in origins_of_line]
            elsewhere = origins.difference(line.kept_in)
            names += itertools.product(elsewhere, line.sizes if line.is_excluded else ())
            for image in itertools.chain.from_iterable(index.get(name, ()) for name in names):
                if line.salt:
                    self._note(image, _Kind.FORGOTTEN)
                elif line.is_excluded:
                    self._lines[image].append(line)
                    if not readmit:
                        self._note(image, _Kind.EXCLUDED)
                elif line.action.endswith(QUARANTINED) and image.member.size == line.size:
                    self._lines[image].append(line)


def _refuse_different(keys: Sequence[str]) -> None:
    if keys:
        raise UsageError(
            f"--add: {counted(len(keys), 'image')} with a key that the dataset has with different "
            f"bytes: {some(sorted(keys))}. If they are different photographs, rename these "
            "files. If they replace the existing images, copy the new files to a different folder, "
            "with their class folders; exclude the existing images with amend --exclude, and then "
            "run amend --add with that folder and --readmit on the result. If the dataset was "
            "resized from a different dataset, which changes the bytes, give a folder with only "
            "the new images."
        )
