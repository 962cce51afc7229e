"""Reads datasets with a folder per class, as in torchvision's ImageFolder and on Kaggle.

The validation folder may have no class folders. The labels of its images then come from the devkit,
the synset list of tensorflow/models, or Kaggle's solution.
"""

from __future__ import annotations

import csv
import io
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

from imagenet_prep.core.errors import SourceError, UsageError, some
from imagenet_prep.core.terminal import counted, printable
from imagenet_prep.dataset import editions, formats, keys, naming, schema
from imagenet_prep.dataset.class_list import ClassList
from imagenet_prep.dataset.ignored import ending, in_words, is_hidden, most_frequent
from imagenet_prep.dataset.member import MAX_IMAGE_BYTES, Member
from imagenet_prep.sources import labels, layout, lemmas, listing, source
from imagenet_prep.sources.scan import File, Problems, hidden_files, read_errors, subfolders
from imagenet_prep.sources.source import IndexTask
from imagenet_prep.storage.archive import Range
from imagenet_prep.storage.remote import is_newer
from imagenet_prep.storage.remote_path import open_to_read

_DEVKITS = (labels.DEVKIT, labels.DEVKIT.removesuffix(".tar.gz"))
# One WNID per line, in order of the file names (tensorflow/models, research/slim).
SYNSET_LABELS = "imagenet_2012_validation_synset_labels.txt"
# Kaggle's lists: "WNID words" per class, and "ImageId,PredictionString" with "WNID x y x y ...".
SYNSET_MAPPING = "LOC_synset_mapping.txt"
SOLUTION = "LOC_val_solution.csv"


class FileReader:
    """Reads complete files; closes each after reading, as there may be a million files."""

    def __init__(self, root: Path, newest: int) -> None:
        self._root = root
        self._newest = newest  # the latest file time when the files were listed

    def read(self, archive: str, offset: int, size: int) -> bytes:
        """Returns the first `size` bytes; raises SourceError if the file has changed."""
        path = self._root / archive
        with read_errors(path, "Check the disk that holds it."), open_to_read(path) as file:
            now = os.fstat(file.fileno())
            data = file.read(offset + size)
        size_differs = now.st_size < size or (now.st_size > size and size <= MAX_IMAGE_BYTES)
        if size_differs or is_newer(now, self._newest):
            sizes = f": has {now.st_size:,} bytes, had {size:,}" if size_differs else ""
            raise SourceError(
                f"{path}: was changed after it was listed{sizes}. Do not change the source while "
                "it is read, and run the same command again."
            )
        return data

    def will_need(self, ranges: Iterable[Range]) -> None:
        """Does nothing: opening a file to prefetch it costs as much as reading it."""


@dataclass(frozen=True)
class Folder(source.Stored):
    """A source with one folder per class, or with a flat validation folder."""

    decisive: ClassVar[tuple[str, ...]] = ("validation_class_index", "is_own")
    root: Path
    validation_class_index: dict[str, int] | None  # by file name without extension, if flat
    inside: Path | None  # links must stay in this folder, as they may point to private images
    # For custom photographs, the content of a file decides if it is an image, and keys include the
    # folders below the class folder.
    is_own: bool

    @property
    def is_ilsvrc(self) -> bool:
        """Whether the source has ILSVRC2012's classes or a flat validation folder."""
        return super().is_ilsvrc or self.validation_class_index is not None

    @property
    def split_folders(self) -> list[Path]:
        """The folders of the splits that are read."""
        of_tasks = {
            task.archive if task.class_index is None else str(Path(task.archive).parent)
            for task in self.tasks
        }
        return sorted(self.root / path for path in of_tasks)

    @property
    def reader(self) -> FileReader:
        """The reader of the image files."""
        return FileReader(self.root, max(part.newest for part in self.parts))

    def index(self, task: IndexTask) -> list[Member]:
        """Returns the images of one folder, sorted by key."""
        problems, members = Problems(), list[Member]()
        files = self._below(task, problems)
        for file in files.images:
            try:
                members.append(self._member(task, file))
            except SourceError as error:
                problems.add(error)
        if not files.images and not problems:
            for other in self.tasks:
                _note_empty(self.root / other.archive, self._below(other), problems)
        problems.raise_all(self.root)
        if files.unread.total() == len(members):
            kinds = ", ".join(f"{number:,} {kind}" for kind, number in files.unread.items())
            raise UsageError(
                f"{self.root / task.archive}: holds only photographs in unsupported formats: "
                f"{kinds}. To read them, {formats.remedy(files.unread)}; or remove the folder."
            )
        return source.sorted_by_key(members, str(self.root))

    def _below(self, task: IndexTask, problems: Problems | None = None) -> listing.Listing:
        folder, by_content = self.root / task.archive, self.is_own
        return listing.below(folder, self.inside, by_content=by_content, problems=problems)

    @property
    def edition(self) -> editions.Edition | None:
        """The edition that a folder is named after, or ILSVRC2012 if the source is a part of it."""
        called = (editions.called(part.name, len(self.classes.wnids)) for part in self.parts)
        return next(filter(None, called), super().edition)

    def _member(self, task: IndexTask, file: File) -> Member:
        path = f"{task.archive}/{file.path}"
        where = str(self.root / path)
        index = task.class_index
        if index is None:
            stem = path.rpartition("/")[2].rpartition(".")[0]
            index = (self.validation_class_index or {}).get(stem)
        if index is None:
            raise SourceError(
                f"{where}: has no label. Get labels that include this image, or move it away."
            )
        folder = file.path[: file.path.rfind("/") + 1] if self.is_own else ""
        key = self.key_of(task.split, index, path, where, folder)
        return Member(key, path, 0, file.num_bytes, index)


@read_errors("")
def find(
    root: Path,
    splits: Sequence[str],
    *,
    follow_links: bool = False,
    classes: ClassList | None = None,
) -> Folder:
    """Returns the source of `splits`.

    The class list is the first available of: `classes`, the devkit's, Kaggle's, ILSVRC2012's (if it
    includes all class folders), and the sorted folder names. With ILSVRC2012's list, a subset of
    its classes keeps the labels of the full dataset.
    """
    inside = None if follow_links else root
    names = layout.split_folders(root)
    base, folders, lists = names[:3]
    if missing := [split for split in splits if split not in folders]:
        if schema.TRAIN in folders:
            layout.class_folders(base / folders[schema.TRAIN])
        expected = [", ".join(f"{name}/" for name in layout.FOLDERS[split]) for split in missing]
        existing = subfolders(names.top, any_name=True) if names.top.is_dir() else []
        raise UsageError(
            f"--source {root}: no folder for {' and '.join(missing)}; expected one of "
            f"{' and one of '.join(expected)}. Choose splits with --splits. Found: "
            f"{printable(some([f'{name}/' for name in existing])) or 'no folders'}."
        )
    for split in splits:
        if len(rivals := names.names.get(split, ())) > 1:
            raise UsageError(
                f"--source {root}: holds {printable(' and '.join(rivals))}. Keep only one of them."
            )
    flat = schema.VALIDATION in splits and not subfolders(base / folders[schema.VALIDATION])
    archive, mapping = _first(lists, *_DEVKITS), _first(lists, SYNSET_MAPPING)
    devkit = labels.read_devkit(archive) if archive else None
    if classes is None and devkit is not None:
        classes = devkit.classes
    elif classes is None:
        classes = _read_mapping(mapping) if mapping else _classes_of(base, folders)
    truth = _validation(devkit, lists, classes, root) if flat else None
    is_own = truth is None and not is_imagenet(classes, folders.values())
    parts, tasks, problems = list[source.Part](), list[IndexTask](), Problems()
    for split in splits:
        folder = base / folders[split]
        below: list[tuple[int | None, str]] = [(None, "")]
        ignored = Counter(() if parts else layout.unread(names))
        if not flat or split != schema.VALIDATION:
            below = [*_class_folders(folder, classes, problems).items()]
            if (root / naming.EXPORT).is_file():
                # `export` creates empty folders for classes that a split does not have.
                below = [(index, name) for index, name in below if any((folder / name).iterdir())]
            ignored.update(_loose_files(folder, is_own, problems))
        list_below = partial(listing.below, inside=inside, by_content=is_own)
        groups = _listed(folder, [name for _, name in below], list_below, ignored, problems)
        part = source.folder_part(names.names.get(split, [folder.name])[0], groups)
        parts.append(part._replace(ignored=tuple(most_frequent(ignored).items())))
        for index, name in below:
            # The name of a class folder may be invalid as the name of a receipt.
            task = split if index is None else f"{split}-{index:05d}"
            path = str(Path(folders[split], name))
            tasks.append(IndexTask(task, split, part.name, index, archive=path))
    problems.raise_all(f"--source {root}")
    return Folder(classes, tuple(parts), base, truth, inside, is_own, tasks=tuple(tasks))


def is_imagenet(classes: ClassList, folders: Iterable[str]) -> bool:
    """Returns whether the images are from ImageNet, judged by class and folder names."""
    names = {path.rpartition("/")[2] for path in folders}
    editions_called = (editions.called(name, len(classes.wnids)) for name in names)
    return classes.official or any(editions_called) or all(map(keys.WNID.fullmatch, classes.wnids))


def _listed(
    folder: Path,
    names: Sequence[str],
    list_below: Callable[..., listing.Listing],
    ignored: Counter[str],
    problems: Problems,
) -> Iterator[tuple[str, list[File]]]:
    """Yields images class by class, since the names of 13 million files take gigabytes."""
    empty = []
    for name in names:
        files = list_below(folder / name, problems=problems)
        ignored.update(files.ignored)
        empty += [(folder / name, files)] * (not files.images)
        yield name, files.images
    # If there are no other problems, `index` reports empty folders when it reads their class.
    for path, files in empty if problems else ():
        _note_empty(path, files, problems)


def _note_empty(folder: Path, files: listing.Listing, problems: Problems) -> None:
    if not files.images:
        others = f", but {in_words(files.ignored)}" if files.ignored else ""
        problems.add(f"{folder}: holds no image{others}. Add images to it, or remove the folder.")


def _first(folders: Sequence[Path], *names: str) -> Path | None:
    paths = [folder / name for name in names for folder in folders]
    return next((path for path in paths if path.exists()), None)


def _validation(
    devkit: labels.Devkit | None, lists: Sequence[Path], classes: ClassList, root: Path
) -> dict[str, int]:
    """Returns class indices by validation file name (no extension), from the first label list."""
    if devkit is not None:
        numbers = enumerate(devkit.validation_class_index, start=1)
        return {f"ILSVRC2012_val_{number:08d}": index for number, index in numbers}
    if (path := _first(lists, SYNSET_LABELS, "synset_labels.txt")) is not None:
        lines = source.read_list(path).split()
        rows = [(f"ILSVRC2012_val_{i:08d}", wnid) for i, wnid in enumerate(lines, start=1)]
        return _class_indices(rows, classes, path)
    if (path := _first(lists, SOLUTION)) is not None:
        return _class_indices(_read_solution(path), classes, path)
    raise UsageError(
        f"--source {root}: the validation folder has no class folders and its labels are missing. "
        f"Put {labels.DEVKIT}, {SYNSET_LABELS} or {SOLUTION} there, or create class folders."
    )


def _classes_of(base: Path, folders: dict[str, str]) -> ClassList:
    first = folders.get(schema.TRAIN) or folders[schema.VALIDATION]
    names = layout.class_folders(base / first)
    official = labels.official_classes()
    known = [name for name in names if name in official.index]
    if len(known) == len(names):
        return official
    if Path(first).name in editions.WINTER21_P.names:
        words = lemmas.beside([base, base.parent])
        return labels.classes_called(names, str(base / first), words)
    # An extra folder must not turn ILSVRC2012 into a dataset of 1001 classes.
    if 2 * len(known) > len(names):
        strangers = sorted(set(names) - set(known))
        raise SourceError(
            f"{base / first}: {len(known):,} of {len(names):,} folders are classes of ILSVRC2012, "
            f"but these are not: {some(strangers)}. Move them away."
        )
    return labels.classes_called(names, str(base / first))


def _class_folders(folder: Path, classes: ClassList, problems: Problems) -> dict[int, str]:
    names: dict[int, str] = {}
    for name in layout.class_folders(folder, classes):
        index = classes.of_folder(name)
        if index is None:
            problems.add(
                f"{folder / name}: is not in the class list of "
                f"{counted(len(classes.wnids), 'class')}. Move it away, or get a list that has it."
            )
        elif (first := names.setdefault(index, name)) != name:
            problems.add(
                f"{folder}: {first!a} and {name!a} are the same class (spaces become '_'; case "
                "and Unicode form are ignored). Put their images into one folder, or rename one."
            )
    return dict(sorted(names.items()))


def _loose_files(folder: Path, by_content: bool, problems: Problems) -> Counter[str]:
    ignored = Counter[str]()
    for path in folder.iterdir():
        if is_hidden(path.name):
            ignored.update(map(ending, hidden_files(folder, path.name)))
        elif path.is_file():
            if listing.is_image(path, by_content=by_content):
                problems.add(
                    f"{path}: is next to the class folders, so it has no class. Move it away, or "
                    "into the folder of its class."
                )
            ignored[ending(path.name)] += 1
    return ignored


def _read_mapping(path: Path) -> ClassList:
    lines = source.read_list(path).splitlines()
    rows = sorted(line.partition(" ")[::2] for line in lines if line.strip())
    odd = [wnid for wnid, _ in rows if not keys.WNID.fullmatch(wnid)]
    if odd or not rows or len({wnid for wnid, _ in rows}) != len(rows):
        raise SourceError(
            f"{path}: expected one line 'WNID words' per class. Get it again from Kaggle."
        )
    classes = ClassList(tuple(row[0] for row in rows), tuple(row[1].strip() for row in rows))
    return labels.official_classes() if classes.official else classes


def _read_solution(path: Path) -> list[tuple[str, str]]:
    """Returns the name (without extension) and WNID of each validation image."""
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
    rows: Sequence[tuple[str, str]], classes: ClassList, path: Path
) -> dict[str, int]:
    indices: dict[str, int] = {}
    for number, (stem, wnid) in enumerate(rows, start=1):
        if wnid not in classes.index or stem in indices:
            raise SourceError(
                f"{path}: entry {number}: expected one of {len(classes.wnids):,} classes, and one "
                "entry per image. Get the file again."
            )
        indices[stem] = classes.index[wnid]
    return indices
