"""ILSVRC2012 as image-net.org ships it: nested train tar, flat validation tar, devkit.

Finds the archives in a folder and lists their images by offset. Nothing is extracted.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from imagenet_prep.core import schema
from imagenet_prep.core.errors import SourceError, UsageError
from imagenet_prep.core.image import Member
from imagenet_prep.core.store import ArchiveReader
from imagenet_prep.sources import labels, tar

ARCHIVES = {
    schema.TRAIN: "ILSVRC2012_img_train.tar",
    schema.VALIDATION: "ILSVRC2012_img_val.tar",
}

# md5 as quoted by torchvision and image-net.org's download page.
OFFICIAL_MD5 = {
    "ILSVRC2012_img_train.tar": "1d675b47d978889d74fa0da5fadfb00e",
    "ILSVRC2012_img_val.tar": "29b22e2961454d5413ddabcf34fc5622",
}

_VALIDATION_NAME = re.compile(r"^ILSVRC2012_val_(\d{8})\.[A-Za-z]+$")
_WNID_PREFIX = re.compile(r"^(n\d{8})_")


@dataclass(frozen=True)
class Ilsvrc2012:
    """The archives of one data set.

    Attributes:
      archives: path by archive name.
      classes: the class list; a class index is a position in it.
      validation_class_index: class index of each validation image, in file-name order;
        empty where no validation split is read.
    """

    archives: dict[str, Path]
    classes: labels.ClassList
    validation_class_index: tuple[int, ...]


class IndexTask(NamedTuple):
    """One tar whose headers are read: bytes [start, stop) of `archive`."""

    name: str
    split: str
    archive: str
    start: int
    stop: int
    wnid: str | None


def find(folder: Path, splits: Sequence[str]) -> Ilsvrc2012:
    """Returns the archives that `splits` need, and the class list.

    The class list is the devkit's. Without a devkit it is the official one, and only the
    train split can be read: validation labels are nowhere else.

    Raises:
      UsageError: an archive or the devkit is not there; the message lists what is.
      SourceError: the devkit is damaged or contradicts the known labels.
    """
    if not folder.is_dir():
        raise UsageError(f"--source {folder}: no such folder. It should hold {_expected(splits)}.")
    wanted = {ARCHIVES[split]: folder / ARCHIVES[split] for split in splits}
    devkit_path = folder / labels.DEVKIT
    missing = [name for name, path in wanted.items() if not path.is_file()]
    if schema.VALIDATION in splits and not devkit_path.is_file():
        missing.append(labels.DEVKIT)
    if missing:
        found = sorted(path.name for path in folder.iterdir())[:20]
        raise UsageError(
            f"--source {folder}: {' and '.join(missing)} not found; the folder holds "
            f"{', '.join(found) or 'nothing'}. Get the archives from image-net.org "
            "(login needed), or choose other --splits."
        )
    if devkit_path.is_file():
        devkit = labels.read_devkit(devkit_path)
        return Ilsvrc2012(wanted, devkit.classes, devkit.validation_class_index)
    return Ilsvrc2012(wanted, labels.official_classes(), ())


def index_tasks(source: Ilsvrc2012, reader: ArchiveReader, split: str) -> list[IndexTask]:
    """Returns one task a tar: a class of train, or the whole of validation.

    Raises:
      SourceError: the outer tar is damaged, or holds what is not a class of the list.
    """
    archive = ARCHIVES[split]
    size = reader.size(archive)
    if split == schema.VALIDATION:
        return [IndexTask(split, split, archive, 0, size, None)]
    tasks = []
    for inner in tar.members(reader, archive, 0, size):
        wnid, dot, kind = inner.name.rpartition("/")[2].rpartition(".")
        if not dot or kind != "tar":
            raise SourceError(
                f"{archive}: byte {inner.offset:,}: member {inner.name!r}, expected <WNID>.tar. "
                "This is not the train archive of ILSVRC2012."
            )
        if wnid not in source.classes.index:
            raise SourceError(
                f"{archive}: byte {inner.offset:,}: class {wnid!r} is not in the class list of "
                f"{len(source.classes.wnids)} classes. Archive and devkit do not belong together."
            )
        name = f"{split}-{wnid}"
        tasks.append(IndexTask(name, split, archive, inner.offset, inner.offset + inner.size, wnid))
    names = [task.name for task in tasks]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise SourceError(f"{archive}: holds {', '.join(twice)} twice")
    return tasks


def index(task: IndexTask, source: Ilsvrc2012, reader: ArchiveReader) -> list[Member]:
    """Returns the images of one tar, sorted by key.

    Raises:
      SourceError: the tar is damaged or empty, a key comes twice, a name contradicts its
        class, or a validation image has no label.
    """
    found: dict[str, Member] = {}
    for file in tar.members(reader, task.archive, task.start, task.stop):
        member = _member(task, source, file)
        if member.key in found:
            raise SourceError(
                f"{task.archive}: {member.key!r} comes twice, at bytes "
                f"{found[member.key].offset:,} and {member.offset:,}. "
                "ImageNet has no duplicates: the archive was put together wrongly."
            )
        found[member.key] = member
    if not found:
        raise SourceError(
            f"{task.archive}: byte {task.start:,}: {task.wnid or task.split} holds no image. "
            "The archive is not whole: compare its md5 and download it again."
        )
    return [found[key] for key in sorted(found)]


def count_problems(
    split: str, classes: labels.ClassList, num_per_class: Sequence[int]
) -> list[str]:
    """Returns how counts differ from ILSVRC2012's official ones; empty where they do not.

    Args:
      split: "train" or "validation".
      classes: the class list.
      num_per_class: images by class index.
    """
    if not classes.official:
        return [f"the class list has {len(classes.wnids)} classes and is not ILSVRC2012's"]
    problems = []
    total, expected = sum(num_per_class), schema.OFFICIAL_NUM_EXAMPLES[split]
    if total != expected:
        problems.append(f"{split} has {total:,} images, expected {expected:,}")
    if absent := [w for w, n in zip(classes.wnids, num_per_class, strict=True) if not n]:
        problems.append(f"{split} misses {_some(absent)}")
    low, high = schema.OFFICIAL_CLASS_RANGE[split]
    odd = [
        f"{wnid} with {count:,}"
        for wnid, count in zip(classes.wnids, num_per_class, strict=True)
        if count and not low <= count <= high
    ]
    if odd:
        problems.append(f"{split} expects {low} to {high} images a class, got {_some(odd)}")
    return problems


def _member(task: IndexTask, source: Ilsvrc2012, file: tar.TarMember) -> Member:
    base = file.name.rpartition("/")[2]
    where = f"{task.archive}: byte {file.offset:,}: {file.name!r}"
    if task.wnid is not None:
        prefix = _WNID_PREFIX.match(base)
        if prefix is not None and prefix[1] != task.wnid:
            raise SourceError(f"{where}: lies in {task.wnid}.tar but is named after {prefix[1]}")
        index = source.classes.index[task.wnid]
        return Member(f"{task.wnid}/{base}", task.archive, file.offset, file.size, index)
    number = _VALIDATION_NAME.match(base)
    if number is None:
        raise SourceError(f"{where}: expected ILSVRC2012_val_<8 digits>.JPEG")
    position = int(number[1])
    if not 1 <= position <= len(source.validation_class_index):
        raise SourceError(
            f"{where}: the devkit has labels for images 1 to "
            f"{len(source.validation_class_index):,}. Archive and devkit do not belong together."
        )
    index = source.validation_class_index[position - 1]
    return Member(base, task.archive, file.offset, file.size, index)


def _expected(splits: Sequence[str]) -> str:
    return ", ".join([*(ARCHIVES[split] for split in splits), labels.DEVKIT])


def _some(items: Sequence[Any]) -> str:
    shown = ", ".join(str(item) for item in items[:5])
    return shown if len(items) <= 5 else f"{shown} and {len(items) - 5} more"
