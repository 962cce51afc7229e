"""ILSVRC2012 as image-net.org ships it: nested train tar, flat validation tar, devkit.

Finds the archives in a folder and lists their images by offset. Nothing is extracted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from imagenet_prep.core.errors import SourceError, UsageError
from imagenet_prep.dataset import schema
from imagenet_prep.dataset.keys import VALIDATION_NAME
from imagenet_prep.dataset.member import Member
from imagenet_prep.sources import editions, labels, published, source, tar
from imagenet_prep.sources.source import IndexTask
from imagenet_prep.storage.archive import ArchiveReader
from imagenet_prep.storage.remote_archives import RemoteArchives, open_archives
from imagenet_prep.storage.remote_path import Location

_PUBLISHED = {schema.TRAIN: published.TRAIN, schema.VALIDATION: published.VALIDATION}
ARCHIVES = {split: archive.name for split, archive in _PUBLISHED.items()}


@dataclass(frozen=True)
class Ilsvrc2012(source.Stored):
    """The archives of one data set.

    Attributes:
      archives: where each lies, by its name.
      validation_class_index: class index of each validation image, in file-name order;
        empty where no validation split is read.
    """

    archives: dict[str, Location]
    validation_class_index: tuple[int, ...]

    @property
    def name(self) -> str:
        """What dataset_info.json calls it."""
        return "imagenet2012"

    @cached_property
    def reader(self) -> ArchiveReader | RemoteArchives:
        """Reads the archives."""
        return open_archives(self.archives)

    @property
    def identity(self) -> list[object]:
        """What decides the members, as JSON."""
        return [*super().identity, self.validation_class_index]

    def index_tasks(self, split: str) -> list[IndexTask]:
        """Returns one task a tar: a class of train, or the whole of validation.

        Raises:
          SourceError: the outer tar is damaged, or holds what is not a class of the list.
        """
        archive = ARCHIVES[split]
        size = self.reader.size(archive)
        if split == schema.VALIDATION:
            return [IndexTask(split, split, archive, None, 0, size)]
        tasks = [self._class_task(split, archive, inner) for inner in self._inner_tars(archive)]
        names = [task.name for task in tasks]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise SourceError(f"{archive}: holds {', '.join(twice)} twice")
        return tasks

    def index(self, task: IndexTask) -> list[Member]:
        """Returns the images of one tar, sorted by key.

        Raises:
          SourceError: the tar is damaged or empty, a key comes twice, a name contradicts its
            class, or a validation image has no label.
        """
        files = tar.files_of(self.reader, task.part, task.start, task.stop)
        return source.listed((self._member(task, file) for file in files), task, task.part)

    def known_md5(self, task: IndexTask) -> str | None:
        """Returns the md5 of the archive of a piece that `index` has listed, if it came along."""
        return self.reader.known_md5(task.part)

    def count_problems(self, split: str, num_per_class: Sequence[int]) -> list[str]:
        """Returns how counts differ from ILSVRC2012's."""
        return editions.ILSVRC2012.problems(split, self.classes, num_per_class)

    def _inner_tars(self, archive: str) -> list[tar.TarMember]:
        return tar.files_of(self.reader, archive, 0, self.reader.size(archive), skipping=True)

    def _class_task(self, split: str, archive: str, inner: tar.TarMember) -> IndexTask:
        wnid, dot, kind = inner.name.rpartition("/")[2].rpartition(".")
        if not dot or kind != "tar":
            raise SourceError(
                f"{archive}: byte {inner.offset:,}: member {inner.name!r}, expected <WNID>.tar. "
                "This is not the train archive of ILSVRC2012."
            )
        if wnid not in self.classes.index:
            raise SourceError(
                f"{archive}: byte {inner.offset:,}: class {wnid!r} is not in the class list of "
                f"{len(self.classes.wnids)} classes. Archive and devkit do not belong together."
            )
        stop = inner.offset + inner.size
        index = self.classes.index[wnid]
        return IndexTask(f"{split}-{wnid}", split, archive, index, inner.offset, stop)

    def _member(self, task: IndexTask, file: tar.TarMember) -> Member:
        base = file.name.rpartition("/")[2]
        where = f"{task.part}: byte {file.offset:,}: {file.name!r}"
        index = task.class_index
        if index is None:
            index = self._validation_class(base, where)
        key = source.key_of(task.split, self.classes.wnids[index], base, self.classes, where)
        return Member(key, task.part, file.offset, file.size, index)

    def _validation_class(self, base: str, where: str) -> int:
        number = VALIDATION_NAME.match(base)
        if number is None:
            raise SourceError(f"{where}: expected ILSVRC2012_val_<8 digits>.JPEG")
        position = int(number[1])
        if not 1 <= position <= len(self.validation_class_index):
            raise SourceError(
                f"{where}: the devkit has labels for images 1 to "
                f"{len(self.validation_class_index):,}. Archive and devkit do not belong together."
            )
        return self.validation_class_index[position - 1]


def find(folder: Location, splits: Sequence[str]) -> Ilsvrc2012:
    """Returns the archives that `splits` need, and the class list.

    The class list is the devkit's. Without a devkit it is the official one, and only the
    train split can be read: validation labels are nowhere else.

    Raises:
      UsageError: an archive or the devkit is not there; the message lists what is.
      SourceError: the devkit is damaged or contradicts the known labels.
    """
    if isinstance(folder, Path) and not folder.is_dir():
        raise UsageError(f"--source {folder}: no such folder. It should hold {_expected(splits)}.")
    wanted = {ARCHIVES[split]: folder / ARCHIVES[split] for split in splits}
    devkit_path = folder / labels.DEVKIT
    missing = [name for name, path in wanted.items() if not path.is_file()]
    if schema.VALIDATION in splits and not devkit_path.is_file():
        missing.append(labels.DEVKIT)
    if missing:
        held = ""
        if folder.is_dir():
            found = sorted(path.name for path in folder.iterdir())[:20]
            held = f"; the folder holds {', '.join(found) or 'nothing'}"
        raise UsageError(
            f"--source {folder}: {' and '.join(missing)} not found{held}. Get the archives from "
            "image-net.org (login needed), or choose other --splits."
        )
    if devkit_path.is_file():
        devkit = labels.read_devkit(devkit_path)
        classes, truth = devkit.classes, devkit.validation_class_index
    else:
        classes, truth = labels.official_classes(), ()
    # Other class lists come from other archives, which have md5s of their own.
    parts = tuple(
        source.file_part(wanted[ARCHIVES[s]], _PUBLISHED[s].md5 if classes.official else None)
        for s in splits
    )
    return Ilsvrc2012(classes, parts, wanted, truth)


def _expected(splits: Sequence[str]) -> str:
    return ", ".join([*(ARCHIVES[split] for split in splits), labels.DEVKIT])
