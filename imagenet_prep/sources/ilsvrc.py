"""Reads ILSVRC2012's original archives: the train, validation and test tars, and the devkit."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from imagenet_prep.core.errors import SourceError, UsageError, some
from imagenet_prep.core.terminal import counted
from imagenet_prep.dataset import editions, keys, schema
from imagenet_prep.dataset.class_list import ClassList
from imagenet_prep.dataset.ignored import is_hidden
from imagenet_prep.dataset.keys import VALIDATION_NAME
from imagenet_prep.dataset.member import Member
from imagenet_prep.sources import label_lists, labels, published, source, tar
from imagenet_prep.sources.evidence import Claim, compare
from imagenet_prep.sources.listing import is_called_an_image
from imagenet_prep.sources.member_reader import MemberReader, TarReader
from imagenet_prep.sources.source import IndexTask
from imagenet_prep.storage.archive import ArchiveReader, Range, RemoteArchives, open_archives
from imagenet_prep.storage.remote_path import Location

_PUBLISHED = {
    schema.TRAIN: published.TRAIN,
    schema.VALIDATION: published.VALIDATION,
    schema.TEST: published.TEST,
}
ARCHIVES = {split: archive.name for split, archive in _PUBLISHED.items()}

_UNLABELLED = ClassList(("unlabelled",), ("unlabelled",))
_UNPACK = (
    "Only the original archive, or a tar of class folders, is read in place. Unpack this one into "
    f"train/<WNID>/ and set --source to the folder that contains {schema.TRAIN}/."
)
CLASS_TAR = re.compile(rf"({keys.WNID.pattern})\.tar")


@dataclass(frozen=True)
class Tars(source.Stored):
    """A source of image tars, either separate files or nested in one tar."""

    archives: dict[str, Location]
    validation_class_index: tuple[int, ...] = ()  # in the order of the file names

    @cached_property
    def reader(self) -> ArchiveReader | RemoteArchives:
        """The reader of the archives."""
        return open_archives(self.archives)

    @property
    def images(self) -> MemberReader:
        """The reader of images; it verifies remote images, as their listing is untrusted."""
        kind = TarReader if isinstance(self.reader, RemoteArchives) else MemberReader
        return kind(self.reader)

    def index(self, task: IndexTask) -> list[Member]:
        """Returns the images of one tar, sorted by key."""
        archive = task.archive or task.part
        files = visible_files(self.reader, archive, task.start, task.stop)
        members = source.sorted_by_key((self._member(task, archive, f) for f in files), archive)
        if not members:
            raise SourceError(
                f"{archive}: byte {task.start:,}: {task.name} holds no image. "
                "The archive is incomplete: compare its md5 and download it again."
            )
        return members

    def known_md5(self, task: IndexTask) -> str | None:
        """Returns the md5 stored with an archive's listing, or None."""
        return self.reader.known_md5(task.archive or task.part)

    def _member(self, task: IndexTask, archive: str, file: tar.TarMember) -> Member:
        where = f"{archive}: byte {file.offset:,}: {file.name!r}"
        index = task.class_index
        if index is None and task.split == schema.TRAIN:
            index = self._named(file.name, where)
        elif index is None:
            index = self._numbered(file.name, where)
        key = self.key_of(task.split, index, file.name, where)
        return Member(key, archive, file.offset, file.size, index)

    def _named(self, path: str, where: str) -> int:
        """Returns the class index of a train image from its folder or its name."""
        folder, _, name = path.rpartition("/")
        names = (folder.rpartition("/")[2], keys.wnid_in(name))
        index = next(
            (self.classes.index[wnid] for wnid in names if wnid in self.classes.index), None
        )
        if index is None:
            raise SourceError(
                f"{where}: expected <WNID>.tar, or images with a WNID as folder or in their names. "
                "This is not the train archive of ILSVRC2012."
            )
        return index

    def _numbered(self, path: str, where: str) -> int:
        """Returns the class index of a validation image from its number."""
        match = VALIDATION_NAME.match(keys.without_wnid(path.rpartition("/")[2]))
        if match is None:
            raise SourceError(f"{where}: expected the name ILSVRC2012_val_<8 digits>.JPEG")
        number = int(match[1])
        total = len(self.validation_class_index)
        if not 1 <= number <= total:
            raise SourceError(
                f"{where}: the devkit has labels for images 1 to {total:,}. Archive and "
                "devkit do not match."
            )
        return self.validation_class_index[number - 1]


def visible_files(
    reader: ArchiveReader | RemoteArchives,
    archive: str,
    start: int,
    stop: int,
    *,
    skipping: bool = False,
) -> list[tar.TarMember]:
    """Returns the files of a tar as `tar.files_of` does, without those that macOS adds."""
    files = tar.files_of(reader, archive, start, stop, skipping=skipping)
    return [file for file in files if _is_visible(file.name)]


def _is_visible(path: str) -> bool:
    if "/" not in path:
        return not path.startswith(".")  # fast: the class tars have a million files
    return not any(map(is_hidden, path.removeprefix("./").split("/")))


def inner_tars(files: Iterable[tar.TarMember], archive: str, advice: str) -> dict[str, Range]:
    """Returns the byte range of each class tar by WNID; error messages end with `advice`."""
    tars: dict[str, Range] = {}
    for inner in files:
        match = CLASS_TAR.fullmatch(inner.name.rpartition("/")[2])
        if match is None:
            raise SourceError(
                f"{archive}: byte {inner.offset:,}: member {inner.name!r}, expected <WNID>.tar. "
                f"{advice}"
            )
        if match[1] in tars:
            raise SourceError(f"{archive}: holds {match[1]} twice. Download it again.")
        tars[match[1]] = archive, inner.offset, inner.size
    if not tars:
        raise SourceError(f"{archive}: holds no class tar. Download it again.")
    return tars


def class_tasks(part: str, tars: Mapping[str, Range], classes: ClassList) -> list[IndexTask]:
    """Returns one task of the train split per class tar."""
    tasks = []
    for wnid, (archive, start, size) in tars.items():
        index = classes.index.get(wnid)
        if index is None:
            raise SourceError(
                f"{archive}: byte {start:,}: class {wnid!r} is not in the class list of "
                f"{counted(len(classes.wnids), 'class')}. Archive and devkit do not match."
            )
        name = f"{schema.TRAIN}-{wnid}"
        tasks.append(IndexTask(name, schema.TRAIN, part, index, start, start + size, archive))
    return tasks


@dataclass(frozen=True)
class Ilsvrc2012(Tars):
    """The train and validation archives of ILSVRC2012."""

    name = "imagenet2012"
    edition = editions.ILSVRC2012
    decisive = ("validation_class_index",)

    def index_tasks(self, split: str) -> list[IndexTask]:
        """Returns one task per class tar of train, or one task for validation."""
        archive = ARCHIVES[split]
        if split == schema.VALIDATION:
            return [IndexTask(split, split, archive, None, 0, self.reader.size(archive))]
        return self._classes_of_train

    @cached_property
    def _classes_of_train(self) -> list[IndexTask]:
        # Listed on first use, because a run on a finished dataset does not need the class tars.
        archive = ARCHIVES[schema.TRAIN]
        stop = self.reader.size(archive)
        files = visible_files(self.reader, archive, 0, stop, skipping=True)
        if files and is_called_an_image(files[0].name):
            # The archive was repacked: it has class folders, or WNIDs in the names of the images.
            return [IndexTask(schema.TRAIN, schema.TRAIN, archive, None, 0, stop)]
        return class_tasks(archive, inner_tars(files, archive, _UNPACK), self.classes)


@dataclass(frozen=True)
class Unlabelled(Tars):
    """ILSVRC2012's test archive. All images share one class, as their labels are unpublished."""

    name = "imagenet2012_test"
    edition = editions.ILSVRC2012_TEST


def find(folder: Location, splits: Sequence[str]) -> Ilsvrc2012 | Unlabelled:
    """Returns the source of `splits`; without a devkit, it has ILSVRC2012's published labels."""
    if isinstance(folder, Path) and not folder.is_dir():
        expected = ", ".join(ARCHIVES[split] for split in splits)
        raise UsageError(f"--source {folder}: no such folder. Put {expected} there.")
    archives = {ARCHIVES[split]: folder / ARCHIVES[split] for split in splits}
    devkit_path = folder / labels.DEVKIT
    missing = [name for name, path in archives.items() if not path.is_file()]
    if missing:
        found = ""
        if folder.is_dir():
            names = sorted(path.name for path in folder.iterdir())
            found = f"; found {some(names) or 'nothing'}"
        raise UsageError(
            f"--source {folder}: {' and '.join(missing)} not found{found}. Get the archives from "
            "image-net.org (login needed), or choose different --splits."
        )
    if schema.TEST in splits:
        if len(splits) > 1:
            raise UsageError(
                "--splits: the test images have no labels, so they cannot be in the same dataset "
                "as other splits. Choose --splits test and a different --out."
            )
        part = source.file_part(archives[ARCHIVES[schema.TEST]], published.TEST.md5)
        task = IndexTask(schema.TEST, schema.TEST, part.name, 0, 0, part.num_bytes)
        return Unlabelled(_UNLABELLED, (part,), archives, tasks=(task,))
    if devkit_path.is_file():
        devkit = labels.read_devkit(devkit_path)
        classes, truth = devkit.classes, devkit.validation_class_index
    else:
        classes = labels.official_classes()
        truth = labels.published_labels()
        listed = [Claim(str(path), wnids) for path, wnids in label_lists.find([folder])]
        of_listed = itertools.chain.from_iterable(claim.classes for claim in listed)
        known = labels.published_labels_of(of_listed, classes.index)
        compare("image", [*listed, Claim(labels.PUBLISHED, known)], labels.RIGHT_LABELS)
    # With a different class list, these are not the published archives: no md5 is known.
    parts = tuple(
        source.file_part(archives[ARCHIVES[s]], _PUBLISHED[s].md5 if classes.official else None)
        for s in splits
    )
    return Ilsvrc2012(classes, parts, archives, truth)
