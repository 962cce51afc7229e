"""A folder a class, as torchvision's ImageFolder and Kaggle have it; validation may be flat.

ROOT/train/CLASS/*, ROOT/val/CLASS/* or ROOT/val/*; Kaggle's are ROOT/ILSVRC/Data/CLS-LOC/train
and .../val; the face-blurred ILSVRC2012's and ImageNet-21K-P's have names of their own. Labels of
a flat validation folder come from the devkit, from tensorflow/models' list of synsets, or from
Kaggle's solution.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from imagenet_prep.core.errors import SourceError, UsageError, some
from imagenet_prep.dataset import schema
from imagenet_prep.dataset.member import MAX_IMAGE_BYTES, Member
from imagenet_prep.sources import editions, labels, lemmas, source
from imagenet_prep.sources.source import File, IndexTask
from imagenet_prep.storage.archive import Range

FOLDERS = {
    schema.TRAIN: ("train", "train_blurred", "imagenet21k_train"),
    schema.VALIDATION: ("val", "validation", "valid", "val_blurred", "imagenet21k_val"),
}
KAGGLE = "Data/CLS-LOC"

# One WNID a line in the order of the file names (tensorflow/models, research/slim).
SYNSET_LABELS = "imagenet_2012_validation_synset_labels.txt"
# Kaggle's: a line "WNID words" a class; and "ImageId,PredictionString" with "WNID x y x y ...".
SYNSET_MAPPING = "LOC_synset_mapping.txt"
SOLUTION = "LOC_val_solution.csv"

_IMAGES = (".jpeg", ".jpg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff")


class FileReader:
    """Reads whole files below a folder. Opens and closes each: there may be a million."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def read(self, archive: str, offset: int, size: int) -> bytes:
        """Returns the bytes of a file, `size` of them from `offset` 0.

        Of files that are too large for an image the beginning may be asked for.

        Raises:
          SourceError: it cannot be read, or has another size than when it was listed.
        """
        path = self._root / archive
        try:
            with open(path, "rb") as file:
                there = os.fstat(file.fileno()).st_size
                data = file.read(offset + size)
        except OSError as error:
            raise SourceError(
                f"{path}: cannot be read: {error.strerror}. Check the disk that holds it."
            ) from error
        if there < size or (there > size and size <= MAX_IMAGE_BYTES):
            raise SourceError(
                f"{path}: has {there:,} bytes, had {size:,} when it was listed. "
                "Leave the source as it is while it is read, then run this again."
            )
        return data

    def will_need(self, ranges: Iterable[Range]) -> None:
        """Does nothing: to open a file for advice costs as much as to read it."""


@dataclass(frozen=True)
class Folder(source.Stored):
    """Folders of images.

    Attributes:
      root: what paths are relative to.
      folders: of the splits, relative to root.
      class_folders: name by class index, for each split that has a folder a class.
      validation_class_index: class index by stem of each image of a flat validation folder;
        None where it has a folder a class.
    """

    root: Path
    folders: dict[str, str]
    class_folders: dict[str, dict[int, str]]
    validation_class_index: dict[str, int] | None

    @property
    def name(self) -> str:
        """What dataset_info.json calls it."""
        return "imagenet2012" if self.is_ilsvrc else "images"

    @property
    def is_ilsvrc(self) -> bool:
        """Whether this is ILSVRC2012 or a part of it, whose counts are known."""
        return self.classes.official or self.validation_class_index is not None

    @property
    def reader(self) -> FileReader:
        """Reads the files."""
        return FileReader(self.root)

    @property
    def identity(self) -> list[object]:
        """What decides the members, as JSON."""
        return [*super().identity, self.validation_class_index]

    def index_tasks(self, split: str) -> list[IndexTask]:
        """Returns one task a class folder, or one for a flat validation folder."""
        folder = self.folders[split]
        part = Path(folder).name
        if split not in self.class_folders:
            return [IndexTask(split, split, part)]
        # Class folders may have names that fit no receipt.
        return [
            IndexTask(f"{split}-{index:05d}", split, part, index)
            for index in self.class_folders[split]
        ]

    def index(self, task: IndexTask) -> list[Member]:
        """Returns the images of one folder, sorted by key.

        Raises:
          SourceError: it is empty, a base name comes twice or contradicts its class, or a
            validation image has no label.
        """
        folder = self.folders[task.split]
        if task.class_index is not None:
            folder += f"/{self.class_folders[task.split][task.class_index]}"
        files = _images(source.scan(self.root / folder))
        members = source.sorted_by_key(
            (self._member(task, f"{folder}/{file.path}", file.num_bytes) for file in files),
            str(self.root),
        )
        if not members:
            raise SourceError(
                f"{self.root / folder}: holds no image. Get what is missing, or remove the folder."
            )
        return members

    def count_problems(self, split: str, num_per_class: Sequence[int]) -> list[str]:
        """Returns how counts differ from ILSVRC2012's, or from the edition's that folders name."""
        names = (Path(folder).name for folder in self.folders.values())
        called = (editions.called(name, len(self.classes.wnids)) for name in names)
        expected = next(filter(None, called), None)
        if expected is None and not self.is_ilsvrc:
            return []
        return (expected or editions.ILSVRC2012).problems(split, self.classes, num_per_class)

    def _member(self, task: IndexTask, path: str, num_bytes: int) -> Member:
        base = path.rpartition("/")[2]
        where = str(self.root / path)
        index = task.class_index
        if index is None:
            index = (self.validation_class_index or {}).get(base.rpartition(".")[0])
        if index is None:
            raise SourceError(
                f"{where}: has no label. Images and labels do not belong together, or this file "
                "does not belong here."
            )
        key = source.key_of(task.split, self.classes.wnids[index], base, self.classes, where)
        return Member(key, path, 0, num_bytes, index)


def split_folders(root: Path) -> tuple[Path, dict[str, str]]:
    """Returns the folder that paths are relative to, and the splits' folders below it."""
    base, prefix = root, ""
    for candidate in (root / "ILSVRC", root):
        if (candidate / KAGGLE).is_dir():
            # Given ILSVRC itself or the folder above: the paths are the same.
            base, prefix = candidate, f"{KAGGLE}/"
            break
    there = {split: _there(base / prefix, split) for split in FOLDERS}
    return base, {split: prefix + names[0] for split, names in there.items() if names}


def _there(base: Path, split: str) -> list[str]:
    return [name for name in FOLDERS[split] if (base / name).is_dir()]


def find(root: Path, splits: Sequence[str]) -> Folder:
    """Returns the folders that `splits` need, and the class list.

    The class list is the devkit's or Kaggle's where one is there. Else it is the official one
    where all class folders belong to it, so that labels never shift in a subset; else the
    sorted names of the class folders.

    Raises:
      UsageError: a folder or the validation labels are not there.
      SourceError: class folders contradict the class list, or labels are damaged.
    """
    base, folders = split_folders(root)
    if missing := [split for split in splits if split not in folders]:
        raise UsageError(
            f"--source {root}: no folder of {' and '.join(missing)}; expected "
            + " and ".join(f"one of {', '.join(f'{n}/' for n in FOLDERS[s])}" for s in missing)
            + ", or choose --splits."
        )
    for split in splits:
        if len(there := _there((base / folders[split]).parent, split)) > 1:
            raise UsageError(
                f"--source {root}: holds {' and '.join(there)}. Keep only the one "
                "that is to be read."
            )
    # Kaggle's lists lie beside ILSVRC/, or in it.
    beside = [base, base.parent] if (base / KAGGLE).is_dir() else [base]
    flat = schema.VALIDATION in splits and not source.subfolders(base / folders[schema.VALIDATION])
    lists = _Lists.find(beside)
    classes = lists.classes or _classes_of(base, folders)
    truth = lists.validation(classes, root) if flat else None
    parts = []
    class_folders = {}
    groups: Iterator[tuple[str, list[File]]]
    for split in splits:
        folder = base / folders[split]
        if flat and split == schema.VALIDATION:
            groups = iter([("", _images(source.scan(folder)))])
        else:
            _refuse_strays(folder)
            class_folders[split] = _class_folders(folder, classes)
            # One class at a time: the names of 13 million files take gigabytes.
            groups = (
                (name, _images(source.scan(folder / name)))
                for name in class_folders[split].values()
            )
        parts.append(source.folder_part(folder.name, groups))
    chosen = {split: folders[split] for split in splits}
    return Folder(classes, tuple(parts), base, chosen, class_folders, truth)


@dataclass(frozen=True)
class _Lists:
    """The files that name classes and labels, as far as they are there."""

    devkit: labels.Devkit | None
    mapping: labels.ClassList | None
    synset_labels: Path | None
    solution: Path | None

    @classmethod
    def find(cls, folders: Sequence[Path]) -> _Lists:
        def first(*names: str) -> Path | None:
            paths = [folder / name for name in names for folder in folders]
            return next((path for path in paths if path.exists()), None)

        devkit = first(labels.DEVKIT, labels.DEVKIT.removesuffix(".tar.gz"))
        mapping = first(SYNSET_MAPPING)
        return cls(
            labels.read_devkit(devkit) if devkit else None,
            _read_mapping(mapping) if mapping else None,
            first(SYNSET_LABELS, "synset_labels.txt"),
            first(SOLUTION),
        )

    @property
    def classes(self) -> labels.ClassList | None:
        return self.devkit.classes if self.devkit else self.mapping

    def validation(self, classes: labels.ClassList, root: Path) -> dict[str, int]:
        """Returns the class index by stem of the validation images."""
        if self.devkit is not None:
            numbers = enumerate(self.devkit.validation_class_index, start=1)
            return {f"ILSVRC2012_val_{number:08d}": index for number, index in numbers}
        if self.synset_labels is not None:
            lines = source.read_list(self.synset_labels).split()
            rows = [(f"ILSVRC2012_val_{i:08d}", wnid) for i, wnid in enumerate(lines, start=1)]
            return _class_indices(rows, classes, self.synset_labels)
        if self.solution is not None:
            return _class_indices(_read_solution(self.solution), classes, self.solution)
        raise UsageError(
            f"--source {root}: the validation folder is flat and its labels are not there. Put "
            f"one of these beside it: {labels.DEVKIT}, {SYNSET_LABELS}, {SOLUTION}; or give each "
            "class a folder."
        )


def _classes_of(base: Path, folders: dict[str, str]) -> labels.ClassList:
    """Returns the official class list, or one of the folders' names."""
    first = folders.get(schema.TRAIN) or folders[schema.VALIDATION]
    names = source.subfolders(base / first)
    official = labels.official_classes()
    known = [name for name in names if name in official.index]
    if len(known) == len(names):
        return official
    if Path(first).name in editions.WINTER21_P.names:
        words = lemmas.beside([base, base.parent])
        return labels.classes_called(names, str(base / first), words)
    # A stray folder must not turn ILSVRC2012 into a data set of 1001 classes.
    if 2 * len(known) > len(names):
        strangers = sorted(set(names) - set(known))
        raise SourceError(
            f"{base / first}: {len(known):,} folders are classes of ILSVRC2012, but not "
            f"{some(strangers)}. Move away the folders that are no classes."
        )
    return labels.classes_called(names, str(base / first))


def _class_folders(folder: Path, classes: labels.ClassList) -> dict[int, str]:
    """Returns the names of the class folders there are by class index, in that order."""
    found = {}
    for name in source.subfolders(folder):
        index = classes.index.get("_".join(name.split()))
        if index is None:
            raise SourceError(
                f"{folder / name}: is not in the class list of {len(classes.wnids):,} classes. "
                "Move the folder away, or get the class list that belongs to it."
            )
        found[index] = name
    return dict(sorted(found.items()))


def _refuse_strays(folder: Path) -> None:
    """Images beside the class folders have no class; to leave them out silently would be wrong."""
    with_image = (p.name for p in folder.iterdir() if p.is_file() and _is_image(p.name))
    if stray := next(with_image, None):
        raise SourceError(
            f"{folder / stray}: lies beside the class folders and has no class. Move it away."
        )


def _images(files: Sequence[File]) -> list[File]:
    return [file for file in files if _is_image(file.path)]


def _is_image(name: str) -> bool:
    return not name.startswith(".") and name.lower().endswith(_IMAGES)


def _read_mapping(path: Path) -> labels.ClassList:
    lines = source.read_list(path).splitlines()
    rows = sorted(line.partition(" ")[::2] for line in lines if line.strip())
    odd = [wnid for wnid, _ in rows if not labels.WNID.fullmatch(wnid)]
    if odd or not rows or len({wnid for wnid, _ in rows}) != len(rows):
        raise SourceError(
            f"{path}: expected a line 'WNID words' for each class, once"
            f"{f', got {odd[0]!r}' if odd else ''}. Get it again from Kaggle."
        )
    classes = labels.ClassList(tuple(row[0] for row in rows), tuple(row[1].strip() for row in rows))
    return labels.official_classes() if classes.official else classes


def _read_solution(path: Path) -> list[tuple[str, str]]:
    """Returns (stem, WNID) of each validation image."""
    rows = csv.reader(io.StringIO(source.read_list(path)))
    try:
        if next(rows, None) != ["ImageId", "PredictionString"]:
            raise SourceError(
                f"{path}: expected the columns ImageId,PredictionString. Get it again from Kaggle."
            )
        return [(row[0], row[1].partition(" ")[0] if len(row) > 1 else "") for row in rows if row]
    except csv.Error as error:
        raise SourceError(f"{path}: line {rows.line_num}: {error}. Get it again.") from error


def _class_indices(
    rows: Sequence[tuple[str, str]], classes: labels.ClassList, path: Path
) -> dict[str, int]:
    found: dict[str, int] = {}
    for number, (stem, wnid) in enumerate(rows, start=1):
        if wnid not in classes.index or stem in found:
            raise SourceError(
                f"{path}: entry {number}: {stem} is {wnid!r}, expected one of "
                f"{len(classes.wnids):,} classes, and each image once. Get the file again."
            )
        found[stem] = classes.index[wnid]
    return found
