"""Reads MXNet's RecordIO: `train*.rec`, `val*.rec` and the lists, as written by im2rec.py.

Each line of a `.lst` file has a number, a label and a path CLASS/FILE, separated by tabs. The file
`synset.txt` has one line "WNID words" per label.
"""

from __future__ import annotations

import itertools
import os
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from imagenet_prep.core.errors import DataDamagedError, SourceError, UsageError, some
from imagenet_prep.core.terminal import counted
from imagenet_prep.dataset import record_files, schema
from imagenet_prep.dataset.class_list import ClassList
from imagenet_prep.dataset.keys import WNID
from imagenet_prep.dataset.member import Member
from imagenet_prep.sources import labels, source
from imagenet_prep.sources.labels import CLASSES, Claim, Statement, compare
from imagenet_prep.sources.scan import read_errors, refuse_link_out
from imagenet_prep.sources.source import IndexTask
from imagenet_prep.storage.archive import ArchiveReader
from imagenet_prep.storage.remote_path import open_to_read

SYNSET = "synset.txt"
# File name prefixes; "val" also matches "valid" and "validation".
_PREFIXES = {schema.TRAIN: "train", schema.VALIDATION: "val", schema.HOLDOUT: "holdout"}
_BOTH = "The two files are from different runs or damaged: get both again."
_PIECE_BYTES = 256 << 20  # listed by one task; several tasks run at a time
_MAX_LINE_BYTES = 1 << 13  # a line has a path and possibly several labels
# Images in a list. ImageNet-21K has 14,197,122. Each image takes 42 bytes of memory while sorting.
_MAX_IMAGES = 16_000_000
_MAX_CLASSES = 1 << 20
_MAX_DIGITS = 18
_FEWEST_FOLDERS = 2  # a list with one class may have one folder for all images


class RecordReader(ArchiveReader):
    """Reads the images in record files."""

    def read(self, archive: str, offset: int, size: int) -> bytes:
        """Returns the image that is stored in the `size` bytes at `offset`."""
        return record_files.image(super().read(archive, offset, size))


class ImageList:
    """A `.lst` file; picklable.

    Image paths are read when needed, because those of ImageNet-21K take 700 MB.

    Attributes:
      firsts, lasts: the first and last folder in the paths of each label; "" if they differ.
      problem: a sentence if the last folders of a label differ, else "".
    """

    def __init__(self, path: Path) -> None:
        refuse_link_out(path)
        self.firsts: dict[int, str] = {}
        self.lasts: dict[int, str] = {}
        self.problem = ""
        self._path = path
        self._reader = ArchiveReader({path.name: path})
        numbers = array("q")
        starts = array("q")
        sizes = array("H")
        start = 0
        with read_errors(path, "Get it again."), open_to_read(path) as file:
            while line := file.readline(_MAX_LINE_BYTES):
                where = f"{path}: line {len(starts) + 1:,}"
                number, label, name = _row(line, where)
                if len(starts) == _MAX_IMAGES:
                    raise SourceError(f"{where}: expected at most {counted(_MAX_IMAGES, 'image')}.")
                numbers.append(number)
                starts.append(start)
                sizes.append(len(line))
                start += len(line)
                *folders, _ = name.split("/")
                if not folders:
                    continue
                if self.firsts.setdefault(label, folders[0]) != folders[0]:
                    self.firsts[label] = ""
                if self.lasts.setdefault(label, folders[-1]) != folders[-1] and not self.problem:
                    names = f"{folders[-1]!r}, but {self.lasts[label]!r} in an earlier line"
                    self.problem = f"{where}: label {label} is {names}. Get the list again."
        order = np.argsort(numbers, kind="stable")
        self._numbers = np.asarray(numbers, np.int64)[order]
        self._starts = np.asarray(starts, np.int64)[order]
        self._sizes = np.asarray(sizes, np.uint16)[order]
        twice = self._numbers[1:][self._numbers[1:] == self._numbers[:-1]]
        if len(twice):
            raise SourceError(f"{path}: image number {twice[0]} appears twice. Get the list again.")

    @property
    def names_first_folders(self) -> bool:
        """Whether each class has its own first folder, so that this folder names the class."""
        names = self.firsts.values()
        return all(names) and 1 < len(names) == len({*names})

    def __len__(self) -> int:
        """Returns the number of images."""
        return len(self._numbers)

    def row(self, number: int) -> tuple[int, str] | None:
        """Returns the label and the path of an image, or None if it is not in the list."""
        at = int(np.searchsorted(self._numbers, number))
        if at == len(self._numbers) or self._numbers[at] != number:
            return None
        line = self._reader.read(self._path.name, int(self._starts[at]), int(self._sizes[at]))
        return _row(line, str(self._path))[1:]


def _row(line: bytes, where: str) -> tuple[int, int, str]:
    try:
        number, label, *_, name = line.decode().rstrip("\n").split("\t")
        if not number.isdecimal() or len(number) > _MAX_DIGITS:
            raise ValueError(f"{number[:40]!r} is not an image number")
        return int(number), _class_index(float(label)), name.rstrip("\r")
    except ValueError as error:
        raise SourceError(
            f"{where}: expected number, label and path, separated by tabs: {str(error)[:200]}. "
            "Get the list again."
        ) from error


@dataclass(frozen=True)
class RecordIOSource(source.StoredSource):
    """A source of record files; `files` and `lists` are keyed by the names of the record files."""

    files: dict[str, Path]
    lists: dict[str, ImageList]
    lone_lists: dict[str, list[str]]  # by split, those of missing record files

    @property
    def reader(self) -> RecordReader:
        """The reader of the images in record files."""
        return RecordReader(self.files)

    def index(self, task: IndexTask) -> list[Member]:
        """Returns the images of the records that begin in a task's byte range, sorted by key."""
        path = self.files[task.part]
        with read_errors(path, "Get the file again."), open_to_read(path) as file:
            size = os.fstat(file.fileno()).st_size
            try:
                records = [*record_files.scan(file, task.start, min(task.stop, size), size)]
            except DataDamagedError as error:
                raise SourceError(f"{path}: {error}. Get the file again.") from error
            members = [self._member(task, record) for record in records]
        return source.sorted_by_key(members, str(path))

    def count_problems(self, split: str, num_per_class: Sequence[int]) -> list[str]:
        """Returns messages about missing files, and about the published counts."""
        problems = super().count_problems(split, num_per_class)
        problems += source.missing_file_problems(split, self.index_tasks(split))
        if self.lone_lists[split]:
            problems.append(f"{split} has no .rec file of {some(self.lone_lists[split])}")
        return problems

    def file_problems(self, num_images: Mapping[str, int]) -> list[str]:
        """Returns messages about files with fewer or more records than their .lst or .idx names."""
        problems = []
        for name, found in num_images.items():
            named = {".lst": len(self.lists[name])} if name in self.lists else {}
            index = self.files[name].with_suffix(".idx")
            if index.is_file():
                named[".idx"] = _num_lines(index)
            for ending, number in named.items():
                if number != found:
                    images = counted(found, "image")
                    problems.append(f"{name} has {images}, but its {ending} file names {number:,}")
        return problems

    def _member(self, task: IndexTask, record: record_files.ImageRecord) -> Member:
        where = f"{self.files[task.part]}: byte {record.offset:,}: image {record.number}"
        try:
            index = _class_index(record.label)
        except ValueError as error:
            raise SourceError(f"{where}: {error}. Get the file again.") from error
        last = len(self.classes.wnids) - 1
        if index > last:
            raise SourceError(f"{where}: label {index}, expected 0 to {last}. Get the file again.")
        path = f"{task.part.removesuffix('.rec')}_{record.number:08d}"
        if task.part in self.lists:
            row = self.lists[task.part].row(record.number)
            if row is None:
                raise SourceError(f"{where}: its .lst file has no such image. {_BOTH}")
            label, path = row
            if label != index:
                raise SourceError(
                    f"{where}: label {index} ({self.classes.wnids[index]}), but its .lst file says "
                    f"label {label} and {path!r}. {_BOTH}"
                )
        class_id = self.classes.wnids[index]
        first, _, below = path.partition("/")
        # Keys have the folders below the class folder, but ImageNet's keys have none.
        has_folders = not WNID.fullmatch(class_id) and "_".join(first.split()) == class_id
        folder = below[: below.rfind("/") + 1] if has_folders else ""
        place = f"{task.part}:{record.number}"
        key = self.key_of(task.split, index, path, where, folder, place)
        return Member(key, task.part, record.offset, record.size, index)


def _num_lines(path: Path) -> int:
    """Returns the number of lines of a file; the last one may lack its end."""
    refuse_link_out(path)
    count = 0
    last = b"\n"
    with read_errors(path, "Get it again."), open_to_read(path) as file:
        for piece in iter(partial(file.read, 1 << 20), b""):
            count += piece.count(b"\n")
            last = piece[-1:]
    return count + (last != b"\n")


def locate(root: Path) -> dict[str, list[Path]]:
    """Returns the `.rec` files of a folder by split."""
    paths = sorted(root.glob("*.rec"))
    found = {s: [p for p in paths if p.name.startswith(_PREFIXES[s])] for s in _PREFIXES}
    return {split: paths for split, paths in found.items() if paths}


def find(root: Path, splits: Sequence[str]) -> RecordIOSource:
    """Returns the source of `splits`; raises UsageError if a split has no files."""
    found = locate(root)
    missing = [split for split in splits if split not in found]
    if missing:
        names = " and no ".join(f"{_PREFIXES[split]}*.rec" for split in missing)
        raise UsageError(
            f"--source {root}: no {names}. Rename the files to match, or choose --splits."
        )
    paths = [*itertools.chain.from_iterable(found[split] for split in splits)]
    list_paths = {path.name: path.with_suffix(".lst") for path in paths}
    lists = {name: ImageList(path) for name, path in list_paths.items() if path.is_file()}
    synsets = [path for path in (root / SYNSET,) if path.is_file()]
    lists_by_path = {list_paths[name]: image_list for name, image_list in lists.items()}
    folders = _class_folders(lists_by_path)
    classes = _read_synset(*synsets) if synsets else _classes_of(lists_by_path, folders, root)
    statements = _compared(synsets, classes, folders)
    files_read = [*paths, *(list_paths[name] for name in lists), *synsets]
    parts = {path: source.file_part(path) for path in files_read}
    tasks = []
    for split in splits:
        for path in found[split]:
            name = path.name
            # A file of 100 GB is listed by many workers, each from a byte offset.
            for start in range(0, parts[path].num_bytes, _PIECE_BYTES):
                end = start + _PIECE_BYTES
                tasks.append(IndexTask(f"{name}-{start:015d}", split, name, None, start, end))
    files = {path.name: path for path in paths}
    parts_read = tuple(parts.values())
    lone_lists: dict[str, list[str]] = {split: [] for split in splits}
    for split in splits:
        families = {source.family_of(path.name) for path in found[split]} - {None}
        for path in sorted(root.glob(f"{_PREFIXES[split]}*.lst")):
            name = path.with_suffix(".rec").name
            # Other lists may name images of all files, or of a part of them.
            if name not in files and source.family_of(name) in families:
                lone_lists[split].append(path.name)
    return RecordIOSource(
        classes, parts_read, files, lists, lone_lists, tasks=tuple(tasks), evidence=statements
    )


def _class_folders(lists: Mapping[Path, ImageList]) -> dict[Path, dict[int, str]]:
    """Returns the folder of each label, for each list in which a label has only one.

    It is the first folder in the paths if each class has a different one, or if the first folders
    agree with those of such a list; else the last.
    """
    known: dict[int, str] = {}
    for image_list in lists.values():
        if image_list.names_first_folders:
            known |= image_list.firsts
    found: dict[Path, dict[int, str]] = {}
    for path, image_list in lists.items():
        if image_list.names_first_folders or image_list.firsts.items() <= known.items():
            found[path] = image_list.firsts
        elif not image_list.problem:
            found[path] = image_list.lasts
    return found


def _compared(
    synsets: Sequence[Path], classes: ClassList, lists: Mapping[Path, Mapping[int, str]]
) -> tuple[Statement, ...]:
    """Compares the folders in the lists with synset.txt; returns the statements about the classes.

    Args:
      synsets: synset.txt, if it exists.
      classes: the class list, which is that of synset.txt.
      lists: the folder of each label, by list.
    """
    claims = [Claim(str(path), dict(enumerate(classes.wnids))) for path in synsets]
    for path, folders in lists.items():
        ids = {label: _class_id(folder, classes) for label, folder in folders.items()}
        names = set(ids.values())
        # Folders that are the same for several classes, or numbers, are not the names of classes.
        if _FEWEST_FOLDERS <= len(names) == len(ids) and not all(map(str.isdecimal, names)):
            claims.append(Claim(str(path), ids))
    compare("label", claims, f"Remove {SYNSET} to use the folders as names, or get both again.")
    return tuple(
        Statement(CLASSES, Path(claim.where).name, counted(len(claim.classes), "class"))
        for claim in claims
    )


def _class_id(folder: str, classes: ClassList) -> str:
    index = classes.of_folder(folder)
    return "_".join(folder.split()) if index is None else classes.wnids[index]


def _classes_of(
    lists: Mapping[Path, ImageList], folders: Mapping[Path, Mapping[int, str]], root: Path
) -> ClassList:
    """Returns ILSVRC2012's classes if all labels match them, else the classes in the lists."""
    for path, image_list in lists.items():
        if path not in folders:
            raise SourceError(image_list.problem)
    claims = [Claim(str(path), names_by_label) for path, names_by_label in folders.items()]
    compare("label", claims, "Keep only the files of one dataset.")
    names: dict[int, str] = {}
    for names_by_label in folders.values():
        names |= names_by_label
    official = labels.official_classes()
    if names and all(official.index.get(name) == label for label, name in names.items()):
        return official
    if not names or names.keys() != set(range(len(names))):
        raise UsageError(
            f"--source {root}: the class names are missing. Put im2rec.py's .lst files, with paths "
            f"CLASS/file, next to the .rec files; or {SYNSET} with a line 'WNID words' per label."
        )
    return labels.classes_called([names[label] for label in range(len(names))], str(root))


def _read_synset(path: Path) -> ClassList:
    lines = [line for line in source.read_list(path).splitlines() if line.strip()]
    if labels.are_official_words(lines):
        return labels.official_classes()
    rows = [line.partition(" ") for line in lines]
    words = {row[0]: row[2].strip() for row in rows if row[2].strip()}
    classes = labels.classes_called([row[0] for row in rows], str(path), words)
    if not rows or len(rows) > _MAX_CLASSES:
        raise SourceError(f"{path}: {len(rows):,} classes, expected 1 to {_MAX_CLASSES:,}.")
    return labels.official_classes() if classes.official else classes


def _class_index(label: float) -> int:
    if not 0 <= label < _MAX_CLASSES or label != int(label):
        raise ValueError(f"label {label}, expected an integer from 0 to {_MAX_CLASSES - 1:,}")
    return int(label)
